"""Does `dafp run` on the embedded data keep the accuracy of the baseline? Mean over seeds 0-4.

python benchmarks/seeds.py --out runs/seeds    # resumable; writes benchmarks/results/seeds.json
"""

import argparse
import dataclasses
import json
from pathlib import Path

from dafp.cli.progress import TerminalProgress
from dafp.runs.pipeline import run
from dafp.training.config import Config

RESULTS = Path(__file__).parent / "results" / "seeds.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    options = parser.parse_args()
    rows = []
    for seed in range(5):
        with TerminalProgress() as progress:
            result = run(
                dataclasses.replace(Config(), seed=seed), options.out / str(seed), progress
            )
        by = {stage["stage"]: stage["accuracy"] for stage in result["stages"]}
        rows.append({"seed": seed, **by, **result["sparsity"]})
    names = ("baseline", "sparse", "pruned", "finetuned", "reached")
    means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
    RESULTS.write_text(json.dumps({"seeds": rows, "mean": means}, indent=1) + "\n")
    print(json.dumps(means, indent=1))


if __name__ == "__main__":
    main()
