"""The rule of nn.LSTM, nn.GRU and nn.RNN: channels of the input can go, hidden units stay.

Cells (nn.LSTMCell, nn.GRUCell) need no rule: their operators are known.
"""

from torch import Tensor, nn

from ..call import Call

_REASON = (
    "its hidden units stay: torch's recurrent layers compute gates and states from all of them"
)


def recurrent(call: Call) -> None:
    """The input is consumed by the first layer, once per direction."""
    given = call.args[0] if call.args else call.kwargs["input"]
    packed = not isinstance(given, Tensor)
    x = given.data if packed else given
    first = [] if packed else _first_weights(call.module)
    call.keep("read by a recurrent layer as a packed sequence", [x] * packed)
    call.keep(_REASON, [state for state in call.tensors if state is not x])
    for name, tensor in call.module.named_parameters():
        read = any(tensor is weight for weight in first)
        for dim in range(1 if read else tensor.dim()):
            labels = call.channels(tensor, dim)
            if labels is not None:
                call.tracker.keep(labels, call.where, _REASON)
        if name.startswith("weight_ih"):
            call.produce(tensor, 0)
        if tensor.dim() == 2:
            consumed = call.channels(tensor, 1) if read else None
            size = tensor.shape[0] * (tensor.shape[1] if consumed is None else 1)
            call.count(x.numel() // x.shape[-1] * size, consumed)
    for weight in first:
        call.consume(call.channels(x, -1), weight, 1, 0, x)


def _first_weights(module: nn.Module) -> list[Tensor]:
    names = ("weight_ih_l0", "weight_ih_l0_reverse")
    return [getattr(module, name) for name in names if hasattr(module, name)]


RECURRENT = {nn.RNNBase: recurrent}
