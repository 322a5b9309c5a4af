"""Prunes a detector of torchvision: `python torchvision_detectors.py NAME` writes what is left."""

import json
import sys
from typing import Any

import torch
from torch import Tensor
from torchvision.models import detection

import dafp

torch.set_num_threads(1)
SMALL = {
    "min_size": 64,
    "max_size": 64,
    "rpn_post_nms_top_n_train": 32,
    "rpn_post_nms_top_n_test": 32,
    "box_batch_size_per_image": 16,
}


def main() -> None:
    torch.manual_seed(0)
    name = sys.argv[1]
    size, options = (64, SMALL) if "rcnn" in name else (320, {})
    none: dict[str, Any] = {"weights": None, "weights_backbone": None}
    model = detection.__dict__[name](**none, num_classes=3, **options).eval()
    boxes = torch.tensor([[8.0, 8.0, 40.0, 48.0]])
    images: list[Tensor] = [torch.rand(3, size, size)]
    example = (images, [{"boxes": boxes, "labels": torch.tensor([1])}])

    graph = dafp.trace(model, example, residual="couple")
    scores = dafp.criteria.l1_norm(model, graph)
    plan = graph.resolve(dafp.selection.to_target(scores, graph, 0.5, unit="macs"))
    small = dafp.prune(model, graph, plan)
    found = {
        "share": graph.prunable_filters / graph.all_filters,
        "left": plan.after.macs / graph.whole.macs,
        "counted": [
            dafp.cost(model, example) == graph.whole,
            dafp.cost(small, example) == plan.after,
        ],
        "notes": [note[:20] for note in graph.notes],
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
