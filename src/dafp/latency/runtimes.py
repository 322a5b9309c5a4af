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
from torch import Tensor, nn

from ..choices import RUNTIMES
from ..errors import BenchError, ExtraError
from ..export import to_onnx
from ..export.onnx_file import described
from ..export.output_check import feeds, random_batch, session_of
from ..network.calling import call_on
from ..network.cost import Cost
from ..network.model_copy import deep_copy
from .timing import Run

Model = nn.Module | Path  # a path is an .onnx file


@contextmanager
def threads_of_torch(number: int) -> Iterator[None]:
    """Set the number of torch's threads, and restore it afterwards."""
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


def as_model(name: str, model: object) -> Model:
    """Return the module, or the path of an .onnx file; BenchError for anything else."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, (str, Path)) and str(model).endswith(".onnx"):
        return Path(model)
    raise BenchError(
        f"the model {name!r} is {model!r}; give an nn.Module (dafp.models.build makes one by name, "
        "dafp.load reads a file that dafp saved) or the path of an .onnx file"
    )


def check_runtime(model: Model, runtime: str) -> None:
    if runtime not in RUNTIMES:
        raise BenchError(f"runtime {runtime!r} is not known; choose one of {', '.join(RUNTIMES)}")
    if isinstance(model, Path) and runtime != "onnx":
        raise BenchError(f"{model} is an ONNX file; it runs in 'onnx' only, not in {runtime!r}")


def example_of(path: Path, given: Tensor | None = None) -> Tensor:
    """`given`, checked against the .onnx file; without it, a random input of the file's shape."""
    inputs = session_of(str(path)).get_inputs()
    kinds = [one.type for one in inputs]
    if kinds != ["tensor(float)"]:
        raise BenchError(
            f"{path} takes {len(kinds)} inputs{': ' if kinds else ''}{', '.join(kinds)}; only "
            "files with one input of floats can be timed from the command line"
        )
    sizes = inputs[0].shape  # a name or None for a free size; empty if the shape is unknown
    if given is not None:
        _check_shape(path, sizes, given)
        return given
    if not sizes or not all(isinstance(size, int) for size in sizes[1:]):
        raise BenchError(
            f"{path} does not say how large its input is ({_sizes(sizes)}); give --input, e.g. "
            "--input 1,3,224,224"
        )
    shape = [size if isinstance(size, int) else 1 for size in sizes]
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _check_shape(path: Path, sizes: list[Any], given: Tensor) -> None:
    """Every size except the batch must equal the one in the file, where it is constant."""
    pairs = list(zip(sizes, given.shape, strict=False))[1:]
    wrong = any(isinstance(size, int) and size != mine for size, mine in pairs)
    if sizes and (len(sizes) != given.dim() or wrong):
        raise BenchError(
            f"{path} takes inputs of {_sizes(sizes)}, not of {list(given.shape)}; give another "
            "--input, or leave it out"
        )


def _sizes(sizes: list[Any]) -> str:
    return str([size if isinstance(size, int) else "free" for size in sizes]).replace("'", "")


def cost_in(path: Path) -> Cost | None:
    """The cost stored in an .onnx file that dafp wrote, else None."""
    return described(session_of(str(path)).get_modelmeta().custom_metadata_map)


def _session_run(data: bytes | str, inputs: Any, threads: int) -> Run:
    session = session_of(data, threads)
    given = feeds(session, inputs)
    what = data if isinstance(data, str) else "the exported model"
    _check_rows(session, given, what)
    try:
        session.run(None, given)
    except Exception as error:  # errors of ONNX Runtime have no common base class
        first = (str(error).splitlines() or [""])[0]
        shapes = ", ".join(str(list(value.shape)) for value in given.values())
        raise BenchError(f"{what} does not run on inputs of {shapes}: {first}") from error
    return lambda: session.run(None, given)


def _check_rows(session: Any, given: dict[str, Any], what: str) -> None:
    """Refuse other batch sizes than a constant one, which a file not written by dafp may have."""
    for one in session.get_inputs():
        wanted, rows = one.shape[:1], list(given[one.name].shape[:1])
        if rows and wanted and isinstance(wanted[0], int) and wanted != rows:
            raise BenchError(
                f"{what} takes batches of {wanted[0]} only, not of {rows[0]}; give that batch size "
                f"(--batch {wanted[0]}), or export it with a free one"
            )


def _torch_run(model: nn.Module, inputs: Any) -> Run:
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))

    def run() -> object:
        with torch.inference_mode():
            output = call_on(model, inputs)
        if device.type != "cpu":  # kernels run asynchronously
            torch.accelerator.synchronize(device)
        return output

    return run


def _compiled_run(model: nn.Module, inputs: Any) -> Run:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise ExtraError(
            f"torch.compile needs a C++ compiler, and there is no {compiler!r} here. Install one "
            "(apt install g++), name it in the variable CXX, or leave 'compile' out of --runtime"
        )
    torch.compiler.reset()  # one graph per batch size, no dynamic batch
    compiled: Any = torch.compile(model, dynamic=False)
    run = _torch_run(compiled, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()  # compiles
    return run
