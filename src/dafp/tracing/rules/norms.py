"""Rules of modules that are norms over channels, for residual="couple".

The channels pass. The masked network, which pruning is verified against, computes their statistics
over the kept channels (pruning/masked_norms.py).
"""

from torch import nn

from ...network.channel_norms import ByRank, channel_norms
from ..call import Call, OperatorRule


def norm_rules(model: nn.Module) -> dict[str, OperatorRule]:
    """Name of a module that is a norm over channels -> its rule."""
    return {name: _rule(norms) for name, norms in channel_norms(model).items()}


def _rule(norms: ByRank) -> OperatorRule:
    def rule(call: Call) -> None:
        x = call.tensors[0]
        norm = norms.get(x.dim())
        if norm is None:
            call.keep("normalises over the channels, in a way that is not known")
        else:
            call.normalise(x, norm.kind, norm.axis, norm.eps, whole=norm.whole)

    return rule
