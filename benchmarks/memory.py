"""Peak memory of trace + prune above the loaded model, against the batch of the example.

    .venv-zoo/bin/python benchmarks/memory.py

Each measurement is a process of its own; the unit is the bytes of the model's parameters.
"""

import multiprocessing

import torch

import networks

SHIM = networks.shim_torchvision()

import dafp  # noqa: E402
import peers  # noqa: E402

NETWORKS = ("torchvision:resnet18", "torchvision:resnet50", "torchvision:vgg11_bn",
            "torchvision:densenet121", "torchvision:efficientnet_b0")  # fmt: skip
BATCHES = (1, 8, 32)


def main() -> None:
    context = multiprocessing.get_context("fork")
    print("| network | " + " | ".join(f"batch {b}" for b in BATCHES) + " |")
    print("|---|" + "---|" * len(BATCHES))
    for name in NETWORKS:
        cells = []
        for batch in BATCHES:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=measure, args=(name, batch, theirs))
            process.start()
            cells.append(f"{ours.recv():.2f}")
            process.join()
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def measure(name: str, batch: int, pipe: object) -> None:
    torch.set_num_threads(1)
    model, example = networks.build(name)
    example = example.repeat(batch, 1, 1, 1)
    peers.warm_up("dafp")
    watch = peers.Watch()
    graph = dafp.trace(model, example, residual="couple")
    dafp.prune(model, graph, dafp.selection.uniform(dafp.criteria.l2_norm(model, graph), 0.5))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    pipe.send(watch.peak_bytes() / size)


if __name__ == "__main__":
    main()
