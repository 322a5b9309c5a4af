"""Do exported ONNX files compute what PyTorch computes, for every network of the test zoo?

    python benchmarks/onnx_zoo.py                 # all that are not in the results file yet
    python benchmarks/onnx_zoo.py --only residual # networks whose name contains this

Each network of tests/support/zoo.py is pruned, exported and compared on its example and on random
batches of 1, 3 and 8 rows. Takes about five minutes; writes benchmarks/results/onnx_zoo.json.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import dafp
from dafp.export import to_onnx
from dafp.storage.atomic_write import write_atomically

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import zoo

RESULTS = Path(__file__).parent / "results" / "onnx_zoo.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for net in zoo.NETS:
        if options.only in net.name and net.name not in rows:
            rows[net.name] = one(net)
            write_atomically(RESULTS, (json.dumps(rows, indent=1) + "\n").encode())
            print(net.name, rows[net.name], flush=True)
    good = sum(row["worst"] is not None and row["worst"] < 1e-4 for row in rows.values())
    print(f"{good} of {len(rows)} networks equal PyTorch within 1e-4 on every batch")


def one(net: zoo.Net) -> dict[str, Any]:
    """The largest difference over all batches, with and without folding."""
    model, example = net.model(), net.example()
    graph = dafp.trace(model, example, **net.kwargs)
    scores = dafp.criteria.dependency_aware(model, graph)
    small = dafp.prune(model, graph, dafp.selection.to_target(scores, graph, 0.5))
    with tempfile.TemporaryDirectory() as folder:
        try:
            plain = to_onnx(small, example, Path(folder) / "a.onnx", selections="gather")
            done = to_onnx(small, example, Path(folder) / "b.onnx", fold_bn=True)
        except dafp.DafpError as error:
            return {"worst": None, "error": str(error)[:300]}
    gaps = [*plain.gaps.values(), *done.gaps.values()]
    return {
        "worst": float(f"{max(gaps):.2e}"),
        "batches": len(done.gaps),
        "folded_norms": done.folded_norms,
        "folded_selections": done.folded_selections,
    }


if __name__ == "__main__":
    main()
