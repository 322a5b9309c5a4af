"""Lets torchvision be imported beside a torch it was not built for, in examples with this on path.

A torchvision built for CUDA cannot load its operators beside a CPU build of torch, and then fails
to import because two of them are missing. timm needs the import, not the operators; YOLO and
detectors need non-maximum suppression and `roi_align` too, which are written in Python here.
torchvision's own Python version of `roi_align` takes seconds and gigabytes for 1,000 boxes.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


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


def roi_align(
    x: Tensor, boxes: Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> Tensor:
    """(boxes, channels, height, width): means of interpolated pixels, as torchvision has them."""
    x1, y1, x2, y2 = (boxes[:, 1:] * scale - 0.5 * aligned).unbind(1)
    down, across = (y2 - y1, x2 - x1) if aligned else ((y2 - y1).clamp(1), (x2 - x1).clamp(1))
    places = torch.stack([down / height, across / width], 1).ceil()  # that each bin reads
    places = torch.full_like(places, ratio) if ratio > 0 else places
    found = x.new_zeros((len(boxes), x.shape[1], height, width))
    for count in places.unique(dim=0) if len(boxes) else ():
        at = (places == count).all(1).nonzero()[:, 0]
        rows, by_row = _places(y1[at], down[at], height, int(count[0]), x.shape[2])
        columns, by_column = _places(x1[at], across[at], width, int(count[1]), x.shape[3])
        rows = rows + boxes[at, 0].long()[:, None, None] * x.shape[2]
        pixels = rows[:, :, None, :, None] * x.shape[3] + columns[:, None, :, None, :]
        weights = by_row[:, :, None, :, None] * by_column[:, None, :, None, :]
        some = embedding_bag(
            pixels.flatten(3).flatten(0, 2),
            x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]),
            per_sample_weights=weights.flatten(3).flatten(0, 2) / count.prod(),
            mode="sum",
        )
        some = some.view(-1, height, width, x.shape[1]).permute(0, 3, 1, 2)
        found = found.index_copy(0, at, some)
    return found


def _places(start: Tensor, side: Tensor, bins: int, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Pixels that each bin reads along one axis, and their weights: (boxes, bins, 2 * count)."""
    inside = (torch.arange(count) + 0.5).to(start) / count
    at = torch.arange(bins)[:, None].to(start) + inside
    at = (start[:, None, None] + side[:, None, None] / bins * at).clamp(min=0)
    low = at.long().clamp(max=size - 1)
    part = torch.where(low == size - 1, 0, at - low)
    pixels = torch.stack([low, (low + 1).clamp(max=size - 1)], -1)
    return pixels.flatten(2), torch.stack([1 - part, part], -1).flatten(2)


def _shape(x: Tensor, boxes: Tensor, scale: float, height: int, width: int, *_: Any) -> Tensor:
    return x.new_empty((len(boxes), x.shape[1], height, width))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, boxes = ctx.saved_tensors
    with torch.enable_grad():
        again = x.detach().requires_grad_()
        found = roi_align(again, boxes, *ctx.rest)
    return (*torch.autograd.grad(found, again, grad), *[None] * 6)


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
    module = sys.modules["torchvision.ops.roi_align"]  # of the package, it is a function
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
    )
    library.impl("roi_align", roi_align, "CPU")
    torch.library.register_autograd("torchvision::roi_align", _backward, setup_context=_keep)
    torch.library.register_fake("torchvision::roi_align", _shape)
    module._has_ops = module._assert_has_ops = lambda: True
