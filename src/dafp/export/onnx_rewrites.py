"""Rewrites of an ONNX graph that keep its outputs: fold BN and feature selections into weights.

BN is folded by the rewrite rules of onnxscript. Our own code does what onnxscript lacks: copying
parameters that several layers share, as its rules skip them; folding a Gather with constant indices
into its consumers; writing a Reshape as Flatten.
"""

import math
from typing import Any

from ..extras import need

# A selection that keeps a smaller share of the channels than this stays a Gather: multiplying by
# zeros would cost more than copying (break-even in ONNX Runtime on PreResNet-29: between 0.1 and
# 0.2, at batch 1 and 32).
LEAST_SHARE = 0.2

# Operators that compute each channel from that channel only. BN is widened too; the others have
# no weights.
CHANNELWISE = frozenset(
    {
        "BatchNormalization",
        "Relu",
        "LeakyRelu",
        "Elu",
        "Selu",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Tanh",
        "Softplus",
        "Mish",
        "Gelu",
        "Identity",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
    }
)

LAYERS = ("Conv", "ConvTranspose", "Gemm")


def fold_batch_norms(model: Any) -> int:
    """Fold BN into the convolution or linear layer that feeds it, by the rules of onnxscript.

    W'_c = W_c · γ_c / √(σ²_c + ε)  and  b'_c = (b_c − μ_c) · γ_c / √(σ²_c + ε) + β_c

    The rules apply where BN is the only consumer of the layer and all parameters are constant.
    Returns the number of BN nodes that were folded.
    """
    common = need("onnxscript.rewriter.rules.common", "onnx", "folding")
    rewriter = need("onnxscript.rewriter", "onnx", "folding")
    _unshare_parameters(model)
    rules = rewriter.RewriteRuleSet(
        [
            common.fuse_batchnorm_into_conv_rule,
            common.fuse_batchnorm_into_conv_transpose_rule,
            common.fuse_batchnorm_into_gemm_rule,
        ]
    )
    folded: int = rules.apply_to_model(model)
    _remove_unused(model)
    return folded


def plain_flattens(model: Any) -> int:
    """Write a Reshape from (batch, C, …) to (batch, C·…) as Flatten, which needs no shape input."""
    ir = need("onnx_ir", "onnx", "folding")
    found = 0
    for node in [node for node in model.graph if node.op_type == "Reshape"]:
        source, target = node.inputs[0].shape, node.outputs[0].shape
        if source is None or target is None or len(target) != 2 or len(source) < 2:
            continue
        inner = [size for size in source[1:] if isinstance(size, int)]
        if len(inner) < len(source) - 1 or [source[0], math.prod(inner)] != list(target):
            continue
        flat = ir.node("Flatten", [node.inputs[0]], {"axis": 1})
        old, new = node.outputs[0], flat.outputs[0]
        new.name, new.shape, new.dtype = f"{old.name}.flat", ir.Shape(target), old.dtype
        model.graph.insert_before(node, flat)
        _replace(model, old, new)
        model.graph.remove(node, safe=True)
        found += 1
    _remove_unused(model)
    return found


def fold_selections(model: Any, least_share: float = LEAST_SHARE) -> int:
    """Remove Gathers of channels: consumers take all channels, with zero weights for the rest.

    BN, activations and pools between a Gather and its consumers are widened. Returns the number of
    Gathers that were removed.
    """
    folded = 0
    for gather in [node for node in model.graph if node.op_type == "Gather"]:
        plan = _widening(model, gather, least_share)
        if plan is None:
            continue
        index, wide, between, consumers = plan
        for node in between:
            _widen_norm(model, node, index, wide)
            _set_width(node.outputs[0], wide)
        for node in consumers:
            _widen_consumer(model, node, index, wide)
        _replace(model, gather.outputs[0], gather.inputs[0])
        model.graph.remove(gather, safe=True)
        folded += 1
    _remove_unused(model)
    return folded


def _unshare_parameters(model: Any) -> None:
    """Copy weights and biases that several nodes share, where a BN could be folded into them.

    The rules of onnxscript skip layers whose parameters are shared.
    """
    for norm in [node for node in model.graph if node.op_type == "BatchNormalization"]:
        layer = norm.inputs[0].producer()
        if layer is None or layer.op_type not in LAYERS or not _has_one_use(model, norm.inputs[0]):
            continue
        if layer.inputs[-1] is None:  # the rules expect a missing bias to be left out
            layer.resize_inputs(len(layer.inputs) - 1)
        for position in range(1, len(layer.inputs)):
            numbers = _numbers(layer.inputs[position])
            if numbers is not None and len(layer.inputs[position].uses()) > 1:
                _set_constant(model, layer, position, numbers)


Widening = tuple[Any, int, list[Any], list[Any]]


def _widening(model: Any, gather: Any, least_share: float) -> Widening | None:
    """(index, width before it, nodes between, consumers); None if the Gather has to stay."""
    source = gather.inputs[0]
    index = _numbers(gather.inputs[1])
    if index is None or index.ndim != 1 or source.shape is None or len(source.shape) < 2:
        return None
    wide = source.shape[1]
    axis = _attribute(gather, "axis", 0) % len(source.shape)
    if axis != 1 or not isinstance(wide, int) or len(set(index.tolist())) != len(index):
        return None
    if len(index) < least_share * wide:
        return None
    between: list[Any] = []
    consumers: list[Any] = []
    ends = _follow(model, gather.outputs[0], between, consumers)
    return (index, wide, between, consumers) if ends else None


def _follow(model: Any, value: Any, between: list[Any], consumers: list[Any]) -> bool:
    """Collect the nodes that use the selection. False if one of them cannot be widened."""
    if value in model.graph.outputs:
        return False
    for node, position in value.uses():
        if position == 0 and _is_consumer(node):
            consumers.append(node)
        elif position == 0 and _is_channelwise(node):
            constants = [_numbers(v) for v in node.inputs[1:] if v is not None]
            if any(c is None for c in constants):
                return False
            between.append(node)
            if not _follow(model, node.outputs[0], between, consumers):
                return False
        else:
            return False
    return True


def _is_channelwise(node: Any) -> bool:
    """Whether each output channel depends on the input channel of the same index only."""
    shape = node.inputs[0].shape
    if len(node.outputs) != 1 or shape is None:
        return False
    if node.op_type == "Flatten":
        return _attribute(node, "axis", 1) == 1 and all(size == 1 for size in shape[2:])
    if node.op_type in ("ReduceMean", "ReduceMax"):
        axes = _numbers(node.inputs[1]) if _has(node, 1) else None
        return axes is not None and min(axis % len(shape) for axis in axes.tolist()) > 1
    return node.op_type in CHANNELWISE


def _is_consumer(node: Any) -> bool:
    if len(node.inputs) < 2 or _numbers(node.inputs[1]) is None:
        return False
    if node.op_type == "Conv":
        return bool(_attribute(node, "group", 1) == 1)
    return node.op_type == "Gemm" and not _attribute(node, "transA", 0)


def _widen_consumer(model: Any, node: Any, index: Any, wide: int) -> None:
    np = need("numpy", "onnx", "folding")
    old = _numbers(node.inputs[1])
    axis = 0 if node.op_type == "Gemm" and not _attribute(node, "transB", 0) else 1
    shape = list(old.shape)
    shape[axis] = wide
    new = np.zeros(shape, old.dtype)
    new[index if axis == 0 else (slice(None), index)] = old
    _set_constant(model, node, 1, new)


def _widen_norm(model: Any, node: Any, index: Any, wide: int) -> None:
    """Widen a BN: γ, β, μ of an unselected channel are 0 and σ² is 1, so that its output is 0."""
    np = need("numpy", "onnx", "folding")
    if node.op_type != "BatchNormalization":
        return
    for position, filler in ((1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0)):
        old = _numbers(node.inputs[position])
        new = np.full(wide, filler, old.dtype)
        new[index] = old
        _set_constant(model, node, position, new)


def _set_width(value: Any, wide: int) -> None:
    ir = need("onnx_ir", "onnx", "folding")
    if value.shape is not None:
        value.shape = ir.Shape([value.shape[0], wide, *value.shape[2:]])


def _has_one_use(model: Any, value: Any) -> bool:
    return len(value.uses()) == 1 and value not in model.graph.outputs


def _has(node: Any, position: int) -> bool:
    return len(node.inputs) > position and node.inputs[position] is not None


def _numbers(value: Any) -> Any:
    """The constant that a value holds, or None if it is computed."""
    known = value is not None and value.const_value is not None
    return value.const_value.numpy() if known else None


def _attribute(node: Any, name: str, default: Any) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def _set_constant(model: Any, node: Any, position: int, numbers: Any) -> None:
    """Give one input of one node a new constant; other nodes that share the old one keep it."""
    ir = need("onnx_ir", "onnx", "folding")
    old = node.inputs[position] if len(node.inputs) > position else None
    base = old.name if old is not None else f"{node.inputs[1].name}.bias"
    names = (f"{base}.folded{n or ''}" for n in range(len(model.graph.initializers) + 1))
    name = next(name for name in names if name not in model.graph.initializers)
    value = ir.Value(name=name, const_value=ir.tensor(numbers, name=name))
    value.shape, value.dtype = ir.Shape(numbers.shape), value.const_value.dtype
    model.graph.register_initializer(value)
    if len(node.inputs) <= position:
        node.resize_inputs(position + 1)
    node.replace_input_with(position, value)


def _replace(model: Any, old: Any, new: Any) -> None:
    """Replace `old` by `new` everywhere; an output of the model keeps its name."""
    for node, position in list(old.uses()):
        node.replace_input_with(position, new)
    for number, output in enumerate(model.graph.outputs):
        if output is old:
            new.name, old.name = old.name, f"{old.name}.old"
            model.graph.outputs[number] = new


def _remove_unused(model: Any) -> None:
    need("onnx_ir.passes.common", "onnx", "folding").RemoveUnusedNodesPass()(model)
