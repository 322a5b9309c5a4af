"""Export to ONNX: `to_onnx` compares with PyTorch, `to_int8` quantises and compares with float."""

from .int8_file import Quantised, to_int8
from .onnx_file import Exported, to_onnx

__all__ = ["Exported", "Quantised", "to_int8", "to_onnx"]
