"""Checkpoints: what goes in comes out bit-equal, and nothing else comes in."""

import errno
import json
import math
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim import SGD, AdamW

from dafp.errors import FileError
from dafp.files.checkpoint import KEY, load_into, read_checkpoint, write_checkpoint
from support.training import images, step, tiny_net


def same(a, b) -> bool:
    """Equal in value, type and nesting; NaN equals NaN."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return (
            type(a) is type(b)
            and len(a) == len(b)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


def back(tmp_path, state):
    write_checkpoint(tmp_path / "state", state)
    return read_checkpoint(tmp_path / "state")


@pytest.mark.parametrize(
    "state",
    [
        {}, {"a": None, "b": True, "c": 1, "d": 0.1, "e": "text", "f": "ä\n\"'😀"},
        {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "zero": -0.0, "tiny": 5e-324},
        {"big": 2**200, "step": 1e-5},
        {1: "int key", "1": "text key", None: 0, False: 1}, {"": {"": {"": 0}}},
        {"list": [1, [2, (3, ())]], "tuple": (1, [2]), "empty": [[], (), {}]},
        {"dict": {"dict": {"tensor": 1}}, "tensor": {"tensor": "x"}, "list": {"list": [0]}},
        {"t": torch.tensor(3.5), "none": torch.zeros(0, 4), "n": torch.tensor([math.nan, -0.0])},
        {str(d): torch.arange(5).to(d) for d in (torch.int64, torch.bool, torch.uint8,
                                                 torch.float16, torch.bfloat16, torch.float64)},
        {"a/b": torch.ones(1), "a": {"b": torch.zeros(2)}},
        {1: torch.ones(1), "1": torch.zeros(2)},
        [torch.ones(2), (torch.zeros(1), 1)],
    ],
    ids=str,
)  # fmt: skip
def test_a_state_comes_back_as_it_was(state, tmp_path):
    assert same(back(tmp_path, {"state": state}), {"state": state})


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_the_state_of_an_optimizer_comes_back_and_trains_on_bit_equal(kind, tmp_path):
    net, twin = tiny_net(), tiny_net(seed=1)
    options = {"momentum": 0.9} if kind is SGD else {"betas": (0.8, 0.95)}
    optimizer = kind(net.parameters(), 0.01, **options)
    for _ in range(3):
        step(net, optimizer, *images())
    state = {"optimizer": optimizer.state_dict(), "model": net.state_dict()}
    found = back(tmp_path, state)
    assert same(found["optimizer"], state["optimizer"])
    assert same(found["model"], OrderedDict(state["model"]))
    twin.load_state_dict(found["model"])
    again = kind(twin.parameters(), 1.0)
    again.load_state_dict(found["optimizer"])
    step(net, optimizer, *images())
    step(twin, again, *images())
    assert same(net.state_dict(), twin.state_dict())


def test_tensors_that_are_views_or_share_memory_come_back_whole(tmp_path):
    base = torch.arange(24.0).view(2, 3, 4)
    state = {"turned": base.mT, "part": base[:, 1], "all": base, "again": base}
    found = back(tmp_path, state)
    assert all(torch.equal(found[key], tensor) for key, tensor in state.items())


def test_images_first_memory_does_not_change_the_numbers(tmp_path):
    tensor = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert torch.equal(back(tmp_path, {"x": tensor})["x"], tensor)


def test_equal_states_give_equal_bytes(tmp_path):
    net = tiny_net()
    for name in ("a", "b"):
        write_checkpoint(tmp_path / name, {"rows": [{"loss": 0.1}], "model": net.state_dict()})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_writing_leaves_nothing_but_the_file(tmp_path):
    write_checkpoint(tmp_path / "state", {"x": torch.ones(3)})
    write_checkpoint(tmp_path / "state", {"x": torch.zeros(3)})
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert read_checkpoint(tmp_path / "state")["x"].tolist() == [0, 0, 0]


def test_no_pickle_is_in_the_file(tmp_path):
    write_checkpoint(tmp_path / "state", {"x": torch.ones(3), "rows": [(1, None)]})
    data = (tmp_path / "state").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert set(json.loads(data[8 : 8 + size])) == {"__metadata__", *tensor_names(data, size)}
    assert b"\x80\x02" not in data[8 : 8 + size]
    assert len(data) == 8 + size + 12  # header and three floats, nothing else


def tensor_names(data: bytes, size: int) -> set[str]:
    header = json.loads(data[8 : 8 + size])
    return {name for name in header if name != "__metadata__"}


@pytest.mark.parametrize("length", [0, 4, 8, 60, 200, -1])
def test_a_truncated_file_is_refused_with_what_to_do(length, tmp_path):
    path = tmp_path / "state"
    write_checkpoint(path, {"x": torch.arange(100.0), "epoch": 3})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FileError, match=r"state cannot be read.*Delete it to train this stage"):
        read_checkpoint(path)


def test_no_single_changed_byte_goes_unnoticed(tmp_path):
    path = tmp_path / "state"
    state = {"x": torch.arange(4.0), "epoch": 3}
    write_checkpoint(path, state)
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        try:
            found = read_checkpoint(path)
        except FileError:
            continue
        assert same(found, state), place  # a space in the header, or the like


@pytest.mark.parametrize("header", ["[]", "5", "{}", '{"digest": "x"}', "nonsense", "null"])
def test_a_header_that_is_none_is_refused(header, tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "state", {KEY: header})
    with pytest.raises(FileError, match="damaged"):
        read_checkpoint(tmp_path / "state")


def test_a_foreign_file_is_refused(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "weights")
    with pytest.raises(FileError, match="not a checkpoint of dafp"):
        read_checkpoint(tmp_path / "weights")
    torch.save({"x": torch.ones(1)}, tmp_path / "pickled")
    with pytest.raises(FileError, match="pickled cannot be read"):
        read_checkpoint(tmp_path / "pickled")
    (tmp_path / "directory").mkdir()
    with pytest.raises(FileError, match="directory"):
        read_checkpoint(tmp_path / "directory")


def test_a_model_of_other_shape_is_not_filled(tmp_path):
    with pytest.raises(FileError, match=r"here does not fit the model of this run.*weight"):
        load_into(nn.Linear(3, 2), nn.Linear(2, 2).state_dict(), tmp_path / "here")


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "a.checkpoint", {"epoch": 1})

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError) as refused:
        read_checkpoint(tmp_path / "a.checkpoint")
    assert str(refused.value) == f"cannot read {tmp_path / 'a.checkpoint'}: Permission denied"
