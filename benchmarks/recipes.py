"""Torch-Pruning's own recipes for transformers, with the ratio that leaves the share asked for.

After `examples/transformers/prune_timm_vit.py` and `prune_hf_swin.py` of Torch-Pruning: dimensions
of heads are pruned, equally many in each head, and the attributes that count them are set
afterwards. Other networks get its pruner with the layers of the outputs ignored.
"""

import copy
import types
from collections.abc import Callable
from typing import Any

import torch_pruning
from timm.models.vision_transformer import Attention
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import dafp
from families import Subject

Importance = Callable[[nn.Module], Any]  # prepares a copy of the network, and returns the scores
STEPS = 7  # of the bisection


def magnitude(model: nn.Module) -> Any:
    return torch_pruning.importance.MagnitudeImportance(p=2)


def to_target(
    subject: Subject,
    removed: float,
    importance: Importance = magnitude,
    bottleneck: bool = False,
) -> nn.Module:
    """The network nearest to this share of multiply-adds; bisection on the ratio."""
    example = subject.inputs[0]
    wanted = (1 - removed) * dafp.cost(subject.model, example).macs
    low, high = 0.0, 1.0
    best: tuple[float, nn.Module] | None = None
    for _ in range(STEPS):
        ratio = (low + high) / 2
        small = prune(subject, ratio, importance, bottleneck)
        macs = dafp.cost(small, example).macs
        low, high = (ratio, high) if macs > wanted else (low, ratio)
        if best is None or abs(macs - wanted) < best[0]:
            best = abs(macs - wanted), small
    assert best is not None
    return best[1]


def name_of(model: nn.Module) -> str:
    """Which recipe a network gets; empty for none of its own."""
    if any(isinstance(module, Attention) for module in model.modules()):
        return "timm ViT"
    return "HF Swin" if _swin_attention(model) else ""


def prune(
    subject: Subject, ratio: float, importance: Importance, bottleneck: bool = False
) -> nn.Module:
    """Prune a copy. With `bottleneck`, only the inside of blocks gets narrower."""
    small = copy.deepcopy(subject.model)
    ignored = [
        module for name, module in small.named_modules()
        if name in subject.outputs or (bottleneck and name.endswith(("mlp.fc2", "attn.proj")))
    ]  # fmt: skip
    heads, pruners, kinds = _heads_of_vit(small), {}, None
    swin = _swin_attention(small)
    for module in swin:
        counted = (module.query, module.key, module.value)
        heads |= dict.fromkeys(counted, module.num_attention_heads)
    if swin:
        merging = {type(m) for m in small.modules() if type(m).__name__ == "SwinPatchMerging"}
        pruners = {kind: MergingPruner() for kind in merging}
        kinds = (nn.Linear, nn.LayerNorm, *merging)
    pruner = torch_pruning.pruner.MetaPruner(
        small, subject.inputs[0], importance=importance(small), pruning_ratio=ratio,
        ignored_layers=ignored, num_heads=heads, prune_num_heads=False, prune_head_dims=True,
        customized_pruners=pruners, root_module_types=kinds or ROOTS, round_to=2,
        output_transform=_first_output if swin else None,
    )  # fmt: skip
    for group in pruner.step(interactive=True):
        group.prune()
    for module in small.modules():
        if isinstance(module, Attention):
            module.num_heads = pruner.num_heads[module.qkv]
            module.head_dim = module.qkv.out_features // (3 * module.num_heads)
    for module in _swin_attention(small):
        module.attention_head_size = module.query.out_features // module.num_attention_heads
        module.all_head_size = module.query.out_features
    small.zero_grad()
    return small


ROOTS = (nn.modules.conv._ConvNd, nn.Linear, nn.LSTM)


class MergingPruner(torch_pruning.BasePruningFunc):  # type: ignore[misc]
    """Swin joins four neighbours: a channel of the stream is four inputs of norm and reduction."""

    def prune_out_channels(self, layer: Any, idxs: list[int]) -> Any:
        torch_pruning.prune_linear_out_channels(layer.reduction, idxs)
        return layer

    def prune_in_channels(self, layer: Any, idxs: list[int]) -> Any:
        width = self.get_in_channels(layer)
        all_four = [index + part * width for part in range(4) for index in idxs]
        torch_pruning.prune_linear_in_channels(layer.reduction, all_four)
        torch_pruning.prune_layernorm_out_channels(layer.norm, all_four)
        return layer

    def get_out_channels(self, layer: Any) -> int:
        return int(layer.reduction.out_features)

    def get_in_channels(self, layer: Any) -> int:
        return int(layer.reduction.in_features) // 4


def _heads_of_vit(model: nn.Module) -> dict[nn.Module, int]:
    """The heads of each fused layer; its attention gets a forward for other widths."""
    found: dict[nn.Module, int] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = types.MethodType(_narrow_attention, module)  # type: ignore[method-assign]
            found[module.qkv] = module.num_heads
    return found


def _swin_attention(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if type(m).__name__ == "SwinSelfAttention"]


def _first_output(out: Any) -> Tensor:
    first: Tensor = out.logits.sum()
    return first


def _narrow_attention(self: Any, x: Tensor, **_: Any) -> Tensor:
    """The forward of timm's attention, for a width other than that of the stream."""
    batch, tokens, _ = x.shape
    qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    x = scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
    return self.proj(x.transpose(1, 2).reshape(batch, tokens, -1))
