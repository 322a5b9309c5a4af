"""Distillation (Hinton et al., 2015): train a small network on the outputs of a large one."""

from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax


def distillation_loss(
    out: Tensor, y: Tensor, teacher_logits: Tensor, share: float, temperature: float
) -> Tensor:
    """(1 − share) · cross-entropy + share · T² · KL(teacher ‖ student), both softened by T.

    `out` are the logits of the student for images with the labels `y`. The factor T² keeps the
    gradients of both terms at a similar size for every temperature.
    """
    apart = kl_div(
        log_softmax(out / temperature, 1),
        log_softmax(teacher_logits / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )
    return (1 - share) * cross_entropy(out, y) + share * temperature**2 * apart
