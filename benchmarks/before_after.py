"""How long do trace and prune take, before and after a change, beside Torch-Pruning?

    git worktree add ../before REVISION
    .venv-zoo/bin/python benchmarks/before_after.py --before ../before

Every network is pruned by half, by turns: by the older revision, by this one and by Torch-Pruning,
each in a process of its own, with one thread. The row has the least processor seconds of all
rounds; those of dafp include verification. Rows are in benchmarks/results/before_after.jsonl;
networks that are in it are not measured again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from result_files import FOLDER, append_rows, read_rows

ROOT = Path(__file__).parents[1]
RESULTS = FOLDER / "before_after.jsonl"
NETWORKS = (
    "torchvision:resnet50", "torchvision:mobilenet_v3_large", "torchvision:regnet_y_400mf",
    "timm:hrnet_w18_small", "ultralytics:yolov8n", "torchvision:resnet18",
    "torchvision:efficientnet_b0", "torchvision:vgg11_bn", "torchvision:densenet121",
    "torchvision:googlenet", "torchvision:mnasnet1_0", "dafp:preresnet110",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the older revision")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, help="used by this script: measure one network")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    done = {row["net"] for row in read_rows(RESULTS)}
    for name in (n for n in NETWORKS if n not in done):
        row: dict[str, Any] = {"net": name}
        for _ in range(options.rounds):
            for what, source in (("before", options.before), ("after", ROOT), ("peer", ROOT)):
                found = in_process(name, "torch-pruning" if what == "peer" else "dafp", source)
                if found["seconds"] is not None:
                    row[what] = min(row.get(what, 1e9), found["seconds"])
                if what != "peer":
                    row[f"{what}_revision"] = found["revision"]
        append_rows(RESULTS, row)
        print(row, flush=True)
    report(read_rows(RESULTS))


def report(rows: list[dict[str, Any]]) -> None:
    for what in ("before", "after"):
        ratios = [r[what] / r["peer"] for r in rows if "peer" in r and what in r]
        print(f"{what}: median {statistics.median(ratios):.2f} times Torch-Pruning, "
              f"worst {max(ratios):.2f}, on {len(ratios)} networks")  # fmt: skip


def in_process(name: str, tool: str, source: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, tool], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1",
             "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, tool: str) -> dict[str, Any]:
    """The least seconds of three times trace and prune, and the revision that did it."""
    import networks  # noqa: PLC0415 - not needed by the process that starts the others

    networks.shim_torchvision()
    import dafp  # noqa: PLC0415
    from dafp.storage.revision import code_revision  # noqa: PLC0415
    from families import subject  # noqa: PLC0415

    torch.set_num_threads(1)
    one, seconds = subject(name), []
    for _ in range(3):
        start = time.process_time()
        try:
            prune(one.model, one.inputs[0], tool)
        except Exception:  # noqa: BLE001 - a network that it cannot prune
            seconds = [None]
            break
        seconds.append(round(time.process_time() - start, 3))
    revision = code_revision(Path(dafp.__file__).parent, "unknown")
    return {"seconds": min(seconds), "revision": revision}


def prune(model: torch.nn.Module, example: Any, tool: str) -> None:
    if tool == "dafp":
        import dafp  # noqa: PLC0415

        graph = dafp.trace(model, example, residual="couple")
        plan = dafp.selection.uniform(dafp.criteria.l2_norm(model, graph), 0.5)
        dafp.prune(model, graph, plan)
        return
    import copy  # noqa: PLC0415

    import torch_pruning  # noqa: PLC0415

    small = copy.deepcopy(model)
    wide = [m for m in small.modules() if getattr(m, "out_features", 0) in (10, 1000)]
    torch_pruning.pruner.MagnitudePruner(
        small, example, importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.5, ignored_layers=wide,
    ).step()  # fmt: skip


if __name__ == "__main__":
    main()
