"""The tensors and modules of a network by their dotted names."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from torch import Tensor, nn


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model by its dotted name; a shared one once, by its first name.

    Parameters first, then buffers, then tensors that are plain attributes of modules.
    """
    modules = modules_of(model)
    return _once([*_registered(modules), *_plain_attributes(modules)])


def registered(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of the model by dotted name, shared ones once."""
    return _once(_registered(modules_of(model)))


def _once(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in named:
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def _plain_attributes(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in modules:
        for name, value in vars(module).items():
            if type(value) not in _PLAIN and isinstance(value, Tensor):
                yield f"{prefix}.{name}" if prefix else name, value


_PLAIN = frozenset((int, float, str, bool, type(None), tuple, list, dict, OrderedDict))


def _registered(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor]]:
    for parameters in (True, False):
        for prefix, module in modules:
            held = module._parameters if parameters else module._buffers
            for name, value in held.items():
                if value is not None:
                    yield f"{prefix}.{name}" if prefix else name, value


def modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """list(model.named_modules()), faster: without nested generators."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[nn.Module] = set()
    open_modules = [("", model)]
    while open_modules:
        prefix, module = open_modules.pop()
        if module in seen:
            continue
        seen.add(module)
        found.append((prefix, module))
        if module._modules:
            inner = module._modules.items()
            named = [(f"{prefix}.{n}" if prefix else n, m) for n, m in inner if m is not None]
            open_modules += reversed(named)
    return found
