"""Distillation (Hinton et al., 2015): a small network learns what a large one answers."""

from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax


def distillation_loss(
    out: Tensor, y: Tensor, taught: Tensor, share: float, temperature: float
) -> Tensor:
    """(1 − share) · cross-entropy + share · T² · KL(teacher ‖ student), both softened by T.

    `out` and `taught` are the logits of student and teacher for the images whose labels are `y`;
    T² keeps the gradients of both parts alike in size, whatever the temperature.
    """
    apart = kl_div(
        log_softmax(out / temperature, 1),
        log_softmax(taught / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )
    return (1 - share) * cross_entropy(out, y) + share * temperature**2 * apart
