"""The cost of attention is counted, whichever kernel computes it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dafp
from dafp.network.cost import _counter

ROWS, HEADS, WIDTH = 6, 2, 4  # width of a head


class Timed(nn.Module):
    """Attention, and a number beside the image: it is real even where the image has no data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, HEADS * WIDTH)
        self.last = nn.Linear(HEADS * WIDTH, 3)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        x = self.stem(x + step[:, None, None].sin())
        x = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        x = functional.scaled_dot_product_attention(x, x, x)
        return self.last(x.transpose(1, 2).flatten(2))


def test_the_products_of_an_attention_are_counted_by_trace_and_by_cost():
    example = (torch.randn(2, ROWS, 5), torch.tensor([3, 7]))
    linear = ROWS * 5 * HEADS * WIDTH + ROWS * HEADS * WIDTH * 3
    attention = 2 * HEADS * ROWS * ROWS * WIDTH
    assert dafp.cost(Timed(), example).macs == linear + attention
    assert dafp.trace(Timed(), example).whole.macs == linear + attention


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_products_of_a_recurrent_layer_are_counted_whichever_kernel_computes_them(kind):
    layer, x = kind(5, 4, batch_first=True), torch.randn(2, 7, 5)
    gates = {nn.LSTM: 4, nn.GRU: 3}[kind]
    expected = 7 * gates * 4 * (5 + 4)  # of one row
    assert dafp.cost(layer, x).macs == expected
    with torch.no_grad(), _counter() as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 2 * expected
