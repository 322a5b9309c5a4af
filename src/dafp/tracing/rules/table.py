"""The rule of each ATen operator: what it does to the labels of its inputs.

A rule is a function of a `Call` (call.py): it gives the output its labels, ties labels that must be
removed together, or keeps labels. layers.py holds the rules of convolutions, linear layers and
norms, pointwise.py those of elementwise operators and reductions, data_movement.py those of views,
slices and concatenations.
"""

from typing import Any

import torch

from ..call import Call, OperatorRule
from .data_movement import (
    cat,
    channel_shuffle,
    expand,
    factory,
    glu,
    pixel_shuffle,
    pixel_unshuffle,
    rearrange,
    repeat,
    restride,
    roll,
    select,
    split,
    squeeze,
    stack,
    take_slice,
    unbind,
    untouched,
    view,
    weight_norm,
    write,
)
from .indexing import decide, embedding, gather, index, index_select, put, rank
from .layers import batch_norm, convolution, group_norm, layer_norm, matmul
from .pointwise import image_only, pad, per_channel, pointwise, reduction, softmax, unary

aten = torch.ops.aten


def unknown(call: Call) -> None:
    call.keep(f"operator {call.where.op!r} is not known; pass a rule for it with rules=")


def rule_without_entry(func: Any) -> OperatorRule:
    """The rule of an operator not in RULES: that of its functional form, pointwise, or unknown."""
    packet = func.overloadpacket
    if str(packet) in LIBRARIES:
        return LIBRARIES[str(packet)]
    functional = getattr(aten, packet.__name__.rstrip("_"), None)
    if packet.__name__.endswith("_") and functional in RULES:
        return RULES[functional]
    if torch.Tag.pointwise in func.tags:
        return pointwise
    return unknown


def _rules(rule: OperatorRule, names: str) -> dict[Any, OperatorRule]:
    return {getattr(aten, n): rule for n in names.split() if hasattr(aten, n)}


RULES: dict[Any, OperatorRule] = {
    aten.convolution: convolution,
    **_rules(matmul, "mm addmm bmm baddbmm"),
    **_rules(batch_norm, """native_batch_norm _native_batch_norm_legit cudnn_batch_norm
        _native_batch_norm_legit_no_training miopen_batch_norm _batch_norm_with_update
        _batch_norm_no_update"""),
    aten.native_group_norm: group_norm,
    aten.native_layer_norm: layer_norm,
    **_rules(unary, """clone _to_copy detach alias contiguous lift_fresh native_dropout
        bernoulli"""),
    **_rules(pointwise, """hardswish prelu _prelu_kernel rsub log_sigmoid_forward
        rrelu_with_noise rrelu_with_noise_functional"""),
    **_rules(image_only, """max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d
        avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
        adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d fractional_max_pool2d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d
        upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa upsample_linear1d
        upsample_trilinear3d reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d"""),
    aten.constant_pad_nd: pad,
    **_rules(reduction, """sum mean amax amin max min var std var_mean std_mean prod logsumexp
        linalg_vector_norm argmax argmin any all norm median"""),
    **_rules(softmax, "_softmax _safe_softmax _log_softmax cumsum cumprod"),
    **_rules(view, "view _unsafe_view _reshape_alias reshape flatten unflatten"),
    **_rules(rearrange, "permute transpose t flip unsqueeze"),
    **_rules(squeeze, "squeeze"),
    **_rules(expand, "expand"),
    aten.slice: take_slice,
    aten.select: select,
    **_rules(split, "split split_with_sizes chunk unsafe_split unsafe_split_with_sizes"),
    aten.unbind: unbind,
    aten.cat: cat,
    aten.stack: stack,
    aten.repeat: repeat,
    aten.roll: roll,
    aten.glu: glu,
    aten._weight_norm_interface: weight_norm,
    aten.index_select: index_select,
    aten.index: index,
    aten.embedding: embedding,
    **_rules(put, "index_put index_put_ _unsafe_index_put"),
    aten.gather: gather,
    **_rules(rank, "topk sort argsort"),
    **_rules(decide, "nonzero masked_select unique _unique2 unique_consecutive bincount"),
    **_rules(channel_shuffle, "channel_shuffle native_channel_shuffle"),
    aten.pixel_shuffle: pixel_shuffle,
    aten.pixel_unshuffle: pixel_unshuffle,
    aten.copy_: write,
    aten.as_strided_: restride,
    **_rules(factory, """new_zeros new_ones new_full new_empty zeros_like ones_like empty_like
        full_like rand_like randn_like"""),
    **_rules(untouched, "fill_ zero_ bernoulli_ uniform_ normal_ random_ sym_size"),
}  # fmt: skip


# operators of libraries that dafp does not import
LIBRARIES: dict[str, OperatorRule] = {
    "torchvision.nms": decide,
    "torchvision.roi_align": per_channel,
    "torchvision.roi_pool": per_channel,
}
