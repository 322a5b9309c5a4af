"""Networks that decide: detectors with thresholds, topk, suppression, and a second stage."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp.errors import VerificationError
from dafp.pruning import pruned_model
from support.detectors import OneStage, TwoStage, build, images, targets
from support.vision import vision_paths

SOURCE = Path(dafp.__file__).parent.parent


def half(model: nn.Module, graph: dafp.ChannelGraph) -> dafp.PruningPlan:
    return graph.resolve(dafp.selection.uniform(dafp.criteria.l1_norm(model, graph), 0.5))


CASES = [
    # all filters but those of the outputs; the 20 of both laterals are added, and count as 10
    pytest.param(OneStage, (images(),), 44 / 68, id="one stage, eval mode only"),
    pytest.param(OneStage, (images(), targets()), 44 / 68, id="one stage"),
    pytest.param(OneStage, {"images": images(), "targets": targets()}, 44 / 68, id="dict"),
    pytest.param(TwoStage, (images(),), 46 / 59, id="two stages"),
]


@pytest.mark.parametrize(("kind", "example", "share"), CASES)
def test_all_channels_but_those_that_decide_are_pruned(
    kind: type[nn.Module], example: Any, share: float
):
    model = build(kind)
    graph = dafp.trace(model, example)
    assert graph.filters / graph.all_filters == share
    plan = half(model, graph)
    small = dafp.prune(model, graph, plan)
    assert plan.after.params < 0.7 * dafp.cost(model, example).params
    assert dafp.cost(model, example) == graph.whole
    assert dafp.cost(small, example) == plan.after


def test_an_example_with_targets_is_traced_in_train_mode_too():
    model = build(OneStage)
    assert len(dafp.trace(model, (images(), targets())).notes) == 1
    notes = dafp.trace(model, (images(),)).notes
    assert any("targets" in note and "include them in the example" in note for note in notes)


@pytest.mark.parametrize("kind", [OneStage, TwoStage])
def test_a_wrongly_sliced_detector_is_found(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch):
    model = build(kind)
    graph = dafp.trace(model, (images(),))
    right = pruned_model.slice_model

    def wrong(*args: Any) -> nn.Module:
        small = right(*args)
        with torch.no_grad():
            small.pyramid.deep[1].bias += 0.01
        return small

    monkeypatch.setattr(pruned_model, "slice_model", wrong)
    with pytest.raises(VerificationError, match=r"differs from the masked model|outputs of shapes"):
        dafp.prune(model, graph, half(model, graph))


class Best(nn.Module):
    """Returns the position and the row of the larger of two numbers that are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, bias=False)
        self.scores = nn.Conv2d(64, 1, 1, bias=False)
        self.rows = nn.Conv2d(64, 2, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x)
        order = self.scores(x).flatten().argsort(descending=True)
        return order, self.rows(x).flatten(2)[..., order]


def test_ties_that_rounding_decides_are_not_taken_for_an_error():
    model, x = Best().eval(), torch.randn(1, 3, 12, 12).repeat(1, 1, 1, 2)
    with torch.no_grad():
        model.scores.weight.copy_(model.scores.weight.mean())
    graph = dafp.trace(model, x)
    plan = half(model, graph)
    small, masked = dafp.prune(model, graph, plan), dafp.mask(model, graph, plan)
    assert small.conv.out_channels == 32
    order = masked(x)[0]
    with torch.no_grad():  # some numbers tie: another order is as good
        scores = masked.scores(masked.conv(x)).flatten()[order]
    assert int((scores.diff().abs() < 1e-6).sum()) > 20


class ChosenChannels(nn.Module):
    """Uses the channels that are largest on average: other ones for other images."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        chosen = x.mean((0, 2, 3)).argsort()[: 4 + int(x.sum() * 0)]
        return self.b(x[:, chosen])


def test_channels_that_the_data_chooses_are_kept():
    graph = dafp.trace(ChosenChannels(), torch.randn(1, 3, 8, 8))
    assert not graph.groups
    assert next(kept.reason for kept in graph.kept if kept.name == "a") in (
        "sorted by its values",
        "indexed by values that depend on the data",
    )


def test_the_operators_of_torchvision_are_known_by_name():
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("roi_align(Tensor input, Tensor rois, float scale, int h, int w) -> Tensor")
    library.impl(
        "roi_align", lambda x, rois, scale, h, w: x[rois[:, 0].long(), :, :h, :w], "Autograd"
    )

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3), nn.Linear(8 * 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            rois = x.new_zeros(3, 5)
            pooled = torch.ops.torchvision.roi_align(self.a(x), rois, 1.0, 2, 2)
            return self.b(pooled.flatten(1))

    model = Pooled().eval()
    graph = dafp.trace(model, torch.randn(1, 3, 8, 8))
    assert [(group.name, group.size) for group in graph.groups] == [("a", 8)]
    assert dafp.prune(model, graph, half(model, graph)).b.in_features == 16


def with_torchvision(*arguments: str) -> str:
    """What Python prints with torchvision on its path."""
    paths = [str(SOURCE), *vision_paths("torchvision"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


ROI_ALIGN = """
import sys, torch
from torchvision.ops import roi_align
whole = sys.modules["torchvision.ops.roi_align"]._roi_align
torch.manual_seed(0)
x = torch.randn(2, 3, 12, 9, dtype=torch.double, requires_grad=True)
corners = torch.rand(6, 2, dtype=torch.double) * 60
image = torch.randint(0, 2, (6, 1)).double()
boxes = torch.cat([image, corners, corners + torch.rand(6, 2) * 40], 1)
for ratio in (2, -1):
    for aligned in (False, True):
        ours = roi_align(x, boxes, (4, 3), 0.125, ratio, aligned)
        theirs = getattr(whole, "__wrapped__", whole)(x, boxes, 0.125, 4, 3, ratio, aligned)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
        print(float((ours - theirs).abs().max()), float((grads[0] - grads[1]).abs().max()))
"""


def test_roi_align_beside_a_cpu_build_of_torch_computes_what_torchvision_does():
    gaps = [float(gap) for gap in with_torchvision("-c", ROI_ALIGN).split()]
    assert len(gaps) == 8
    assert max(gaps) < 1e-12


@pytest.mark.parametrize(
    "name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"]
)
def test_detectors_of_torchvision_are_pruned_in_both_modes(name: str):
    script = Path(__file__).parent.parent / "support" / "torchvision_detectors.py"
    result = json.loads(with_torchvision(str(script), name))
    assert result["share"] > 0.95
    assert 0.4 < result["left"] <= 0.5
    assert result["counted"] == [True, True]
    assert result["notes"] == ["traced with real dat"]  # and not: eval mode only
