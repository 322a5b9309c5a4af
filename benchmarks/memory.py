"""How much memory do trace and prune need, depending on the batch size of the example?

    .venv-zoo/bin/python benchmarks/memory.py      # prints a table

Peak memory above the loaded model, in units of the model's parameter bytes; each measurement runs
in its own process. The column "one forward" is one forward pass on one image without dafp, which
verification needs in any case.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

import networks

SHIM = networks.shim_torchvision()

import dafp  # noqa: E402
import peers  # noqa: E402

NETWORKS = ("torchvision:resnet18", "torchvision:resnet50", "torchvision:vgg11_bn",
            "torchvision:densenet121", "torchvision:efficientnet_b0")  # fmt: skip
BATCHES = (1, 8, 32)
Job = Callable[[nn.Module, Tensor], None]


def main() -> None:
    print("| network | MB | one forward | " + " | ".join(f"batch {b}" for b in BATCHES) + " |")
    print("|---|--:|--:|" + "--:|" * len(BATCHES))
    for name in NETWORKS:
        size = sum(p.numel() * p.element_size() for p in networks.build(name)[0].parameters())
        cells = [peak(forward, name, 1), *(peak(trace_and_prune, name, b) for b in BATCHES)]
        row = " | ".join(f"{cell / size:.2f}" for cell in cells)
        print(f"| {name} | {size / 2**20:.0f} | {row} |", flush=True)


def peak(job: Job, name: str, batch: int) -> int:
    """Peak bytes above the loaded model, measured in a new process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(job, name, batch, theirs))
    process.start()
    found: int = ours.recv()
    process.join()
    return found


def measure(job: Job, name: str, batch: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    model, example = networks.build(name)
    example = example.repeat(batch, 1, 1, 1)
    peers.warm_up("dafp")
    watch = peers.Stopwatch()
    job(model, example)
    pipe.send(watch.peak_bytes())


def forward(model: nn.Module, example: Tensor) -> None:
    with torch.no_grad():
        model.eval()(example)


def trace_and_prune(model: nn.Module, example: Tensor) -> None:
    graph = dafp.trace(model, example, residual="couple")
    dafp.prune(model, graph, dafp.selection.uniform(dafp.criteria.l2_norm(model, graph), 0.5))


if __name__ == "__main__":
    main()
