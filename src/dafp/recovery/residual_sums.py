"""Find the sums that consumers are part of: what the other operand lacks, a consumer can correct.

The output of a block is added to a residual stream. If the stream has changed, the goal of the
block's last layer is no longer its old output, but the old sum without the stream as it is now.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..calibration.consumers import CalibratedConsumer

_ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")


@dataclass(frozen=True)
class Operand:
    """The output of a consumer, perhaps after a BN, at the moment it is added to something."""

    consumer: CalibratedConsumer
    norm: str  # BN after the consumer, "" without one
    value: Tensor
    other: Tensor  # what it is added to


@contextmanager
def watch_sums(
    model: nn.Module, consumers: list[CalibratedConsumer], on_sum: Callable[[Operand], None]
) -> Iterator[None]:
    """Context manager: call `on_sum` before the output of a consumer is added to another tensor.

    Of two consumers whose outputs are added, the one that ran last is reported. `on_sum` may
    change `value` in place.
    """
    watcher = _Watcher(on_sum)
    with ExitStack() as stack:
        for consumer in consumers:
            layer = model.get_submodule(consumer.module)
            stack.callback(layer.register_forward_hook(watcher.after_consumer(consumer)).remove)
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                stack.callback(module.register_forward_hook(watcher.after_norm(name)).remove)
        with watcher:
            yield


@dataclass(frozen=True)
class _Origin:
    consumer: CalibratedConsumer
    norm: str
    number: int  # the later a consumer runs, the higher
    version: int  # of the tensor: it has not been written to since


class _Watcher(TorchFunctionMode):
    """Remembers which tensors are outputs of consumers, and looks at every addition."""

    def __init__(self, on_sum: Callable[[Operand], None]) -> None:
        super().__init__()
        self.on_sum, self.origins, self.count = on_sum, WeakTensorKeyDictionary(), 0

    def after_consumer(self, consumer: CalibratedConsumer) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, output: Tensor) -> None:
            self.count += 1
            self.origins[output] = _Origin(consumer, "", self.count, _version(output))

        return hook

    def after_norm(self, name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, output: Tensor) -> None:
            origin = self._origin(args[0]) if args else None
            if origin is not None and not origin.norm:
                self.origins[output] = _Origin(
                    origin.consumer, name, origin.number, _version(output)
                )

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _ADDITIONS and not kwargs and len(args) == 2:
            self._look_at(*args)
        return func(*args, **(kwargs or {}))

    def _look_at(self, first: Any, second: Any) -> None:
        pairs = [
            (origin, one, other)
            for one, other in ((first, second), (second, first))
            if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
            if (origin := self._origin(one)) is not None
        ]
        if pairs and first is not second:
            origin, value, other = max(pairs, key=lambda pair: pair[0].number)
            with torch._C.DisableTorchFunction():
                self.on_sum(Operand(origin.consumer, origin.norm, value, other))

    def _origin(self, tensor: Any) -> _Origin | None:
        origin = self.origins.get(tensor) if isinstance(tensor, Tensor) else None
        return origin if origin is not None and origin.version == _version(tensor) else None


def _version(tensor: Tensor) -> int:
    """How often a tensor has been written to; unknown under torch.inference_mode."""
    return -1 if tensor.is_inference() else tensor._version
