"""The cost of attention is counted, whichever kernel computes it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

import dafp

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
