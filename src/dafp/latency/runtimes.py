"""Ways to run a model: PyTorch eager, torch.compile, ONNX Runtime."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import BenchError, ExtraError
from ..export import to_onnx
from ..export.checking import feeds, random_batch, session_of
from ..export.onnx_file import described
from ..plan import Cost
from ..running import call_model, deep_copy
from .timing import Run

RUNTIMES = ("eager", "compile", "onnx")
Model = nn.Module | Path  # a path is an .onnx file


@contextmanager
def threads_of_torch(number: int) -> Iterator[None]:
    """So many threads inside, as many as before after."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def runner(model: Model, runtime: str, example: Any, *, batch: int, threads: int = 1) -> Run:
    """A function that runs the model once on a random batch; in eval mode, without gradients."""
    check_runtime(model, runtime)
    inputs = random_batch(example, batch)
    if isinstance(model, Path):
        return _session_run(str(model), inputs, threads)
    if runtime == "onnx":
        with tempfile.TemporaryDirectory() as folder:
            done = to_onnx(model, example, Path(folder) / "model.onnx", fold_bn=True)
            return _session_run(done.path.read_bytes(), inputs, threads)
    ours = deep_copy(model).eval()
    if runtime == "compile":
        return _compiled_run(ours, inputs)
    return _torch_run(ours, inputs)


def check_runtime(model: Model, runtime: str) -> None:
    if runtime not in RUNTIMES:
        raise BenchError(f"runtime {runtime!r} is not known; choose of {', '.join(RUNTIMES)}")
    if isinstance(model, Path) and runtime != "onnx":
        raise BenchError(f"{model} is an ONNX file; it runs in 'onnx' only, not in {runtime!r}")


def example_of(path: Path) -> Any:
    """Random input for an .onnx file with one input, of the shape the file states."""
    (first, *others) = session_of(str(path)).get_inputs()
    sizes = [size if isinstance(size, int) else 1 for size in first.shape]
    if others or first.type != "tensor(float)":
        raise BenchError(
            f"{path} takes {1 + len(others)} inputs, the first {first.type}; only files with one "
            "input of floats can be timed from the command line"
        )
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def cost_in(path: Path) -> Cost | None:
    """What an .onnx file says about its cost, if dafp wrote it."""
    return described(session_of(str(path)).get_modelmeta().custom_metadata_map)


def _session_run(data: bytes | str, inputs: Any, threads: int) -> Run:
    session = session_of(data, threads)
    given = feeds(session, inputs)
    return lambda: session.run(None, given)


def _torch_run(model: nn.Module, inputs: Any) -> Run:
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))

    def run() -> object:
        with torch.inference_mode():
            answer = call_model(model, inputs)
        if device.type != "cpu":  # it works on its own: the answer is not there yet
            torch.accelerator.synchronize(device)
        return answer

    return run


def _compiled_run(model: nn.Module, inputs: Any) -> Run:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise ExtraError(
            f"torch.compile needs a C++ compiler, and there is no {compiler!r} here. Install one "
            "(apt install g++), name it in the variable CXX, or leave 'compile' out of --runtime"
        )
    torch.compiler.reset()  # one graph per batch size, none of them with a free batch
    compiled: Any = torch.compile(model, dynamic=False)
    run = _torch_run(compiled, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()  # compiles
    return run
