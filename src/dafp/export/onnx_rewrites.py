"""Rewrites of an ONNX graph that leave what it computes: BN into weights, selections into zeros."""

import math
from typing import Any

from ..extras import need

# A selection that reads less of the stream than this stays a Gather: the zeros would cost more than
# the copy (break-even in ONNX Runtime on PreResNet-29: between 0.1 and 0.2, at batch 1 and 32).
LEAST_SHARE = 0.2

# what computes each channel by itself; BN is widened along, the others have no weights
CHANNELWISE = frozenset({
    "BatchNormalization", "Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish",
    "Tanh", "Softplus", "Mish", "Gelu", "Identity", "MaxPool", "AveragePool", "GlobalAveragePool",
    "GlobalMaxPool",
})  # fmt: skip


def fold_batch_norms(model: Any) -> int:
    """Multiply BN's scale into the convolution or linear layer in front of it, where exact.

    W'_c = W_c · γ_c / √(σ²_c + ε)  and  b'_c = (b_c − μ_c) · γ_c / √(σ²_c + ε) + β_c

    It is exact if BN alone reads what the layer makes, and all of it is constant.
    """
    folded = 0
    for norm in [node for node in model.graph if node.op_type == "BatchNormalization"]:
        maker = norm.inputs[0].producer()
        if maker is None or not _alone(model, norm.inputs[0]) or len(norm.outputs) > 1:
            continue
        numbers = [_numbers(value) for value in norm.inputs[1:]]
        if any(n is None for n in numbers) or not _fold_into(model, maker, norm, numbers):
            continue
        _replace(model, norm.outputs[0], maker.outputs[0])
        model.graph.remove(norm, safe=True)
        folded += 1
    _clean(model)
    return folded


def plain_flattens(model: Any) -> int:
    """Write a Reshape from (batch, C, …) to (batch, C·…) as Flatten: no shape is computed."""
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
    _clean(model)
    return found


def fold_selections(model: Any, least_share: float = LEAST_SHARE) -> int:
    """Let readers of a selection read the whole stream, with zeros for what they do not select.

    The Gather vanishes; BN, activations and pools between it and its readers are widened along.
    """
    folded = 0
    for gather in [node for node in model.graph if node.op_type == "Gather"]:
        plan = _widening(model, gather, least_share)
        if plan is None:
            continue
        index, wide, between, readers = plan
        for node in between:
            _widen_norm(model, node, index, wide)
            _set_width(node.outputs[0], wide)
        for node in readers:
            _widen_reader(model, node, index, wide)
        _replace(model, gather.outputs[0], gather.inputs[0])
        model.graph.remove(gather, safe=True)
        folded += 1
    _clean(model)
    return folded


def _fold_into(model: Any, maker: Any, norm: Any, numbers: list[Any]) -> bool:
    """Give the maker its scaled weights. False if it is no layer that can take them."""
    np = need("numpy", "onnx", "folding")
    weight = _numbers(maker.inputs[1]) if len(maker.inputs) > 1 else None
    if weight is None or not _plain(maker):
        return False
    gamma, beta, mean, var = (n.astype("float64") for n in numbers)
    scale = gamma / np.sqrt(var + _attribute(norm, "epsilon", 1e-5))
    bias = _numbers(maker.inputs[2]) if _has(maker, 2) else np.zeros(len(scale))
    if bias is None or bias.shape != scale.shape:
        return False
    new = _scaled(maker, weight.astype("float64"), scale)
    shift = (bias.astype("float64") - mean) * scale + beta
    _set_constant(model, maker, 1, new.astype(weight.dtype))
    _set_constant(model, maker, 2, shift.astype(weight.dtype))
    return True


def _scaled(maker: Any, weight: Any, scale: Any) -> Any:
    """The weights, each output channel times its scale."""
    if maker.op_type == "Conv":
        return weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    if maker.op_type == "Gemm":
        return weight * (scale[:, None] if _attribute(maker, "transB", 0) else scale[None])
    groups = _attribute(maker, "group", 1)  # ConvTranspose: inputs by outputs of each group
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    return (parts * scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)


def _plain(node: Any) -> bool:
    if node.op_type == "Gemm":
        factors = _attribute(node, "alpha", 1.0), _attribute(node, "beta", 1.0)
        return factors == (1.0, 1.0) and not _attribute(node, "transA", 0)
    return node.op_type in ("Conv", "ConvTranspose")


Widening = tuple[Any, int, list[Any], list[Any]]


def _widening(model: Any, gather: Any, least_share: float) -> Widening | None:
    """(index, width of the stream, nodes between, readers), or None if it has to stay."""
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
    readers: list[Any] = []
    ends = _follow(model, gather.outputs[0], between, readers)
    return (index, wide, between, readers) if ends else None


def _follow(model: Any, value: Any, between: list[Any], readers: list[Any]) -> bool:
    """Collect what hears the selection. False if anything but a known reader does."""
    if value in model.graph.outputs:
        return False
    for node, position in value.uses():
        if position == 0 and _is_reader(node):
            readers.append(node)
        elif position == 0 and _is_channelwise(node):
            constants = [_numbers(v) for v in node.inputs[1:] if v is not None]
            if any(c is None for c in constants):
                return False
            between.append(node)
            if not _follow(model, node.outputs[0], between, readers):
                return False
        else:
            return False
    return True


def _is_channelwise(node: Any) -> bool:
    """Does it leave every channel in its place, and to itself?"""
    shape = node.inputs[0].shape
    if len(node.outputs) != 1 or shape is None:
        return False
    if node.op_type == "Flatten":
        return _attribute(node, "axis", 1) == 1 and all(size == 1 for size in shape[2:])
    if node.op_type in ("ReduceMean", "ReduceMax"):
        axes = _numbers(node.inputs[1]) if _has(node, 1) else None
        return axes is not None and min(axis % len(shape) for axis in axes.tolist()) > 1
    return node.op_type in CHANNELWISE


def _is_reader(node: Any) -> bool:
    if len(node.inputs) < 2 or _numbers(node.inputs[1]) is None:
        return False
    if node.op_type == "Conv":
        return bool(_attribute(node, "group", 1) == 1)
    return node.op_type == "Gemm" and not _attribute(node, "transA", 0)


def _widen_reader(model: Any, node: Any, index: Any, wide: int) -> None:
    np = need("numpy", "onnx", "folding")
    old = _numbers(node.inputs[1])
    axis = 0 if node.op_type == "Gemm" and not _attribute(node, "transB", 0) else 1
    shape = list(old.shape)
    shape[axis] = wide
    new = np.zeros(shape, old.dtype)
    new[index if axis == 0 else (slice(None), index)] = old
    _set_constant(model, node, 1, new)


def _widen_norm(model: Any, node: Any, index: Any, wide: int) -> None:
    """γ, β, μ of a channel that nobody reads are 0 and σ² is 1, so that its output is 0."""
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


def _alone(model: Any, value: Any) -> bool:
    return len(value.uses()) == 1 and value not in model.graph.outputs


def _has(node: Any, position: int) -> bool:
    return len(node.inputs) > position and node.inputs[position] is not None


def _numbers(value: Any) -> Any:
    """The constant behind a value, or None if it is computed."""
    known = value is not None and value.const_value is not None
    return value.const_value.numpy() if known else None


def _attribute(node: Any, name: str, default: Any) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def _set_constant(model: Any, node: Any, position: int, numbers: Any) -> None:
    """A new constant for one input; the old one stays with others that share it."""
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
    """Let everything that read `old` read `new`, an output of the model under its old name."""
    for node, position in list(old.uses()):
        node.replace_input_with(position, new)
    for number, output in enumerate(model.graph.outputs):
        if output is old:
            new.name, old.name = old.name, f"{old.name}.old"
            model.graph.outputs[number] = new


def _clean(model: Any) -> None:
    need("onnx_ir.passes.common", "onnx", "folding").RemoveUnusedNodesPass()(model)
