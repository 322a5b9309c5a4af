"""YOLO models of ultralytics: pruned, trained sparse, and trained in ultralytics' own trainer."""

from ..extras import need

need("ultralytics", "ultralytics", "dafp.integrations.ultralytics")
from .yolo_model import YOLO  # noqa: E402 - after need()
from .yolo_sparsity import UltralyticsSparsityCallback  # noqa: E402

SparsityCallback = UltralyticsSparsityCallback

__all__ = ["YOLO", "SparsityCallback", "UltralyticsSparsityCallback"]
