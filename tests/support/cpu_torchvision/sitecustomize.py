"""Lets torchvision be imported beside a torch it was not built for, in examples with this on path.

A torchvision built for CUDA cannot load its operators beside a CPU build of torch, and then fails
to import because two of them are missing. timm needs the import, not the operators; YOLO and
detectors need non-maximum suppression too, which is written in Python here. `roi_align` has a
Python version in torchvision itself.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of boxes, best first, without those that overlap a better one too much."""
    areas, order, kept = (dets[:, 2:] - dets[:, :2]).prod(1), scores.argsort(descending=True), []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        first = torch.max(dets[best, :2], dets[order, :2])
        last = torch.min(dets[best, 2:], dets[order, 2:])
        shared = (last - first).clamp(min=0).prod(1)
        order = order[shared <= iou_threshold * (areas[best] + areas[order] - shared)]
    return torch.stack(kept) if kept else order


spec = importlib.util.find_spec("torchvision")
assert spec is not None, "torchvision is not there: `make test` installs it"
assert spec.origin is not None
try:
    ctypes.CDLL(str(next(Path(spec.origin).parent.glob("_C*"))))
except OSError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", nms, "CPU")
    import torchvision.extension

    torchvision.extension._has_ops = lambda: True  # asked before every call of nms
    roi_align = sys.modules["torchvision.ops.roi_align"]  # of the package, it is a function
    roi_align._roi_align = roi_align._roi_align.__wrapped__  # compiling it takes half a minute
