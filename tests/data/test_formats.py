"""Readers of the official files, written here in small; wrong, missing and hostile ones."""

import dataclasses
import hashlib
import io
import os
import pickle
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from dafp import data
from dafp.data import folders, sources
from dafp.data.unpickling import unpickle
from dafp.errors import DataError

RANDOM = np.random.default_rng(0)


def pixels(count: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Write a file under the root and let its MD5 be the published one."""

    def write(key: str, content: bytes) -> None:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(content)
        monkeypatch.setitem(sources.MD5, key, hashlib.md5(content).hexdigest())

    return write


def binary(images: np.ndarray, *heads: list[int]) -> bytes:
    """Records as the binary release has them."""
    rows = zip(*heads, images, strict=True)
    return b"".join(bytes(labels) + image.tobytes() for *labels, image in rows)


def python2(images: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """What Python 2 and numpy 1 wrote for {"data": array, "labels": list}, opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01K" + bytes([len(images)]) + b"M\x00\x0c\x86cnumpy\ndtype\n" + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )  # fmt: skip
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + listed + b"u."


def packed(directory: str, files: dict[str, bytes]) -> bytes:
    """A .tar.gz of a directory."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{directory}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def cifar10_files() -> tuple[np.ndarray, dict[str, bytes]]:
    """Two images in each of the six files; image i has label i % 10."""
    images = pixels(12)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    return images, {
        name: binary(images[2 * k : 2 * k + 2], [2 * k % 10, (2 * k + 1) % 10])
        for k, name in enumerate(names)
    }


def seen(whole: data.DataSet, part: str) -> tuple[np.ndarray, list[int]]:
    return whole.parts[part].pixels.numpy(), whole.parts[part].labels.tolist()


# ---- CIFAR ---------------------------------------------------------------------------------------


def test_cifar10_is_read_from_its_binary_files(put, tmp_path):
    images, files = cifar10_files()
    for name, content in files.items():
        put(f"cifar-10-batches-bin/{name}", content)
    whole = data.load("cifar10", tmp_path, val_share=0)
    assert (whole.classes, whole.shape, whole.flip, whole.pad) == (10, (3, 32, 32), True, 4)
    read, labels = seen(whole, "train")
    assert np.array_equal(read, images[:10])
    assert labels == list(range(10))
    read, labels = seen(whole, "test")
    assert np.array_equal(read, images[10:])
    assert labels == [0, 1]


def test_an_archive_is_read_without_being_unpacked(put, tmp_path):
    images, files = cifar10_files()
    put("cifar-10-binary.tar.gz", packed("cifar-10-batches-bin", files))
    whole = data.load("cifar10", tmp_path, val_share=0)
    assert np.array_equal(seen(whole, "train")[0], images[:10])
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_cifar100_takes_the_fine_label_of_the_binary_files(put, tmp_path):
    images = pixels(4)
    put("cifar-100-binary/train.bin", binary(images[:3], [1, 2, 3], [97, 98, 99]))
    put("cifar-100-binary/test.bin", binary(images[3:], [4], [50]))
    whole = data.load("cifar100", tmp_path, val_share=0)
    assert whole.classes == 100
    assert seen(whole, "train")[1] == [97, 98, 99]
    assert np.array_equal(seen(whole, "test")[0], images[3:])


def test_cifar10_is_read_from_what_python_2_pickled(put, tmp_path):
    images = pixels(12).reshape(12, 3072)
    for number in range(1, 6):
        part = images[2 * number - 2 : 2 * number]
        put(f"cifar-10-batches-py/data_batch_{number}", python2(part, [number, 9]))
    put("cifar-10-batches-py/test_batch", python2(images[10:], [7, 8]))
    whole = data.load("cifar10", tmp_path, val_share=0)
    assert np.array_equal(seen(whole, "train")[0].reshape(10, 3072), images[:10])
    assert seen(whole, "train")[1] == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert seen(whole, "test")[1] == [7, 8]


def test_cifar100_takes_the_fine_label_of_a_pickle_of_today(put, tmp_path):
    images = pixels(3).reshape(3, 3072)
    for name, part, fine in (("train", images[:2], [60, 61]), ("test", images[2:], [62])):
        value = {"data": part, "coarse_labels": [0] * len(fine), "fine_labels": fine}
        put(f"cifar-100-python/{name}", pickle.dumps(value, protocol=4))
    whole = data.load("cifar100", tmp_path, val_share=0)
    assert seen(whole, "train")[1] == [60, 61]
    assert np.array_equal(seen(whole, "train")[0].reshape(2, 3072), images[:2])


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_a_data_set_that_is_not_there_is_refused_with_where_to_get_it_and_where_to_put_it(
    name, tmp_path
):
    with pytest.raises(DataError, match=r"there is no .* download http.*--root") as caught:
        data.load(name, tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_file_is_named(put, tmp_path):
    for name, content in cifar10_files()[1].items():
        put(f"cifar-10-batches-bin/{name}", content)
    (tmp_path / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1])])
def test_a_truncated_or_changed_file_is_refused(damage, put, tmp_path):
    for name, content in cifar10_files()[1].items():
        put(f"cifar-10-batches-bin/{name}", content)
    path = tmp_path / "cifar-10-batches-bin/data_batch_2.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"data_batch_2\.bin has MD5 .* download it again"):
        data.load("cifar10", tmp_path)


def test_a_changed_archive_is_refused(put, tmp_path):
    put("cifar-10-binary.tar.gz", packed("cifar-10-batches-bin", cifar10_files()[1]))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="has MD5"):
        data.load("cifar10", tmp_path)


def test_an_archive_without_a_file_is_refused(put, tmp_path):
    files = cifar10_files()[1]
    del files["test_batch.bin"]
    put("cifar-10-binary.tar.gz", packed("cifar-10-batches-bin", files))
    with pytest.raises(DataError, match=r"does not hold test_batch\.bin"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (binary(pixels(1), [1], [2])[:-5], "truncated"),
        (b"", "truncated"),
        (binary(pixels(1), [1], [100]), "labels outside 0 to 99"),
    ],
)
def test_a_binary_file_of_another_shape_is_refused(content, message, put, tmp_path):
    put("cifar-100-binary/train.bin", content)
    put("cifar-100-binary/test.bin", content)
    with pytest.raises(DataError, match=message):
        data.load("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "holds a list"),
        ({"data": [1], "fine_labels": [1]}, "no images with labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1]}, "for 1 labels"),
        ({"data": np.zeros((1, 3072), np.float32), "fine_labels": [1]}, "float32"),
        ({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [-1]}, "labels outside"),
    ],
)
def test_a_pickle_of_something_else_is_refused(value, message, put, tmp_path):
    put("cifar-100-python/train", pickle.dumps(value, protocol=4))
    put("cifar-100-python/test", pickle.dumps(value, protocol=4))
    with pytest.raises(DataError, match=message):
        data.load("cifar100", tmp_path)


# ---- hostile pickles -----------------------------------------------------------------------------


class Hostile:
    """Runs a command when it is unpickled the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_that_runs_a_command_is_refused_and_nothing_runs(tmp_path):
    mark = tmp_path / "was-here"
    content = pickle.dumps({"data": Hostile(mark), "labels": []})
    with pytest.raises(DataError, match=r"asks for posix\.system, which is refused"):
        unpickle(io.BytesIO(content), "x")
    assert not mark.exists()
    pickle.loads(content)  # the danger is real
    assert mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{}], dtype=object),
        np.zeros(2, dtype=[("a", "u1")]),
        np.float64(1),
        {1, 2},
        np.ndarray,
        eval,
    ],
    ids=["objects", "records", "scalar", "set", "class", "function"],
)
def test_only_plain_values_and_arrays_of_numbers_are_read(value):
    with pytest.raises(DataError, match="refused"):
        unpickle(io.BytesIO(pickle.dumps({"data": value}, protocol=4)), "x")


@pytest.mark.parametrize("value", [
    np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.eye(3)[:2]),
    np.zeros((0, 2), bool),
])  # fmt: skip
def test_arrays_of_numbers_are_read_whatever_their_order(value):
    read = unpickle(io.BytesIO(pickle.dumps([value, "a", b"b", 1], protocol=4)), "x")
    assert read[1:] == ["a", b"b", 1]
    assert np.array_equal(read[0], value)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x04", pickle.dumps({"a": 1})[:-2]])
def test_what_is_no_pickle_is_refused(content):
    with pytest.raises(DataError, match="batch_9 is not a pickle"):
        unpickle(io.BytesIO(content), "batch_9")


# ---- SVHN ----------------------------------------------------------------------------------------


def mat(**variables: np.ndarray) -> bytes:
    stream = io.BytesIO()
    savemat(stream, variables)
    return stream.getvalue()


def test_svhn_is_read_and_its_label_10_is_the_digit_0(put, tmp_path):
    images = pixels(3)
    shown = images.transpose(2, 3, 1, 0)
    put("svhn/train_32x32.mat", mat(X=shown[..., :2], y=np.array([[10], [9]], np.uint8)))
    put("svhn/test_32x32.mat", mat(X=shown[..., 2:], y=np.array([[1]], np.uint8)))
    whole = data.load("svhn", tmp_path, val_share=0)
    assert np.array_equal(seen(whole, "train")[0], images[:2])
    assert seen(whole, "train")[1] == [0, 9]
    assert seen(whole, "test")[1] == [1]
    assert whole.flip is False


def test_a_changed_mat_file_is_refused(put, tmp_path):
    images = pixels(1).transpose(2, 3, 1, 0)
    for key in ("svhn/train_32x32.mat", "svhn/test_32x32.mat"):
        put(key, mat(X=images, y=np.array([[1]], np.uint8)))
    (tmp_path / "svhn/test_32x32.mat").write_bytes(mat(X=images, y=np.array([[2]], np.uint8)))
    with pytest.raises(DataError, match=r"test_32x32\.mat has MD5"):
        data.load("svhn", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"junk" * 100, r"cannot be read as a \.mat file"),
        (mat(X=np.zeros((32, 32, 3, 1), np.uint8)), "does not hold X and y"),
        (mat(X=np.zeros((32, 32, 3, 2), np.uint8), y=np.ones((1, 1))), "for 1 labels"),
        (mat(X=np.zeros((32, 32, 3, 1), np.uint8), y=np.zeros((1, 1))), "outside 1 to 10"),
    ],
)
def test_a_wrong_mat_file_is_refused(content, message, put, tmp_path):
    put("svhn/train_32x32.mat", content)
    put("svhn/test_32x32.mat", content)
    with pytest.raises(DataError, match=message):
        data.load("svhn", tmp_path)


# ---- image trees ---------------------------------------------------------------------------------


def tree(
    root: Path, *parts: str, count: int = 5, classes: tuple[str, ...] = ("cat", "dog")
) -> Path:
    """Images of 300×260 noise, `count` for each class of each part."""
    for part in parts:
        for name in classes:
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                noise = RANDOM.integers(0, 256, (26, 30, 3), dtype=np.uint8)
                image = Image.fromarray(noise).resize((300, 260), Image.Resampling.NEAREST)
                image.save(root / part / name / f"{number}.png")
    return root


def test_training_images_may_be_cropped_from_the_centre(tmp_path):
    own = data.OwnImages(size=224, crop=False, flip=False)
    whole = data.load("folder", tree(tmp_path, "train", "test"), own=own)
    (x, _), (again, _) = (
        next(whole.batches("train", batch_size=4, epoch=epoch, augment=augment))
        for epoch, augment in ((0, True), (0, False))
    )
    assert torch.equal(x, again)
    moved = data.load("folder", tmp_path, own=dataclasses.replace(own, crop=True))
    assert not torch.equal(next(moved.batches("train", batch_size=4))[0], x)


def test_one_sentence_says_what_was_found_and_that_classes_are_not_weighted(tmp_path):
    tree(tmp_path, "train", "test", count=4, classes=("cat", "dog"))
    (tmp_path / "train/cat/5.png").write_bytes(b"junk")
    for name in ("0", "1"):
        (tmp_path / f"train/dog/{name}.png").unlink()
    own = data.OwnImages(skip_unreadable=True)
    found = data.load("folder", tmp_path, val_share=0.0, own=own).sentence()
    assert found.startswith(
        "images: 6 train, 0 val, 8 test; 2 classes, from 33.3% (dog) to 66.7% (cat) of the "
        "training images, not weighted; 1 left out: "
    )
    assert "train/cat/5.png cannot be decoded" in found


def test_a_tree_without_validation_images_splits_them_off(tmp_path):
    whole = data.load("folder", tree(tmp_path, "train", "test"), val_share=0.2)
    assert whole.sizes == {"train": 8, "val": 2, "test": 10}
    assert (whole.classes, whole.shape, whole.flip) == (2, (3, 224, 224), True)
    assert whole.parts["val"].labels.tolist() == [0, 1]
    assert set(whole.parts["train"].paths).isdisjoint(whole.parts["val"].paths)


def test_the_only_held_out_part_of_a_tree_is_the_test_set(tmp_path):
    whole = data.load("imagenet", tree(tmp_path / "imagenet", "train", "val").parent)
    assert whole.sizes == {"train": 9, "val": 1, "test": 10}
    assert whole.mean == (0.485, 0.456, 0.406)


def test_a_tree_with_both_keeps_its_own_validation_images(tmp_path):
    root = tree(tmp_path, "train", "val", "test")
    whole = data.load("folder", root, images=4, val_share=0.5)
    assert whole.sizes == {"train": 4, "val": 10, "test": 10}
    for part in ("train", "val", "test"):
        assert {path.parts[-3] for path in whole.parts[part].paths} == {part}


def test_a_test_image_is_resized_cut_from_the_centre_and_normalised(tmp_path):
    whole = data.load("folder", tree(tmp_path, "train", "test", count=2))
    x, y = next(whole.batches("test", batch_size=4))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert y.tolist() == [0, 0, 1, 1]
    with Image.open(tmp_path / "test/dog/0.png") as image:  # 300 × 260 becomes 295 × 256
        shown = np.asarray(image.resize((295, 256), Image.Resampling.BILINEAR))[16:240, 35:259]
    expected = (torch.tensor(shown).float() / 255 - torch.tensor(whole.mean)) / torch.tensor(
        whole.std
    )
    assert torch.equal(x[2], expected.permute(2, 0, 1))


def test_a_training_image_is_cropped_and_mirrored_by_its_draw():
    whole = np.arange(256 * 300 * 3, dtype=np.uint32).astype(np.uint8).reshape(256, 300, 3)
    cut = folders.crop(whole, (0.999, 0.5, 0.9))  # 33 places down, 77 to the right
    assert np.array_equal(cut, whole[32:256, 38:262])
    assert np.array_equal(folders.crop(whole, (0.999, 0.5, 0.1)), cut[:, ::-1])


def test_an_epoch_of_files_is_the_same_again_and_differs_from_the_next(tmp_path):
    whole = data.load("folder", tree(tmp_path, "train", "test"), val_share=0)

    def epoch(number: int) -> torch.Tensor:
        return torch.cat([x for x, _ in whole.batches("train", batch_size=2, epoch=number)])

    assert torch.equal(epoch(1), epoch(1))
    assert not torch.equal(epoch(1), epoch(2))


def test_the_ranks_share_the_files_of_a_batch(tmp_path):
    whole = data.load("folder", tree(tmp_path, "train", "test", count=1))
    ranks = [list(whole.batches("test", batch_size=4, rank=k, world=4)) for k in range(4)]
    assert [rank[0][1].tolist() for rank in ranks] == [[0], [1], [], []]
    assert ranks[3][0][0].shape == (0, 3, 224, 224)


def test_batches_of_files_can_be_left_early(tmp_path):
    whole = data.load("imagenet", tree(tmp_path, "train", "test"), val_share=0)
    batches = whole.batches("train", batch_size=1)
    before = threading.active_count()
    next(batches)
    assert threading.active_count() > before
    batches.close()
    assert threading.active_count() == before


def test_a_folder_is_normalised_by_what_its_images_have(tmp_path):
    root = tree(tmp_path, "train", "test", count=1)
    for path in root.glob("train/*/*.png"):
        Image.new("RGB", (256, 256), (255, 0, 51)).save(path)
    whole = data.load("folder", root, val_share=0)
    assert whole.mean == (1.0, 0.0, 0.2)
    assert whole.std == (0.01, 0.01, 0.01)


def spoil(root: Path, content: bytes) -> None:
    (root / "test/dog/3.png").unlink()
    (root / "test/dog/3.jpg").write_bytes(content)


def jpeg() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"junk", b"", jpeg()[:1000]], ids=["junk", "empty", "half"])
def test_an_image_that_cannot_be_decoded_is_named(content, tmp_path):
    root = tree(tmp_path, "train", "test")
    spoil(root, content)
    with pytest.raises(DataError, match=r"test/dog/3\.jpg cannot be decoded"):
        data.load("folder", root)
    whole = data.load("imagenet", root)  # too many to decode them all first
    with pytest.raises(DataError, match=r"test/dog/3\.jpg cannot be decoded"):
        list(whole.batches("test", batch_size=4))


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_class_directory_is_named(part, tmp_path):
    root = tree(tmp_path, "train", "test", count=1)
    (root / part / "cat/0.png").unlink()
    with pytest.raises(DataError, match=f"{part}/cat holds no images"):
        data.load("folder", root)


def test_a_tree_without_training_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no directories, one for each class"):
        data.load("folder", tmp_path)
    with pytest.raises(DataError, match=r"test.* but no train"):
        data.load("folder", tree(tmp_path, "test", count=1))
    with pytest.raises(DataError, match="there is no directory"):
        data.load("folder", tmp_path / "nowhere")


@pytest.mark.parametrize("parts", [("train",), ("",)])
def test_images_that_are_not_split_are_split_by_the_seed_each_class_with_its_share(parts, tmp_path):
    root = tree(tmp_path, *parts, count=20)
    whole = data.load("folder", root, val_share=0.25)
    assert whole.sizes == {"train": 24, "val": 8, "test": 8}
    assert whole.class_names == ("cat", "dog")
    for part in ("train", "val", "test"):
        labels = whole.parts[part].labels
        assert int((labels == 0).sum()) == len(labels) // 2
    paths = [set(whole.parts[part].paths) for part in ("train", "val", "test")]
    assert len(set.union(*paths)) == 40
    again, other = (data.load("folder", root, val_share=0.25, seed=seed) for seed in (0, 1))
    assert again.parts["test"].paths == whole.parts["test"].paths
    assert other.parts["test"].paths != whole.parts["test"].paths


def test_own_images_may_be_gray_transparent_tiny_nested_and_of_16_bits(tmp_path):
    root = tree(tmp_path, "", count=3)
    deep = root / "dog/more/still"
    deep.mkdir(parents=True)
    Image.new("L", (40, 50), 128).save(deep / "gray.png")
    Image.new("RGBA", (40, 50), (255, 0, 0, 0)).save(deep / "transparent.png")
    Image.new("RGB", (3, 2), (0, 255, 0)).save(deep / "tiny.png")
    Image.fromarray(np.full((40, 50), 65535, np.uint16)).save(deep / "sixteen.png")
    own = data.OwnImages(size=32, mean=(0.0,) * 3, std=(1.0,) * 3)
    whole = data.load("folder", root, val_share=0, own=own)
    assert whole.shape == (3, 32, 32)
    assert sum(whole.sizes.values()) == 10
    first = {}
    for part in ("train", "test"):
        paths = whole.parts[part].paths
        places = [torch.arange(len(paths))]
        x, _ = next(whole.parts[part].stream(places, None))
        first |= {path.stem: image[:, 0, 0].tolist() for path, image in zip(paths, x, strict=True)}
    assert first["gray"] == pytest.approx([128 / 255] * 3)
    assert first["transparent"] == [1.0, 1.0, 1.0]
    assert first["tiny"] == [0.0, 1.0, 0.0]
    assert first["sixteen"] == [1.0, 1.0, 1.0]


def test_all_unreadable_images_are_listed_at_once_or_left_out(tmp_path):
    root = tree(tmp_path, "", count=5)
    for name in ("cat/1.png", "dog/2.png"):
        (root / name).write_bytes(b"junk")
    with pytest.raises(DataError, match=r"2 of 10 .*cat/1\.png.*dog/2\.png.*--skip-unreadable"):
        data.load("folder", root)
    whole = data.load("folder", root, own=data.OwnImages(skip_unreadable=True))
    assert sum(whole.sizes.values()) == 8


def test_images_that_do_not_fit_into_memory_are_read_again_with_the_same_result(
    tmp_path, monkeypatch
):
    root = tree(tmp_path, "train", "test")
    held = data.load("folder", root, val_share=0)
    assert len(held.parts["train"].cache) == 10
    monkeypatch.setattr(folders, "CACHE", 3 * 256 * 295 * 3)
    read = data.load("folder", root, val_share=0)
    assert read.parts["train"].cache == ()
    for part in ("train", "test"):
        for one, other in zip(*(d.batches(part, batch_size=4) for d in (held, read)), strict=True):
            assert torch.equal(one[0], other[0])


def test_mean_and_standard_deviation_belong_together(tmp_path):
    with pytest.raises(DataError, match="three numbers each"):
        data.load("folder", tree(tmp_path, ""), own=data.OwnImages(mean=(0.5, 0.5, 0.5)))


def test_a_class_that_training_does_not_know_is_refused(tmp_path):
    root = tree(tmp_path, "train", "test", count=1)
    tree(root, "test", count=1, classes=("cow",))
    with pytest.raises(DataError, match=r"a class 'cow' that .*train has not"):
        data.load("folder", root)


def test_a_tree_without_classes_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match="no directories"):
        data.load("folder", tmp_path)
