"""The base of dafp's dispatch modes."""

from torch.utils._python_dispatch import TorchDispatchMode


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode under which nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch need not disable dynamo in every call
