"""The learning rate schedule of a method in a comparison, as in its original paper."""

import dataclasses

from ..training.config import Config
from . import find


def own_schedule(config: Config) -> Config:
    """The configuration with learning rate decay in `sparse`, if the method's original has it.

    The automatic λ needs a constant rate. Network Slimming trains by the usual schedule, so
    there the rate falls at the milestones of `finetune`. A method without fine-tuning trains for
    the epochs of both stages, by the schedule of `finetune`.
    """
    method, sparse, finetune = find(config.method), config.sparse, config.finetune
    if not method.finetunes:
        sparse = dataclasses.replace(finetune, epochs=sparse.epochs + finetune.epochs)
    elif method.decays_lr and not sparse.milestones:
        sparse = dataclasses.replace(sparse, milestones=finetune.milestones, decay=finetune.decay)
    return dataclasses.replace(config, sparse=sparse)


def epochs_of(config: Config) -> str:
    """The epochs of all training stages that the final weights went through: "15 + 10"."""
    method, epochs = find(config.method), []
    if config.after != "finetune" and method.finetunes:  # earlier stages only gave the widths
        return f"{config.finetune.epochs}" + (" ÷ MACs left" if config.after == "scratch-B" else "")
    if method.from_baseline or method.train is None:
        epochs.append(config.baseline.epochs)
    if method.train is not None:
        epochs.append(config.sparse.epochs)
    if method.finetunes:
        epochs.append(config.finetune.epochs)
    return " + ".join(str(count) for count in epochs if count)
