"""`dafp.bake`: layers with computed weights or hidden heads become plain ones."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

from ..errors import ModelError, VerificationError
from .calling import FORWARD_ERRORS, call_model, eval_mode, fixed_seed, tensors_in
from .model_copy import deep_copy
from .named_tensors import modules_of
from .plain_attention import plain_attention_of

TOLERANCE = 1e-4  # largest difference of outputs, relative to the largest output
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CALLS = (torch.conv1d, torch.conv2d, torch.conv3d)
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def bake(model: nn.Module, example: Any = None) -> nn.Module:
    """Make computed weights plain, so that their channels can be pruned.

    A copy of the model in which `weight_norm`, `spectral_norm` and other parametrizations are
    replaced by their result, and convolutions that standardise their weight (as in timm's `nf_*`
    and `resnetv2_*` networks) by convolutions with the standardised weight. In eval mode it
    computes what the model computes. In training the weights are no longer normalised.
    `nn.MultiheadAttention` becomes attention with linear layers, whose heads can be pruned.

    Args:
        model: any `nn.Module`; it is not changed
        example: the input of the model, as for `dafp.trace`: the outputs of both are compared on
            it. Standardised convolutions are compared, each by itself, also without it

    Returns:
        The copy. Its parameters have other names and numbers than those of the model: to load a
        pruned one, give `dafp.load` a baked model.

    Raises:
        VerificationError: The copy computes something else.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3)), nn.ReLU(),
        ...     nn.Conv2d(8, 2, 3),
        ... )
        >>> x = torch.randn(1, 3, 8, 8)
        >>> dafp.trace(dafp.bake(model, x), x)
        ChannelGraph of 1 group: 8 of 10 filters can be pruned, 2 are kept
          0: 8 channels
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected an nn.Module, not a {type(model).__name__}")
    baked = deep_copy(model)
    trains = {module for _, module in modules_of(baked) if module.training}
    with eval_mode(baked), torch.no_grad():  # spectral_norm iterates in train mode
        for name, module in list(modules_of(baked)):
            _remove_norms(module)
            plain = plain_attention_of(module) or plain_convolution(module)
            if plain is not None:
                baked = _with_module(baked, name, module, plain)
                if module in trains:
                    trains.update(plain.modules())
    for _, module in modules_of(baked):
        module.training = module in trains
    if example is not None:
        _compare(model, baked, example)
    return baked


def has_computed_weight(module: nn.Module) -> bool:
    """Whether `bake` may change this layer: a guess by one call of it."""
    if parametrize.is_parametrized(module) or any(True for _ in _old_norms(module)):
        return True
    if _convolution_kind(module) is None:
        return False
    probe = deep_copy(module).eval()  # it may have state and hooks of the user's
    probe._forward_hooks.clear()
    probe._forward_pre_hooks.clear()
    with torch.no_grad(), fixed_seed(probe):
        try:
            call, _ = _recorded(probe, _noise(probe, 0))
        except FORWARD_ERRORS:
            return False
    return call is not None and not torch.equal(call["weight"], _weight(module))


class SameConv2d(nn.Conv2d):
    """A convolution with the padding SAME of TensorFlow, which depends on the size of the input."""

    def forward(self, x: Tensor) -> Tensor:
        sides: list[int] = []
        for dim in (-1, -2):
            size, stride = x.shape[dim], self.stride[dim]
            reach = (self.kernel_size[dim] - 1) * self.dilation[dim] + 1
            both = max(0, (math.ceil(size / stride) - 1) * stride + reach - size)
            sides += [both // 2, both - both // 2]
        return super().forward(pad(x, sides))


def plain_convolution(module: nn.Module) -> nn.Module | None:
    """A plain convolution that computes the same with a constant weight; None if there is none.

    None as well for a convolution whose weight is a plain parameter.
    """
    kind = _convolution_kind(module)
    if kind is None or parametrize.is_parametrized(module):
        return None
    try:
        inputs = [_noise(module, extra) for extra in (0, 1)]
        (first, one), (second, other) = (_recorded(module, x) for x in inputs)
        if first is None or second is None or torch.equal(first["weight"], _weight(module)):
            return None
        if not torch.equal(first["weight"], second["weight"]):
            return None  # it depends on the input
        for as_padded in (kind, SameConv2d) if kind is nn.Conv2d else (kind,):
            plain = _made(as_padded, first, module)
            if _alike(one, plain(inputs[0])) and _alike(other, plain(inputs[1])):
                return plain
    except FORWARD_ERRORS:
        return None  # it takes other inputs than a convolution
    return None


def _convolution_kind(module: nn.Module) -> type[nn.Module] | None:
    """The kind of a convolution with a forward of its own; None for all other modules."""
    kind = next((kind for kind in _CONVOLUTIONS if isinstance(module, kind)), None)
    methods = ("forward", "_conv_forward")
    if kind and all(getattr(type(module), name) is getattr(kind, name) for name in methods):
        return None
    return kind


def _weight(module: Any) -> Tensor:
    weight: Tensor = module.weight
    return weight


def _noise(module: Any, extra: int) -> Tensor:
    """An input for a convolution, a little larger than its kernel."""
    generator = torch.Generator().manual_seed(extra)
    sizes = [
        4 + extra + stride + (kernel - 1) * dilation
        for kernel, stride, dilation in zip(
            module.kernel_size, module.stride, module.dilation, strict=True
        )
    ]
    noise = torch.randn(2, module.in_channels, *sizes, generator=generator)
    return noise.to(module.weight)


class _Recorder(TorchFunctionMode):
    """Records the arguments of every convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _CALLS:
            self.calls.append({**dict(zip(_ARGUMENTS, args, strict=False)), **(kwargs or {})})
        return func(*args, **(kwargs or {}))


def _recorded(module: nn.Module, x: Tensor) -> tuple[dict[str, Any] | None, Tensor]:
    """The arguments of the only convolution that the module calls (None if not one), its output."""
    with _Recorder() as recorder:
        output: Tensor = module(x)
    return (recorder.calls[0] if len(recorder.calls) == 1 else None), output


def _made(kind: type[Any], call: dict[str, Any], module: Any) -> nn.Module:
    weight, bias = call["weight"], call.get("bias")
    groups = call.get("groups", 1)
    plain: nn.Module = kind(
        weight.shape[1] * groups,
        weight.shape[0],
        module.kernel_size,
        call.get("stride", 1),
        call.get("padding", 0),
        call.get("dilation", 1),
        groups,
        bias is not None,
        device="meta",  # no weights are drawn: that takes long
    )
    plain.weight = nn.Parameter(weight.clone(), requires_grad=module.weight.requires_grad)
    if bias is not None:
        plain.bias = nn.Parameter(bias.clone(), requires_grad=module.weight.requires_grad)
    return plain


def _remove_norms(module: Any) -> None:
    """Replace parametrized tensors by their value, in place."""
    if parametrize.is_parametrized(module):
        # not remove_parametrizations: it changes the class, which the original model shares
        values = {name: getattr(module, name).clone() for name in module.parametrizations}
        learned = {
            name: any(p.requires_grad for p in module.parametrizations[name].parameters())
            for name in values
        }
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(value, requires_grad=learned[name]))
    for hook in list(_old_norms(module)):
        remove = remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm
        remove(module, hook.name)


def _old_norms(module: nn.Module) -> Iterator[Any]:
    """The hooks of the older `torch.nn.utils.weight_norm` and `spectral_norm`."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            yield hook


def _with_module(model: nn.Module, name: str, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with `new` wherever `old` is; the model itself may be `old`."""
    if not name:
        return new
    for _, parent in list(modules_of(model)):
        for key, child in list(parent._modules.items()):
            if child is old:
                parent._modules[key] = new
    return model


def _compare(model: nn.Module, baked: nn.Module, example: Any) -> None:
    original = deep_copy(model)
    with eval_mode(original), eval_mode(baked), torch.no_grad():
        wanted, found = (tensors_in(call_model(net, example)) for net in (original, baked))
    if len(wanted) != len(found) or not all(map(_alike, wanted, found)):
        raise VerificationError(
            "the baked model computes something else than the model, on the example: a weight is "
            "computed in a way that bake does not know. Prune the model without it"
        )


def _alike(wanted: Tensor, found: Tensor) -> bool:
    if wanted.shape != found.shape or not wanted.is_floating_point():
        return torch.equal(wanted, found)
    gap = (wanted - found).abs().max() if wanted.numel() else torch.zeros(())
    return float(gap) <= TOLERANCE * max(float(wanted.abs().max()), 1e-30)
