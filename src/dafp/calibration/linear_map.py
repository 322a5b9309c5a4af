"""Convolutions and linear layers as matrices over patches of their input.

The output of such a layer at one place is W·z + b, where z is the patch that the kernel covers
there: inputs × kernel positions. A linear layer has patches of one position; one that follows a
flatten has as many positions as each channel has pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_KINDS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)


def why_not_linear(layer: nn.Module) -> str:
    """Why a layer cannot be read as a matrix over patches; "" if it can."""
    if not isinstance(layer, _KINDS):
        return f"{type(layer).__name__} is neither a convolution nor a linear layer"
    kind = next(k for k in _KINDS if isinstance(layer, k))
    if type(layer).forward is not kind.forward:
        return f"{type(layer).__name__} has a forward of its own"
    if "weight" not in layer._parameters:
        return "its weight is computed from other parameters"
    return ""


@dataclass(frozen=True)
class LinearMap:
    """A convolution or linear layer as a matrix over patches."""

    layer: Any  # one of _KINDS: `why_not_linear` returns ""
    channels: Tensor | None = None  # linear after a flatten: its inputs as channels × pixels

    def matrix(self) -> Tensor:
        """Weights as groups × outputs of a group × inputs of a group × kernel positions."""
        weight: Tensor = self.layer.weight.detach()
        if isinstance(self.layer, nn.Linear):
            if self.channels is None:
                return weight[None, :, :, None]
            return weight[:, self.channels.to(weight.device)][None]
        groups = self.layer.groups
        flat = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
        return flat.transpose(1, 2).flip(3) if isinstance(self.layer, TRANSPOSED) else flat

    def weight_of(self, matrix: Tensor) -> Tensor:
        """The inverse of `matrix`: a tensor of the shape of the layer's weight."""
        shape = self.layer.weight.shape
        if self.channels is not None:
            weight = matrix.new_empty(shape)
            weight[:, self.channels.flatten().to(weight.device)] = matrix[0].flatten(1)
            return weight
        if isinstance(self.layer, TRANSPOSED):
            matrix = matrix.flip(3).transpose(1, 2)
        return matrix.reshape(shape)

    def draw_places(
        self, output: Tensor, per_image: int, draw: torch.Generator, rows: int | None = None
    ) -> Tensor:
        """Random output positions, rows × places; all positions if there are not more.

        There are as many rows as the output has, unless `rows` says otherwise.
        """
        positions, rows = math.prod(self.positions(output)), rows or output.shape[0]
        if positions <= per_image:
            return torch.arange(positions).expand(rows, positions)
        return torch.randint(positions, (rows, per_image), generator=draw)

    def positions(self, output: Tensor) -> tuple[int, ...]:
        """The sizes of the axes along which the layer is applied again and again."""
        return tuple(output.shape[1:-1] if self._is_linear else output.shape[2:])

    def outputs_at(self, output: Tensor, places: Tensor) -> Tensor:
        """Outputs at some places: (rows · places) × outputs."""
        return _take(self._channels_second(output), places.unsqueeze(2))[:, :, 0]

    def patches_at(self, x: Tensor, positions: Sequence[int], places: Tensor) -> Tensor:
        """Patches below some output places: (rows · places) × inputs × kernel positions."""
        if self._is_linear:
            found = _take(self._channels_second(x), places.unsqueeze(2))
            return found if self.channels is None else found[:, self.channels.to(x.device), 0]
        padded, stride = self._padded(x, positions)
        sizes = padded.shape[2:]
        steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        corner = sum(
            index * (stride[d] * steps[d]) for d, index in enumerate(_unravel(places, positions))
        )
        offsets = torch.zeros(1, dtype=torch.long)
        for d, size in enumerate(self.layer.kernel_size):
            along = torch.arange(size) * (self.layer.dilation[d] * steps[d])
            offsets = (offsets.unsqueeze(1) + along).flatten()
        assert isinstance(corner, Tensor)
        return _take(padded.flatten(2), corner.unsqueeze(2) + offsets)

    def pixels_at(self, x: Tensor, positions: Sequence[int], places: Tensor) -> Tensor:
        """Single input pixels near some output places: rows × inputs."""
        if self.channels is not None:
            return self.patches_at(x, positions, places).transpose(1, 2).flatten(0, 1)
        flat = self._channels_second(x)
        near = places * flat.shape[2] // max(1, math.prod(positions))
        return _take(flat, near.unsqueeze(2))[:, :, 0]

    @property
    def _is_linear(self) -> bool:
        return isinstance(self.layer, nn.Linear)

    def _channels_second(self, x: Tensor) -> Tensor:
        """rows × channels × positions."""
        if self._is_linear:
            return x.reshape(x.shape[0], -1, x.shape[-1]).transpose(1, 2)
        return x.flatten(2)

    def _padded(self, x: Tensor, positions: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        """The padded input, and the stride with which the kernel moves over it.

        A transposed convolution is a convolution with the mirrored kernel over its input with zeros
        between the pixels.
        """
        layer = self.layer
        if not isinstance(layer, TRANSPOSED):
            widths = list(layer._reversed_padding_repeated_twice)
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            return (pad(x, widths, mode=mode) if any(widths) else x), layer.stride
        sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], layer.stride, strict=True)]
        spread = x.new_zeros(*x.shape[:2], *sizes)
        spread[(slice(None), slice(None), *(slice(None, None, s) for s in layer.stride))] = x
        widths = []
        for d in reversed(range(len(sizes))):
            reach = layer.dilation[d] * (layer.kernel_size[d] - 1)
            before = reach - int(layer.padding[d])
            widths += [before, positions[d] + reach - sizes[d] - before]
        return pad(spread, widths), (1,) * len(sizes)


def _take(flat: Tensor, places: Tensor) -> Tensor:
    """(rows · places) × channels × kernel, from rows × channels × positions."""
    rows, count, kernel = places.shape
    index = places.to(flat.device).reshape(rows, 1, count * kernel)
    found = flat.gather(2, index.expand(rows, flat.shape[1], count * kernel))
    return found.view(rows, -1, count, kernel).transpose(1, 2).flatten(0, 1)


def _unravel(places: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    found = []
    for size in reversed(sizes):
        found.append(places % size)
        places = places // size
    return found[::-1]
