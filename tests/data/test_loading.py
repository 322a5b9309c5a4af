"""Data sets as training sees them: batches, augmentation, order, shares, splits."""

from pathlib import Path

import pytest
import torch

from dafp import data
from dafp.data import DataSet, randomness
from dafp.data.in_memory import Images, augment
from dafp.errors import DataError

MEAN, STD = (0.5, 0.25, 0.125), (0.5, 0.25, 2.0)


def small(train: int = 20, val: int = 0, test: int = 7, **changes: object) -> DataSet:
    """A data set of random 6×5 images; image i has label i, so that a label tells which it was."""

    def images(size: int, seed: int) -> Images:
        random = torch.Generator().manual_seed(seed)
        pixels = torch.randint(0, 256, (size, 3, 6, 5), generator=random, dtype=torch.uint8)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        settings = {"mean": MEAN, "std": STD, "pad": 2, "flip": True, **changes}
        return Images(pixels, torch.arange(size), **settings)

    parts = {"train": images(train, 0), "val": images(val, 1), "test": images(test, 2)}
    return DataSet("small", max(train, test), (3, 6, 5), MEAN, STD, True, 2, parts)


def labels(batches) -> list[int]:
    return torch.cat([y for _, y in batches]).tolist()


# ---- augmentation --------------------------------------------------------------------------------


def slowly(image: torch.Tensor, draw: torch.Tensor, pad: int, flip: bool) -> torch.Tensor:
    """Pad, crop, flip, normalise one 3×H×W image pixel by pixel, as torchvision orders it."""
    channels, height, width = image.shape
    down, right = int(draw[0] * (2 * pad + 1)), int(draw[1] * (2 * pad + 1))
    out = torch.empty(channels, height, width)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                column = width - 1 - j if flip and draw[2] < 0.5 else j
                y, x = i + down - pad, column + right - pad
                inside = 0 <= y < height and 0 <= x < width
                value = image[c, y, x].float() if inside else torch.tensor(0.0)
                out[c, i, j] = (value / 255 - MEAN[c]) / STD[c]
    return out


@pytest.mark.parametrize(("pad", "flip"), [(2, True), (2, False), (0, True), (4, True)])
def test_a_training_batch_is_what_the_slow_way_makes_of_each_image(pad, flip):
    whole = small(pad=pad, flip=flip)
    draws = randomness.draws(20, seed=3, epoch=5)
    images = whole.parts["train"]
    seen = 0
    for x, y in whole.batches("train", batch_size=6, epoch=5, seed=3):
        for got, place in zip(x, y.tolist(), strict=True):
            assert torch.equal(got, slowly(images.pixels[place], draws[place], pad, flip))
            seen += 1
    assert seen == 18


def test_all_places_and_both_directions_occur():
    image = torch.arange(1, 13, dtype=torch.uint8).reshape(1, 2, 2, 3)
    many = augment(image.expand(4000, 2, 2, 3), randomness.draws(4000, seed=0, epoch=0), 1, True)
    kinds, counts = many.flatten(1).unique(dim=0, return_counts=True)
    assert len(kinds) == 3 * 3 * 2
    assert counts.min() > 4000 / 18 * 0.7


def test_padding_is_black_before_normalisation():
    image = torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)
    corner = augment(image, torch.tensor([[0.0, 0.0, 0.9]]), 1, True)
    assert corner[0, :, :, 0].tolist() == [[0, 0], [0, 255]]


def test_without_augmentation_images_are_only_normalised():
    whole = small()
    x, y = next(whole.batches("train", batch_size=4, augment=False))
    plain = whole.parts["train"].pixels[y].float() / 255
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    assert torch.equal(x, (plain - mean) / std)


@pytest.mark.parametrize("part", ["val", "test"])
def test_validation_and_test_are_never_augmented_nor_shuffled(part):
    whole = small(val=7)
    plain = list(whole.batches(part, batch_size=3, augment=False))
    asked = list(whole.batches(part, batch_size=3, augment=True, epoch=4, seed=9))
    assert labels(asked) == list(range(7))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(plain, asked, strict=True))


# ---- order, determinism --------------------------------------------------------------------------


def test_an_epoch_can_be_redone_bit_equal_and_leaves_the_global_generator_alone():
    whole = small()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = list(whole.batches("train", batch_size=4, epoch=2, seed=7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = list(whole.batches("train", batch_size=4, epoch=2, seed=7))
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True)
               for a, b in zip(one, two, strict=True))  # fmt: skip


@pytest.mark.parametrize("other", [{"epoch": 3}, {"seed": 8}])
def test_another_epoch_or_seed_has_another_order_of_the_same_images(other):
    whole = small()
    one = labels(whole.batches("train", batch_size=4, epoch=2, seed=7))
    two = labels(whole.batches("train", batch_size=4, **{"epoch": 2, "seed": 7, **other}))
    assert one != two
    assert sorted(one) == sorted(two) == list(range(20))


def test_an_image_is_augmented_otherwise_in_another_epoch():
    first, second = (randomness.draws(20, seed=0, epoch=epoch) for epoch in (1, 2))
    assert (first != second).all()
    assert not torch.equal(first, randomness.draws(20, seed=1, epoch=1))


def test_an_image_is_augmented_alike_whatever_the_batch_size():
    whole = small()

    def by_label(size: int) -> dict[int, torch.Tensor]:
        batches = whole.batches("train", batch_size=size, epoch=1)
        return {int(k): image for x, y in batches for image, k in zip(x, y, strict=True)}

    one, two = by_label(4), by_label(10)
    assert all(torch.equal(one[k], two[k]) for k in range(20))


def test_the_memory_format_is_the_one_asked_for():
    whole = small()
    last, _ = next(whole.batches("train", batch_size=4))
    first, _ = next(whole.batches("train", batch_size=4, channels_last=False))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert first.is_contiguous()
    assert torch.equal(last, first)


def test_labels_and_images_have_the_types_that_training_needs():
    x, y = next(small().batches("train", batch_size=4))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


# ---- batches and ranks ---------------------------------------------------------------------------


def test_training_drops_the_incomplete_batch_and_test_does_not():
    whole = small(train=20, test=7)
    assert [len(y) for _, y in whole.batches("train", batch_size=6)] == [6, 6, 6]
    assert [len(y) for _, y in whole.batches("test", batch_size=3)] == [3, 3, 1]
    assert (whole.steps("train", batch_size=6), whole.steps("test", batch_size=3)) == (3, 3)


def test_the_ranks_together_see_the_batch_of_one_process():
    whole = small()
    alone = list(whole.batches("train", batch_size=6, epoch=1))
    ranks = [list(whole.batches("train", batch_size=6, epoch=1, rank=k, world=3)) for k in range(3)]
    for step, (x, y) in enumerate(alone):
        assert [len(rank[step][1]) for rank in ranks] == [2, 2, 2]
        assert torch.equal(torch.cat([rank[step][0] for rank in ranks]), x)
        assert torch.equal(torch.cat([rank[step][1] for rank in ranks]), y)


@pytest.mark.parametrize("test", [7, 8, 9, 1])
def test_every_test_image_is_seen_once_over_all_ranks_in_equally_many_batches(test):
    whole = small(test=test)
    ranks = [list(whole.batches("test", batch_size=4, rank=k, world=4)) for k in range(4)]
    assert {len(rank) for rank in ranks} == {whole.steps("test", batch_size=4)}
    assert sorted(label for rank in ranks for label in labels(rank)) == list(range(test))


def test_an_empty_share_still_has_the_shape_of_images():
    x, y = next(small(test=1).batches("test", batch_size=2, rank=1, world=2))
    assert (x.shape, y.shape) == ((0, 3, 6, 5), (0,))


def test_a_part_without_images_has_no_batches():
    assert list(small(val=0).batches("val", batch_size=4)) == []
    assert small(val=0).steps("val", batch_size=4) == 0


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        ("train", {"batch_size": 21}, "batch size 21, but small has only 20 training images"),
        ("train", {"batch_size": 0}, "at least 1"),
        ("train", {"batch_size": 6, "world": 4}, "a multiple of 4"),
        ("train", {"batch_size": 6, "rank": 2, "world": 2}, "ranks are 0 to 1"),
        ("extra", {"batch_size": 6}, "there are train, val, test"),
    ],
)
def test_a_wrong_request_is_refused_before_the_first_batch(part, options, message):
    with pytest.raises(DataError, match=message):
        small().batches(part, **options)


# ---- splits --------------------------------------------------------------------------------------


def test_a_stratified_choice_gives_each_class_its_share():
    classes = torch.tensor([0] * 10 + [1] * 20 + [2] * 5)
    chosen, rest = randomness.stratified(classes, 14, randomness.generator("x"))
    assert classes[chosen].bincount().tolist() == [4, 8, 2]
    assert torch.cat([chosen, rest]).sort().values.tolist() == list(range(35))


def test_largest_remainders_fill_a_choice_that_does_not_divide():
    classes = torch.tensor([0] * 3 + [1] * 6)  # shares of 4 are 1.33 and 2.67
    chosen, _ = randomness.stratified(classes, 4, randomness.generator("x"))
    assert classes[chosen].bincount().tolist() == [1, 3]


def test_digits_are_whole_stratified_and_need_no_files(tmp_path):
    whole = data.load("digits", root=tmp_path / "nothing")
    assert whole.sizes == {"train": 1293, "val": 144, "test": 360}
    assert (whole.classes, whole.shape, whole.flip, whole.pad) == (10, (3, 32, 32), False, 4)
    # 360/1797 of 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180, by largest remainders
    shares = [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert whole.parts["test"].labels.bincount().tolist() == shares


def test_digits_are_normalised_by_their_own_mean_and_deviation():
    whole = data.load("digits", val_share=0)
    x, _ = next(whole.batches("train", batch_size=1437, augment=False))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_a_digit_is_enlarged_bilinearly():
    pixels = data.digits._enlarge(torch.tensor([[0, 8, 16, 0, 0, 0, 0, 0] * 8]))
    row = [0, 0, 1, 3, 5, 7, 9, 11, 13, 15, 14, 10, 6, 2, 0, 0]
    expected = [round(value * 255 / 16) for value in row]
    assert pixels[0, 0, 0, :16].tolist() == expected
    assert torch.equal(pixels[0, 0], pixels[0, 2])


def test_the_validation_set_follows_the_seed_and_the_test_set_does_not():
    one, two = data.load("digits", seed=0), data.load("digits", seed=1)
    assert not torch.equal(one.parts["val"].pixels, two.parts["val"].pixels)
    assert torch.equal(one.parts["test"].pixels, two.parts["test"].pixels)


def test_training_and_validation_images_are_those_of_the_training_set():
    whole = data.load("digits", val_share=0).parts["train"].pixels.flatten(1)
    split = data.load("digits", val_share=0.25)
    both = torch.cat([split.parts[name].pixels for name in ("train", "val")]).flatten(1)
    assert torch.equal(both.unique(dim=0), whole.unique(dim=0))
    assert split.sizes["val"] == 359


def test_a_subset_counts_training_and_validation_images_together():
    whole = data.load("digits", images=100, val_share=0.2)
    assert whole.sizes == {"train": 80, "val": 20, "test": 360}
    assert whole.parts["val"].labels.bincount().tolist() == [2] * 10


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, "choose one of digits, cifar10"),
        ("digits", {"val_share": 1.0}, "val_share 1.0"),
        ("digits", {"val_share": -0.1}, "val_share -0.1"),
        ("digits", {"images": 1438}, "the training set has 1437"),
        ("digits", {"images": 0}, "the training set has 1437"),
        ("digits", {"images": 1, "val_share": 0.9}, "leaves none"),
    ],
)
def test_a_data_set_that_cannot_be_is_refused(name, options, message):
    with pytest.raises(DataError, match=message):
        data.load(name, root=Path("nowhere"), **options)


def test_repr_of_a_data_set_is_one_short_line():
    assert repr(data.load("digits")) == (
        "DataSet('digits', 10 classes, images 3×32×32: 1293 train, 144 val, 360 test)"
    )
