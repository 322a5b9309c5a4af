"""All randomness in the data: generators by (seed, epoch), stratified choices, order, shares."""

import hashlib

import torch
from torch import Tensor

from ..errors import DataError


def generator(*words: object) -> torch.Generator:
    """A generator seeded by these words; the global one is not used."""
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


def split(labels: Tensor, images: int | None, val_share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the validation images, stratified by class."""
    if not 0 <= val_share < 1:
        raise DataError(f"val_share {val_share} is not a share of the images; give 0 to below 1")
    chosen = torch.arange(len(labels), device="cpu")
    if images is not None:
        if not 1 <= images <= len(labels):
            raise DataError(f"images {images}: the training set has {len(labels)}; give 1 to that")
        chosen, _ = stratified(labels, images, generator("subset", seed))
    count = round(val_share * len(chosen))
    val, train = stratified(labels[chosen], count, generator("val", seed))
    if not len(train):
        raise DataError(f"val_share {val_share} of {len(chosen)} images leaves none to train on")
    return chosen[train], chosen[val]


def draws(size: int, *, seed: int, epoch: int) -> Tensor:
    """Three numbers in [0, 1) for each image of an epoch: down, right, flip.

    They depend on the image, not on its position in a batch: the augmented images are the same for
    any batch size and any number of ranks.
    """
    random = generator("augment", seed, epoch)
    return torch.rand(size, 3, generator=random, dtype=torch.float64, device="cpu")


def order(size: int, *, shuffle: bool, seed: int, epoch: int) -> Tensor:
    """The order of the images in an epoch: shuffled, or as stored."""
    if not shuffle:
        return torch.arange(size, device="cpu")
    return torch.randperm(size, generator=generator("order", seed, epoch), device="cpu")


def share(batch: Tensor, rank: int, world: int) -> Tensor:
    """The part of a batch for one rank; the sizes of the parts differ by one at most."""
    return batch.tensor_split(world)[rank]
