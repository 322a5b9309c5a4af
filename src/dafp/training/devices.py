"""Devices and processes, through Accelerate: one CPU, or many GPUs on many nodes."""

from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn

from ..errors import TrainingError

_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def make_accelerator(precision: str, tracker: str, directory: str) -> Accelerator:
    """The Accelerator of a run; `torchrun` or `accelerate launch` sets the number of processes."""
    # Accelerate keeps the precision of the first run of a process, and raises for another one
    AcceleratorState._reset_state(reset_partial_state=False)
    try:
        accelerator = Accelerator(
            mixed_precision=_PRECISION[precision],
            log_with=tracker or None,
            project_dir=directory,
            # BN statistics are synchronised after an epoch (align_buffers), not at every step
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
    except ValueError as error:
        raise TrainingError(f"precision={precision!r} does not work here: {error}") from error
    if precision == "fp16" and accelerator.device.type == "cpu":
        raise TrainingError("precision='fp16' needs a GPU; use fp32 or bf16 on a CPU")
    return accelerator


def broadcast_text(text: str, accelerator: Accelerator) -> str:
    """Return the text of rank 0 on every rank."""
    if accelerator.num_processes == 1:
        return text
    device = accelerator.device
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    size = torch.tensor([data.numel()], device=device)
    dist.broadcast(size, 0)
    if not accelerator.is_main_process:
        data = torch.empty(int(size), dtype=torch.uint8, device=device)
    dist.broadcast(data, 0)
    return bytes(data.cpu().tolist()).decode()


def summed(values: Tensor, accelerator: Accelerator) -> Tensor:
    """Sum a tensor over all ranks, in place, and return it."""
    if accelerator.num_processes > 1:
        dist.all_reduce(values)
    return values


def align_buffers(model: nn.Module, accelerator: Accelerator) -> None:
    """Copy the BN statistics of rank 0 to all ranks: each rank saw its own part of the data."""
    if accelerator.num_processes > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def log(accelerator: Accelerator, values: dict[str, Any], step: int) -> None:
    """Send the numbers of an epoch to the tracker, if there is one."""
    numbers = {k: v for k, v in values.items() if isinstance(v, (int, float))}
    accelerator.log(numbers, step=step)
