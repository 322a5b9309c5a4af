"""Carry an optimizer over to the pruned model: its state is sliced like the weights."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import PlanError
from ..graph.slicing import slice_tensor
from ..network.fingerprint import fingerprint
from ..network.named_tensors import tensors_of
from .pruned_model import pruning_record


def carry_over(optimizer: Optimizer, model: nn.Module, small: nn.Module) -> Optimizer:
    """A new optimizer of the same class for the pruned model, with momentum and other state sliced.

    Parameter groups keep their order and options.

    Args:
        optimizer: the optimizer of `model`; it does not change
        model: the network that was pruned
        small: the result of `dafp.prune(model, ...)`

    Returns:
        An optimizer for `small.parameters()`.

    Raises:
        PlanError: The state cannot be sliced, or the optimizer or `small` does not fit the model.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model(torch.randn(2, 1, 8, 8)).sum().backward()
        >>> optimizer.step()
        >>> graph = dafp.trace(model, torch.randn(2, 1, 8, 8))
        >>> small = dafp.prune(model, graph, dafp.PruningPlan({"0": (0, 2)}))
        >>> carried = dafp.carry_over(optimizer, model, small)
        >>> carried.state[small[0].weight]["momentum_buffer"].shape
        torch.Size([2, 1, 3, 3])
    """
    parts = ("param_groups", "state", "defaults")
    if not isinstance(optimizer, Optimizer) or not all(hasattr(optimizer, part) for part in parts):
        raise PlanError(
            f"carry_over takes a torch.optim.Optimizer with {', '.join(parts)}, not a "
            f"{type(optimizer).__name__}; pass the optimizer inside a wrapper"
        )
    record = pruning_record(small)
    if record.source != fingerprint(model):
        raise PlanError(
            "small was not pruned from this model in one step (or was loaded from a file); carry "
            "over right after each prune, from the model that was pruned"
        )
    names = {id(p): n for n, p in tensors_of(model).items() if isinstance(p, nn.Parameter)}
    smaller = tensors_of(small)
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    if not _has_plain_state(optimizer):
        raise PlanError(
            f"the state of {type(optimizer).__name__} is not shaped like its parameters, so it "
            "cannot be sliced; make a new optimizer for the small model"
        )
    strangers = [tuple(p.shape) for p in owned if id(p) not in names]
    if strangers:
        raise PlanError(
            f"the optimizer holds {len(strangers)} parameters that are not the model's (shapes "
            f"{strangers[:3]}); was it made for another copy of it?"
        )
    kept: dict[str, dict[int, Tensor]] = {}
    for (name, dim), positions in record.positions.items():
        kept.setdefault(name, {})[dim] = positions
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        new = {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        new["params"] = [smaller[names[id(p)]] for p in group["params"]]
        groups.append(new)
    carried = _new_optimizer(optimizer, groups)
    for parameter in owned:
        name = names[id(parameter)]
        old = optimizer.state.get(parameter)
        if old:
            carried.state[smaller[name]] = _sliced(
                old, parameter, smaller[name], kept.get(name, {})
            )
    return carried


def _has_plain_state(optimizer: Optimizer) -> bool:
    """Whether every tensor of the state is a counter, or has the shape of its parameter."""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, (list, dict)):
                return False
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                return False
    return True


def _new_optimizer(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """A new optimizer of this class, for these parameter groups."""
    wanted = [p for group in groups for p in group["params"]]
    what_to_do = (
        "make an optimizer for small.parameters() yourself; of a wrapper carry over the optimizer "
        "inside, and wrap the result"
    )
    try:
        options = inspect.signature(type(optimizer)).parameters
        defaults = {key: value for key, value in optimizer.defaults.items() if key in options}
        carried = type(optimizer)(groups, **defaults)
        held = [p for group in carried.param_groups for p in group["params"]]
    except Exception as error:
        raise PlanError(
            f"{type(optimizer).__name__} cannot be made from parameter groups and its own defaults "
            f"({', '.join(optimizer.defaults)}): {type(error).__name__}: {error}; {what_to_do}"
        ) from error
    if [id(p) for p in held] != [id(p) for p in wanted]:
        raise PlanError(
            f"{type(optimizer).__name__}, made from parameter groups, holds other parameters than "
            f"these; {what_to_do}"
        )
    return carried


@torch.no_grad()
def _sliced(
    state: dict[str, Any], parameter: Tensor, new: Tensor, axes: dict[int, Tensor]
) -> dict[str, Any]:
    """Entries with the shape of the parameter are sliced like it; counters are copied."""
    result: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            result[key] = slice_tensor(value, axes)
            assert result[key].shape == new.shape
        else:
            result[key] = value.clone() if isinstance(value, Tensor) else value
    return result
