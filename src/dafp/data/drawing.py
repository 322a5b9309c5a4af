"""All chance in the data: generators from (seed, epoch), stratified choices, order and shares."""

import hashlib

import torch
from torch import Tensor

from ..errors import DataError


def generator(*words: object) -> torch.Generator:
    """A generator of its own for these words; the global one is never touched."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))


def stratified(labels: Tensor, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Choose `count` places so that each class has its share; (chosen, rest), both in order.

    Shares are rounded down, and the classes with the largest remainders give one more.
    """
    if not 0 <= count <= len(labels):
        raise DataError(f"cannot choose {count} of {len(labels)} images")
    sizes = torch.bincount(labels)
    shares = sizes * count // max(len(labels), 1)
    remainders = sizes * count - shares * len(labels)
    missing = count - int(shares.sum())
    shares[remainders.argsort(descending=True, stable=True)[:missing]] += 1
    shuffled = torch.randperm(len(labels), generator=random, device="cpu")
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    starts = (sizes.cumsum(0) - sizes)[labels[by_class]]
    ranks = torch.arange(len(labels), device="cpu") - starts  # place within its class
    taken = ranks < shares[labels[by_class]]
    return by_class[taken].sort().values, by_class[~taken].sort().values


def draws(size: int, *, seed: int, epoch: int) -> Tensor:
    """Three numbers in [0, 1) for each image of an epoch: down, right, flip.

    They belong to the image, not to its place in a batch: any batch size and any number of ranks
    sees the same augmented images.
    """
    random = generator("augment", seed, epoch)
    return torch.rand(size, 3, generator=random, dtype=torch.float64, device="cpu")


def order(size: int, *, shuffle: bool, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: anew each time, or as the images lie."""
    if not shuffle:
        return torch.arange(size, device="cpu")
    return torch.randperm(size, generator=generator("order", seed, epoch), device="cpu")


def share(batch: Tensor, rank: int, world: int) -> Tensor:
    """The part of a batch that one rank sees; parts differ in size by one at most."""
    return batch.tensor_split(world)[rank]
