"""Export to ONNX: equal to PyTorch for any batch size, folded where exact, refused where not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import dafp
import zoo
from dafp import cli
from dafp.errors import ExportError, ExtraError
from dafp.export import checking, to_onnx
from dafp.export.branches import BothWays
from dafp.models import build

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# one of each corner that the exporter, the folding or the check treats in a way of its own;
# benchmarks/onnx_zoo.py does all of them
NETS = (
    "plain", "conv1d", "mlp", "transposed grouped", "pre-activation residual", "shuffle by hand",
    "fused attention", "index_select", "branch on values", "dict of inputs", "several outputs",
    "pools",
)  # fmt: skip


def pruned(net: zoo.Net) -> nn.Module:
    model, example = net.model(), net.example()
    graph = dafp.trace(model, example, **net.kwargs)
    scores = dafp.criteria.dependency_aware(model, graph)
    return dafp.prune(model, graph, dafp.selection.to_target(scores, graph, 0.5))


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("name", NETS)
def test_the_file_computes_what_the_pruned_model_computes_on_any_batch(name, tmp_path):
    net = zoo.BY_NAME[name]
    path = tmp_path / "net.onnx"
    done = to_onnx(pruned(net), net.example(), path, fold_bn=True)
    assert set(done.gaps) == {"the example", "1 random rows", "3 random rows", "8 random rows"}
    assert max(done.gaps.values()) < 1e-4
    assert path.stat().st_size == done.size
