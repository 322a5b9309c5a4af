"""Record the calls of convolutions and linear layers in a model, and run each of them alone."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..export.output_check import session_of
from ..extras import need
from ..network.calling import call_model, fixed_seed
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from .timing import Run

KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class LayerCall:
    """One call of a convolution or linear layer, with everything that its latency depends on."""

    kernel: tuple[int, ...]  # () for a linear layer
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int  # 0: depthwise, as many as channels
    image: tuple[int, ...]  # of the input, without batch and channels
    inputs: int  # channels
    outputs: int
    weight: str = ""  # name of the tensor in the model; "" for a hypothetical layer

    def at(self, inputs: int, outputs: int) -> "LayerCall":
        """The same layer with other widths, rounded to multiples of its groups."""
        if not self.groups:
            return replace(self, inputs=outputs, outputs=outputs)
        step = self.groups
        inputs, outputs = (max(1, round(w / step)) * step for w in (inputs, outputs))
        return replace(self, inputs=inputs, outputs=outputs)

    @property
    def activations(self) -> int:
        """Number of output values for one image."""
        sizes = zip(self.image, self.kernel, self.stride, self.padding, self.dilation, strict=False)
        made = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in sizes]
        return self.outputs * math.prod(made if self.kernel else self.image)


def layers_of(model: nn.Module, example: Any) -> list[LayerCall]:
    """Every call of a convolution or linear layer in one forward pass, in order."""
    ours = deep_copy(model).eval()
    names = {id(tensor): name for name, tensor in tensors_of(ours).items()}
    found: list[LayerCall] = []

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and isinstance(args[0], Tensor):
            name = names.get(id(module.weight), "")
            found.append(replace(_described(module, args[0]), weight=name))

    hooks = [m.register_forward_hook(note) for m in ours.modules() if isinstance(m, KINDS)]
    with torch.no_grad(), fixed_seed(ours):
        call_model(ours, example)
    for hook in hooks:
        hook.remove()
    return found


def run_of(layer: LayerCall, runtime: str, batch: int, threads: int) -> Run:
    """A function that runs the layer once, on random inputs."""
    x = torch.rand(_shape(layer, batch), device="cpu")
    groups = layer.groups or layer.outputs
    weight = torch.rand((layer.outputs, layer.inputs // groups, *layer.kernel), device="cpu")
    if runtime == "onnx":
        return _session_run(layer, x, weight, groups, threads)
    convolve: Any = {
        0: functional.linear,
        1: functional.conv1d,
        2: functional.conv2d,
        3: functional.conv3d,
    }[len(layer.kernel)]
    rest = (None, layer.stride, layer.padding, layer.dilation, groups) if layer.kernel else ()

    def run() -> object:
        with torch.inference_mode():
            return convolve(x, weight, *rest)

    return run


def _described(module: nn.Module, x: Tensor) -> LayerCall:
    if isinstance(module, nn.Linear):
        image = tuple(x.shape[1:-1])
        return LayerCall((), (), (), (), 1, image, module.in_features, module.out_features)
    assert isinstance(module, nn.modules.conv._ConvNd)
    depthwise = module.groups == module.in_channels == module.out_channels > 1
    padding = module.padding
    if isinstance(padding, str):  # "same" or "valid"
        ends = zip(module.kernel_size, module.dilation, strict=True)
        padding = tuple(d * (k - 1) // 2 if padding == "same" else 0 for k, d in ends)
    return LayerCall(
        module.kernel_size,
        module.stride,
        padding,
        module.dilation,
        0 if depthwise else module.groups,
        tuple(x.shape[2:]),
        module.in_channels,
        module.out_channels,
    )


def _shape(layer: LayerCall, batch: int) -> tuple[int, ...]:
    if layer.kernel:
        return (batch, layer.inputs, *layer.image)
    return (batch, *layer.image, layer.inputs)


def _session_run(layer: LayerCall, x: Tensor, weight: Tensor, groups: int, threads: int) -> Run:
    """An ONNX model of one node, built directly: the exporter would take seconds for each."""
    onnx = need("onnx", "onnx", "timing layers in ONNX Runtime")
    helper, numbers = onnx.helper, onnx.numpy_helper
    if layer.kernel:
        node = helper.make_node(
            "Conv",
            ["x", "w"],
            ["y"],
            kernel_shape=layer.kernel,
            strides=layer.stride,
            pads=[*layer.padding, *layer.padding],
            dilations=layer.dilation,
            group=groups,
        )
    else:
        weight = weight.t().contiguous()
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", float32, list(x.shape))],
        [helper.make_tensor_value_info("y", float32, None)],
        [numbers.from_array(weight.numpy(), "w")],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session, given = session_of(model.SerializeToString(), threads), {"x": x.numpy()}
    return lambda: session.run(None, given)
