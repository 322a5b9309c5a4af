"""Throughput of a data set in images per second: python benchmarks/data.py [NAME] [ROOT]."""

import resource
import sys
import time
from pathlib import Path

import torch

from dafp.data import load


def main() -> None:
    """Measure with one thread, in processor time; report the best of five epochs."""
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "cifar10"
    start = time.process_time()
    data = load(name, Path(sys.argv[2] if len(sys.argv) > 2 else "data"))
    print(f"{name}: loaded in {time.process_time() - start:.1f} s, {data.sizes}")
    for batch_size in (64, 256):
        for augment in (True, False):
            rates = []
            for epoch in range(5):
                start = time.process_time()
                batches = data.batches("train", batch_size=batch_size, epoch=epoch, augment=augment)
                images = sum(len(y) for _, y in batches)
                rates.append(images / (time.process_time() - start))
            kind = "augmented" if augment else "not augmented"
            print(f"batch {batch_size}, {kind}: {max(rates):,.0f} images/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:,.0f} MB")


if __name__ == "__main__":
    main()
