"""Take an optimizer along to the pruned model, its state cut like the weights."""

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
    """A new optimizer of the same class for `small`, momentum and other state sliced alike.

    `small` is what `prune(model, ...)` gave. Parameter groups keep their order and options; the old
    optimizer is not touched.
    """
    parts = ("param_groups", "state", "defaults")
    if not isinstance(optimizer, Optimizer) or not all(hasattr(optimizer, part) for part in parts):
        raise PlanError(
            f"carry_over takes a torch.optim.Optimizer with {', '.join(parts)}, not a "
            f"{type(optimizer).__name__}; of a wrapper give the optimizer inside"
        )
    record = pruning_record(small)
    if record.source != fingerprint(model):
        raise PlanError(
            "small was not cut from this model in one step (or was loaded from a file); carry over "
            "right after each prune, from the model that was pruned"
        )
    names = {id(p): n for n, p in tensors_of(model).items() if isinstance(p, nn.Parameter)}
    smaller = tensors_of(small)
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    if not _has_plain_state(optimizer):
        raise PlanError(
            f"the state of {type(optimizer).__name__} is not shaped like its parameters, so it "
            "cannot be cut; make a new optimizer for the small model"
        )
    strangers = [tuple(p.shape) for p in owned if id(p) not in names]
    if strangers:
        raise PlanError(
            f"the optimizer holds {len(strangers)} parameters that are not the model's (shapes "
            f"{strangers[:3]}); was it made for another copy of it?"
        )
    cuts: dict[str, dict[int, Tensor]] = {}
    for (name, dim), positions in record.positions.items():
        cuts.setdefault(name, {})[dim] = positions
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        new = {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        new["params"] = [smaller[names[id(p)]] for p in group["params"]]
        groups.append(new)
    carried = _made_anew(optimizer, groups)
    for parameter in owned:
        name = names[id(parameter)]
        old = optimizer.state.get(parameter)
        if old:
            carried.state[smaller[name]] = _sliced(
                old, parameter, smaller[name], cuts.get(name, {})
            )
    return carried


def _has_plain_state(optimizer: Optimizer) -> bool:
    """Is every tensor of the state a counter, or shaped like its parameter?"""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, (list, dict)):
                return False
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                return False
    return True


def _made_anew(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Another optimizer of this class, for these groups."""
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
    state: dict[str, Any], parameter: Tensor, new: Tensor, cut: dict[int, Tensor]
) -> dict[str, Any]:
    """Entries shaped like the parameter are cut like it; counters are copied."""
    result: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            result[key] = slice_tensor(value, cut)
            assert result[key].shape == new.shape
        else:
            result[key] = value.clone() if isinstance(value, Tensor) else value
    return result
