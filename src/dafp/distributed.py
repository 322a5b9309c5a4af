"""Devices and processes, through Accelerate: one CPU, or many GPUs on many nodes."""

from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn

_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def make_accelerator(precision: str, tracker: str, directory: str) -> Accelerator:
    """The engine of a run; `torchrun` and `accelerate launch` decide about processes."""
    return Accelerator(
        mixed_precision=_PRECISION[precision],
        log_with=tracker or None,
        project_dir=directory,
    )


def broadcast_text(text: str, accelerator: Accelerator) -> str:
    """The text of rank 0, on every rank."""
    if accelerator.num_processes == 1:
        return text
    device = accelerator.device
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    size = torch.tensor([data.numel()], device=device)
    dist.broadcast(size, 0)
    if not accelerator.is_main_process:
        data = torch.empty(int(size), dtype=torch.uint8, device=device)
    dist.broadcast(data, 0)
    return bytes(data.cpu().tolist()).decode()


def summed(values: Tensor, accelerator: Accelerator) -> Tensor:
    """The sum over all ranks."""
    if accelerator.num_processes > 1:
        dist.all_reduce(values)
    return values


def align_buffers(model: nn.Module, accelerator: Accelerator) -> None:
    """BN statistics of rank 0 for all: each rank saw its own part of the data."""
    if accelerator.num_processes > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def log(accelerator: Accelerator, values: dict[str, Any], step: int) -> None:
    """Numbers of an epoch for the tracker, if there is one."""
    numbers = {k: v for k, v in values.items() if isinstance(v, (int, float))}
    accelerator.log(numbers, step=step)
