"""How much faster is a training step if the process keeps freed memory, as dafp's commands do?

    python benchmarks/freed_memory.py    # writes benchmarks/results/freed_memory.json, 2 minutes

The same training steps in processes with and without `dafp.cli.process.keep_freed_memory`, by
turns; processor time and page faults of a step, without the first one. Ratios are with / without,
the median over the turns.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "freed_memory.json"
NETWORKS = (("vgg16", 0.25), ("preresnet20", 1.0))
BATCH, STEPS, TURNS = 128, 4, 5


def measure(name: str, width: float, keep: bool) -> None:
    """Print the processor seconds and page faults of a step; runs in a process of its own."""
    from dafp.cli.process import keep_freed_memory  # noqa: PLC0415

    if keep and not keep_freed_memory():
        sys.exit("the memory of this process cannot be set: not glibc, or set by the environment")

    import torch  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from dafp.models import build  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(name, width=width).to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    for _ in range(STEPS):
        step()
    seconds = (time.process_time() - start) / STEPS
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(json.dumps({"seconds": seconds, "faults": faults // STEPS}))


def turn(name: str, width: float, keep: bool) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, name, str(width), str(int(keep))]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(found.stdout)
    return values


def main() -> None:
    rows = {}
    for name, width in NETWORKS:
        turns = [(turn(name, width, False), turn(name, width, True)) for _ in range(TURNS)]
        rows[name] = {
            "ratio": round(statistics.median(b["seconds"] / a["seconds"] for a, b in turns), 3),
            "ratios": [round(b["seconds"] / a["seconds"], 3) for a, b in turns],
            "faults_without": round(statistics.median(a["faults"] for a, _ in turns)),
            "faults_with": round(statistics.median(b["faults"] for _, b in turns)),
        }
        print(name, rows[name], flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], float(sys.argv[2]), sys.argv[3] == "1")
    else:
        main()
