"""Lets torchvision be imported beside a torch it was not built for, in examples with this on path.

A torchvision built for CUDA cannot load its operators beside a CPU build of torch, and then fails
to import because two of them are missing. timm needs the import, not the operators.
"""

import ctypes
import importlib.util
from pathlib import Path

import torch

spec = importlib.util.find_spec("torchvision")
assert spec is not None, "torchvision is not there: `make test` installs it"
assert spec.origin is not None
try:
    ctypes.CDLL(str(next(Path(spec.origin).parent.glob("_C*"))))
except OSError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
