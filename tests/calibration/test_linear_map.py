"""Layers as matrices over patches: the patches reproduce what the layer computes."""

import pytest
import torch
from torch import nn

from dafp.calibration.linear_map import LinearMap, why_not_linear

LAYERS = {
    "strided, padded, dilated": (nn.Conv2d(4, 6, 3, 2, 1, dilation=2), (3, 4, 11, 9)),
    "same padding, reflected": (
        nn.Conv1d(4, 6, 5, padding="same", padding_mode="reflect"),
        (3, 4, 11),
    ),
    "grouped in three dimensions": (
        nn.Conv3d(4, 6, (1, 2, 3), groups=2, padding=1),
        (3, 4, 5, 6, 7),
    ),
    "transposed, grouped": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (3, 4, 5, 6)),
    "transposed, dilated": (nn.ConvTranspose1d(4, 6, 4, 3, 0, dilation=2), (3, 4, 5)),
    "transposed in three dimensions": (nn.ConvTranspose3d(4, 6, 2, 2), (2, 4, 3, 3, 3)),
    "linear": (nn.Linear(4, 6), (3, 4)),
    "linear on tokens": (nn.Linear(4, 6, bias=False), (3, 5, 7, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_weights_times_patches_are_the_outputs(name):
    layer, shape = LAYERS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    layer_map, output = LinearMap(layer), layer(x)
    places = layer_map.draw_places(output, 10, torch.Generator().manual_seed(0))
    patches = layer_map.patches_at(x, layer_map.positions(output), places)
    matrix = layer_map.matrix()
    rows = patches.view(len(patches), len(matrix), -1, patches.shape[2])
    computed = torch.einsum("rgik,goik->rgo", rows, matrix).flatten(1)
    computed = computed if layer.bias is None else computed + layer.bias
    torch.testing.assert_close(computed, layer_map.outputs_at(output, places))
    assert len(patches) == places.numel() > 0
    assert torch.equal(layer_map.weight_of(matrix), layer.weight)


@torch.no_grad()
def test_a_linear_layer_after_a_flatten_has_a_patch_of_all_pixels_of_a_channel():
    layer, x = nn.Linear(12, 3), torch.randn(5, 12)
    channels = torch.arange(12).view(3, 4).T  # channels last: the pixels of a channel are 4 apart
    layer_map, output = LinearMap(layer, channels), layer(x)
    places = layer_map.draw_places(output, 10, torch.Generator())
    patches = layer_map.patches_at(x, layer_map.positions(output), places)
    assert patches.shape == (5, 4, 3)
    assert torch.equal(patches[:, 1], x[:, [1, 5, 9]])
    computed = torch.einsum("rik,oik->ro", patches, layer_map.matrix()[0]) + layer.bias
    torch.testing.assert_close(computed, output)
    assert torch.equal(layer_map.weight_of(layer_map.matrix()), layer.weight)


class OwnForward(nn.Conv2d):
    def forward(self, x):
        return super().forward(2 * x)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm2d(3), "neither a convolution nor a linear layer"),
        (OwnForward(3, 3, 1), "a forward of its own"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), "computed from other"),
    ],
)
def test_layers_that_are_not_linear_say_why(layer, words):
    assert words in why_not_linear(layer)
    assert why_not_linear(nn.Conv2d(3, 3, 1)) == ""
