"""From a PyTorch model to a file that other runtimes read: `to_onnx`, checked before it is kept."""

from .onnx_file import Exported, to_onnx

__all__ = ["Exported", "to_onnx"]
