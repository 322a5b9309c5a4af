"""Random inputs of the form of an example, for verification."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def small_images(inputs: Any) -> Any:
    """Crop large images to at most half their height and width."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() != 4 or min(value.shape[2:]) < 128:
            return value
        # multiples of 32: networks halve their input five times
        height, width = (side // 64 * 32 for side in value.shape[2:])
        return value[..., :height, :width]

    return tree_map(one, inputs)


def random_like(example: Any) -> Any:
    generator = torch.Generator().manual_seed(0)

    def one(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            return noise.to(value)
        return value

    return tree_map(one, example)


def random_first(example: Any) -> Any:
    """Random numbers in the first argument only."""
    if isinstance(example, Mapping):
        first = next(iter(example))
        return {**example, first: random_like(example[first])}
    if isinstance(example, (tuple, list)):
        return (random_like(example[0]), *example[1:])
    return random_like(example)
