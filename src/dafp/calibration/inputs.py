"""Calibration data: inputs held in memory, so that several passes see the same ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..errors import PlanError
from ..network.calling import batch_of, batches_of, describe, input_of

IMAGES = 1024  # used at most, unless the caller says otherwise


@dataclass(frozen=True)
class CalibrationInputs:
    """Inputs of the network, without labels, as batches."""

    batches: tuple[Any, ...]
    images: int
    note: str = ""  # what was left out, and why

    def at_most(self, count: int) -> "CalibrationInputs":
        """The first images."""
        parts, left = [], count
        for batch in self.batches:
            size = batch_of(batch)
            if left > 0:
                parts.append(_rows(batch, size, torch.arange(size) < left))
            left -= size
        return CalibrationInputs(tuple(parts), min(count, self.images))

    def split(self) -> tuple["CalibrationInputs", "CalibrationInputs"]:
        """Three quarters, and the rest to hold out: every fourth batch, or image of one batch."""
        batches = self.batches
        if len(batches) == 1:
            size = batch_of(batches[0])
            held = held_out(torch.arange(size), size)
            sides = [[_rows(batches[0], size, flags)] for flags in (~held, held)]
        else:
            held = held_out(torch.arange(len(batches)), len(batches))
            pairs = list(zip(batches, held.tolist(), strict=True))
            sides = [[batch for batch, out in pairs if out == side] for side in (False, True)]
        fitted, kept = (CalibrationInputs(tuple(s), sum(map(batch_of, s))) for s in sides)
        return fitted, kept

    def joined(self) -> Any | None:
        """All inputs as one batch; None if they cannot be joined (images of several sizes)."""
        if len(self.batches) == 1:
            return self.batches[0]
        flat = [tree_flatten(batch) for batch in self.batches]
        if any(structure != flat[0][1] for _, structure in flat):
            return None
        leaves = []
        for parts in zip(*(leaves for leaves, _ in flat), strict=True):
            sizes = {
                part.shape[1:] if isinstance(part, Tensor) and part.dim() else None
                for part in parts
            }
            if len(sizes) != 1 or None in sizes:
                return None
            leaves.append(torch.cat(parts))
        return tree_unflatten(leaves, flat[0][1])


def held_out(image: Tensor, images: int) -> Tensor:
    """Which of the images, by their number, are held out: every fourth, at least one."""
    period = min(4, images)
    return image % period == period - 1


def read_inputs(
    model: nn.Module, batches: Iterable[Any], what: str, images: int = IMAGES
) -> CalibrationInputs:
    """Read at most `images` inputs of batches: inputs, or (input, target) pairs.

    Half-precision inputs become float32. `what` is the caller's name, for messages.
    """
    found, count, note = [], 0, ""
    for number, batch in enumerate(batches_of(batches, what)):
        given = input_of(model, batch)
        size = batch_of(given)
        if size == 0:
            raise PlanError(
                f"batch {number} ({describe(batch)}) has no rows; give batches that have some"
            )
        if count + size > images:
            note = f"the first {images} images are used; the batches hold more"
            given = _rows(given, size, torch.arange(size) < images - count)
            size = batch_of(given) if count < images else 0
        if size:
            _check_finite(given, number)
            found.append(tree_map(_as_float, given))
        count += size
        if note:
            break
    if not found:
        raise PlanError(f"{what} got no batches; give it at least one")
    if count < 2:
        raise PlanError(
            f"{what} got one image; it needs at least 2, because the weights that are fitted to "
            "some images are checked on others. A few hundred are usual"
        )
    inputs = CalibrationInputs(tuple(found), count, note)
    _check_different(inputs, what)
    return inputs


def first_batches(model: nn.Module, batches: Iterable[Any], what: str, images: int) -> list[Any]:
    """The first batches, with their targets, until they hold this many images."""
    found, count = [], 0
    for batch in batches_of(batches, what):
        found.append(batch)
        count += batch_of(input_of(model, batch))
        if count >= images:
            break
    return found


def _rows(given: Any, size: int, flags: Tensor) -> Any:
    """Some rows of all tensors that have one row per image."""

    def part(leaf: Any) -> Any:
        per_image = isinstance(leaf, Tensor) and leaf.shape[:1] == (size,)
        return leaf[flags.to(leaf.device)] if per_image else leaf

    return tree_map(part, given)


def _as_float(leaf: Any) -> Any:
    half = isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)
    return leaf.float() if half else leaf


def _check_finite(given: Any, number: int) -> None:
    for leaf in tree_leaves(given):
        if isinstance(leaf, Tensor) and not bool(leaf.isfinite().all()):
            raise PlanError(f"batch {number} ({describe(given)}) holds NaN or infinity")


def _check_different(inputs: CalibrationInputs, what: str) -> None:
    """Raise if all images are equal: nothing can be measured on them."""
    first = [leaf[:1] for leaf in _tensors(inputs.batches[0]) if leaf.dim()]
    for batch in inputs.batches:
        for leaf, row in zip(_tensors(batch), first, strict=False):
            if leaf.shape[1:] != row.shape[1:] or not bool((leaf == row).all()):
                return
    raise PlanError(
        f"all {inputs.images} images that {what} got are equal; give different ones, as the "
        "network will see them"
    )


def _tensors(given: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor) and leaf.dim()]


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The input of a convolution or linear layer, from the arguments of a hook."""
    x = args[0] if args else kwargs["input"]
    assert isinstance(x, Tensor)
    return x
