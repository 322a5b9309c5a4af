"""How long a forward pass takes here."""

import time

import torch
from torch import Tensor, nn


@torch.no_grad()
def median_latency(model: nn.Module, example: Tensor, repeats: int = 15) -> float:
    """Median seconds of one forward pass in eval mode, after a warm-up."""
    training, seconds = model.training, []
    model.eval()
    for turn in range(repeats + 3):
        start = time.perf_counter()
        model(example)
        if example.is_cuda:
            torch.cuda.synchronize(example.device)
        if turn >= 3:
            seconds.append(time.perf_counter() - start)
    model.train(training)
    return sorted(seconds)[len(seconds) // 2]
