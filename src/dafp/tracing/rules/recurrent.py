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
    given = call.args[0] if call.args else call.kwargs.get("input")
    inputs = [x for x in call.tensors if x is not given]
    call.keep(_REASON, inputs)  # the first state
    if not isinstance(given, Tensor):
        call.keep("a packed sequence, which is not followed")
        return
    rows = given.numel() // given.shape[-1]
    first = _first_weights(call.module)
    for name, tensor in call.module.named_parameters():
        inner = tensor.dim() == 2 and not any(tensor is weight for weight in first)
        for dim in range(2 if inner else 1):
            labels = call.channels(tensor, dim)
            if labels is not None:
                call.tracker.keep(labels, call.where, _REASON)
        if name.startswith("weight_ih"):
            call.produce(tensor, 0)
        if tensor.dim() == 2:
            consumed = None if inner else call.channels(tensor, 1)
            size = tensor.shape[0] * (tensor.shape[1] if consumed is None else 1)
            call.count(rows * size, consumed)
    for weight in first:
        call.consume(call.channels(given, -1), weight, 1, 0, given)


def _first_weights(module: nn.Module) -> list[Tensor]:
    names = ("weight_ih_l0", "weight_ih_l0_reverse")
    return [getattr(module, name) for name in names if hasattr(module, name)]


RECURRENT = {nn.RNNBase: recurrent}
