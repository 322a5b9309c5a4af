"""Export to ONNX: `to_onnx` writes a file after comparing its outputs with PyTorch."""

from .onnx_file import Exported, to_onnx

__all__ = ["Exported", "to_onnx"]
