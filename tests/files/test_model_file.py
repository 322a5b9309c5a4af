"""One safe file: what is saved comes back bit by bit, in another process, and nothing else runs."""

import copy
import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dafp
from dafp import PruningPlan, criteria, selection
from dafp.errors import FileError
from dafp.files import weights
from dafp.models import build

X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A user's class; `splits` is a tuple that pruning has to change."""

    def __init__(self) -> None:
        super().__init__()
        self.splits = (5, 3)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(5, 4, 3)
        self.right = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.norm(self.conv(x)).relu().split(self.splits, 1)
        return self.fc(torch.cat([self.left(a), self.right(b)], 1).mean((2, 3)))


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random scales, shifts and statistics: fresh ones hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
            if "running_var" in name:
                tensor.abs_().add_(0.5)
    return model.eval()


@pytest.fixture(scope="module")
def small() -> nn.Module:
    """A pruned PreResNet with feature selections."""
    model = randomised(build("preresnet11", width=0.25))
    graph = dafp.trace(model, X)
    assert {group.kind for group in graph.groups} == {"filter", "selection"}
    plan = selection.uniform(criteria.dependency_aware(model, graph), 0.4)
    return dafp.prune(model, graph, plan).eval()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(
        first[n].dtype is second[n].dtype and torch.equal(first[n], second[n]) for n in first
    )


def python(code: str, *args: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, args)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- there and back ------------------------------------------------------------------------------


def test_a_pruned_model_of_ours_is_bit_equal_in_another_process_and_need_not_be_given(
    small, tmp_path
):
    dafp.save(small, tmp_path / "small.safetensors")
    save_file({"x": X}, tmp_path / "x.safetensors")
    python(
        "import sys, torch, dafp\n"
        "from safetensors.torch import load_file, save_file\n"
        "torch.set_num_threads(1)\n"
        "model = dafp.load(sys.argv[1]).eval()\n"
        "x = load_file(sys.argv[2])['x']\n"
        "with torch.no_grad():\n"
        "    save_file({'y': model(x), **model.state_dict()}, sys.argv[3])\n",
        *(tmp_path / f"{name}.safetensors" for name in ("small", "x", "there")),
    )
    there = load_file(tmp_path / "there.safetensors")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        here = {"y": small(X), **small.state_dict()}
    torch.set_num_threads(threads)
    assert there.keys() == here.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)


@pytest.mark.slow(reason="three processes import torch")
def test_equal_models_give_equal_bytes_in_processes_with_different_hash_seeds(tmp_path):
    code = (
        "import sys, torch, dafp\n"
        "from dafp.models import build\n"
        "torch.manual_seed(0); torch.set_num_threads(1)\n"
        "model = build('preresnet11', width=0.25).eval()\n"
        "x = torch.randn(1, 3, 16, 16)\n"
        "graph = dafp.trace(model, x)\n"
        "plan = dafp.selection.uniform(dafp.criteria.l1_norm(model, graph), 0.4)\n"
        "dafp.save(dafp.prune(model, graph, plan), sys.argv[1])\n"
    )
    files = [tmp_path / f"{seed}.safetensors" for seed in (1, 2)]
    for seed, file in enumerate(files):
        python(code, file, PYTHONHASHSEED=str(seed + 1))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_saving_twice_gives_equal_bytes(small, tmp_path):
    for name in ("a", "b"):
        dafp.save(small, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_was_loaded_saves_to_the_same_bytes_again(small, tmp_path):
    dafp.save(small, tmp_path / "a")
    dafp.save(dafp.load(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_model_that_was_not_pruned_comes_back_too(tmp_path):
    model = randomised(build("vgg11", width=0.1))
    dafp.save(model, tmp_path / "whole.safetensors")
    assert same_bits(dafp.load(tmp_path / "whole.safetensors"), model)


def test_a_users_class_loads_into_a_fresh_instance_and_computes_the_same(tmp_path):
    small = dafp.slim(randomised(Net()), X, ratio=0.5).eval()
    dafp.save(small, tmp_path / "net.safetensors")
    fresh = Net()
    loaded = dafp.load(tmp_path / "net.safetensors", fresh).eval()
    assert type(loaded) is Net
    assert same_bits(loaded, small)
    assert torch.equal(loaded(X), small(X))


def test_the_fresh_instance_itself_is_not_changed(tmp_path):
    small = dafp.slim(randomised(Net()), X, ratio=0.5)
    dafp.save(small, tmp_path / "net.safetensors")
    fresh = Net()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    dafp.load(tmp_path / "net.safetensors", fresh)
    assert fresh.splits == (5, 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


def test_widths_held_in_attributes_come_back_in_their_own_type(tmp_path):
    small = dafp.slim(randomised(Net()), X, ratio=0.5)
    assert isinstance(small.splits, tuple)
    assert small.splits != (5, 3)
    dafp.save(small, tmp_path / "net.safetensors")
    assert dafp.load(tmp_path / "net.safetensors", Net()).splits == small.splits


def test_layers_know_their_new_width_after_loading(small, tmp_path):
    dafp.save(small, tmp_path / "small.safetensors")
    loaded = dafp.load(tmp_path / "small.safetensors")
    assert str(loaded) == str(small)


def test_the_plan_travels_in_the_file(small, tmp_path):
    dafp.save(small, tmp_path / "small.safetensors")
    assert dafp.plan_of(dafp.load(tmp_path / "small.safetensors")) == dafp.plan_of(small)


def test_feature_selections_survive(small, tmp_path):
    indices = {n: b for n, b in small.named_buffers() if n.endswith(".index")}
    dafp.save(small, tmp_path / "small.safetensors")
    loaded = dafp.load(tmp_path / "small.safetensors").eval()
    assert indices
    assert all(torch.equal(b, dict(loaded.named_buffers())[n]) for n, b in indices.items())
    assert torch.equal(loaded(X), small(X))


@pytest.mark.parametrize("name", ["preresnet11", "resnet8"])
def test_pruning_twice_survives(tmp_path, name):
    once = dafp.slim(randomised(build(name, width=0.25)), X, ratio=0.3)
    twice = dafp.slim(once, X, ratio=0.3).eval()
    dafp.save(twice, tmp_path / "twice.safetensors")
    loaded = dafp.load(tmp_path / "twice.safetensors").eval()
    assert same_bits(loaded, twice)
    assert torch.equal(loaded(X), twice(X))


def test_pruning_a_loaded_model_survives(small, tmp_path):
    dafp.save(small, tmp_path / "once.safetensors")
    once = dafp.load(tmp_path / "once.safetensors").eval()
    twice = dafp.slim(once, X, ratio=0.3).eval()
    dafp.save(twice, tmp_path / "twice.safetensors")
    loaded = dafp.load(tmp_path / "twice.safetensors").eval()
    assert same_bits(loaded, twice)
    assert torch.equal(loaded(X), twice(X))


PRECISION = pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str
)


@PRECISION
def test_a_model_of_ours_in_another_precision_comes_back_bit_equal(tmp_path, dtype):
    model = randomised(build("vgg11", width=0.1)).to(dtype)
    dafp.save(model, tmp_path / "half.safetensors")
    loaded = dafp.load(tmp_path / "half.safetensors")
    assert loaded.features[0].weight.dtype is dtype
    assert same_bits(loaded, model)


@PRECISION
def test_a_pruned_model_whose_precision_was_changed_comes_back_bit_equal(small, tmp_path, dtype):
    changed = copy.deepcopy(small).to(dtype)
    dafp.save(changed, tmp_path / "small.safetensors")
    loaded = dafp.load(tmp_path / "small.safetensors").eval()
    assert loaded.fc.weight.dtype is dtype
    assert same_bits(loaded, changed)
    assert torch.equal(loaded(X.to(dtype)), changed(X.to(dtype)))


@PRECISION
@pytest.mark.parametrize("fresh", [Net, lambda: Net().half(), lambda: Net().double()],
                         ids=["float32", "half", "double"])  # fmt: skip
def test_the_precision_of_the_fresh_instance_does_not_matter(tmp_path, dtype, fresh):
    small = dafp.slim(randomised(Net()), X, ratio=0.5).to(dtype)
    dafp.save(small, tmp_path / "net.safetensors")
    loaded = dafp.load(tmp_path / "net.safetensors", fresh())
    assert loaded.fc.weight.dtype is dtype
    assert same_bits(loaded, small)


@pytest.mark.parametrize("prune", [True, False], ids=["pruned", "whole"])
def test_a_model_of_two_precisions_comes_back_bit_equal(tmp_path, prune):
    model = randomised(build("vgg11", width=0.1))
    model = dafp.slim(model, torch.randn(1, 3, 32, 32), ratio=0.5) if prune else model
    model.half()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    dafp.save(model, tmp_path / "mixed.safetensors")
    loaded = dafp.load(tmp_path / "mixed.safetensors")
    assert {t.dtype for t in loaded.parameters()} == {torch.float16, torch.float32}
    assert same_bits(loaded, model)


def test_a_model_that_was_pruned_in_another_precision_loads_into_a_float32_instance(tmp_path):
    small = dafp.slim(randomised(Net()).double(), X.double(), ratio=0.5)
    dafp.save(small, tmp_path / "net.safetensors")
    assert same_bits(dafp.load(tmp_path / "net.safetensors", Net()), small)


def test_weights_that_became_whole_numbers_are_refused_by_name(tmp_path):
    small = dafp.slim(randomised(Net()), X, ratio=0.5)
    small.fc.weight = nn.Parameter(small.fc.weight.to(torch.int8), requires_grad=False)
    dafp.save(small, tmp_path / "net.safetensors")
    with pytest.raises(FileError, match=r"fc\.weight.*int8"):
        dafp.load(tmp_path / "net.safetensors", Net())


def test_weights_that_are_shared_stay_shared(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu())

    model = Tied()
    dafp.save(model, tmp_path / "tied.safetensors")
    loaded = dafp.load(tmp_path / "tied.safetensors", Tied())
    assert loaded.a.weight is loaded.b.weight
    assert same_bits(loaded, model)


def test_buffers_that_are_views_of_one_memory_can_be_saved(tmp_path):
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(6.0)
            self.register_buffer("low", whole[:3])
            self.register_buffer("high", whole[3:])

    dafp.save(Views(), tmp_path / "views.safetensors")
    assert torch.equal(dafp.load(tmp_path / "views.safetensors", Views()).high, Views().high)


def test_channels_last_weights_can_be_saved(tmp_path):
    model = randomised(build("vgg11", width=0.1)).to(memory_format=torch.channels_last)
    dafp.save(model, tmp_path / "last.safetensors")
    assert same_bits(dafp.load(tmp_path / "last.safetensors"), model)


# ---- what is in the file -------------------------------------------------------------------------


def test_there_is_no_pickle_in_the_file(small, tmp_path):
    dafp.save(small, tmp_path / "small.safetensors")
    with safe_open(tmp_path / "small.safetensors", framework="pt") as file:
        assert list(file.metadata()) == ["dafp"]
    raw = (tmp_path / "small.safetensors").read_bytes()
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(raw)
    assert not raw.startswith((b"PK", b"\x80"))


def test_saving_never_pickles(small, tmp_path, monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("pickled")

    for module, name in ((pickle, "dump"), (pickle, "dumps"), (torch, "save")):
        monkeypatch.setattr(module, name, refuse)
    dafp.save(small, tmp_path / "small.safetensors")
    assert (tmp_path / "small.safetensors").stat().st_size > 0


def test_nothing_in_the_file_depends_on_its_path(small, tmp_path):
    (tmp_path / "deep").mkdir()
    dafp.save(small, str(tmp_path / "a.safetensors"))
    dafp.save(small, tmp_path / "deep" / "another name.safetensors")
    there = (tmp_path / "deep" / "another name.safetensors").read_bytes()
    assert (tmp_path / "a.safetensors").read_bytes() == there


# ---- weights of others ---------------------------------------------------------------------------


def as_file(state: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_a_state_dict_fills_a_model(tmp_path, suffix):
    model, fresh = randomised(Net()), Net()
    weights.load_weights(fresh, as_file(model.state_dict(), tmp_path / f"net{suffix}"))
    assert same_bits(fresh, model)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_the_prefix_of_a_wrapper_is_taken_off(tmp_path, suffix):
    model, fresh = randomised(Net()), Net()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    weights.load_weights(fresh, as_file(state, tmp_path / f"net{suffix}"))
    assert same_bits(fresh, model)


def test_a_layer_that_is_really_called_module_is_not_taken_for_a_prefix(tmp_path):
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    model, fresh = Holder(), Holder()
    weights.load_weights(fresh, as_file(model.state_dict(), tmp_path / "holder.pth"))
    assert same_bits(fresh, model)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_state_dict_inside_a_checkpoint_is_found(tmp_path, key):
    model, fresh = randomised(Net()), Net()
    torch.save({key: model.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pth")
    weights.load_weights(fresh, tmp_path / "checkpoint.pth")
    assert same_bits(fresh, model)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [torch.save, lambda v, p: p.write_bytes(pickle.dumps(v))],
                         ids=["torch.save", "pickle"])  # fmt: skip
def test_a_malicious_pickle_does_not_run(tmp_path, write):
    write({"weight": Malicious(tmp_path / "owned")}, tmp_path / "evil.pth")
    with pytest.raises(FileError, match=r"evil\.pth cannot be read as weights.*state_dict\(\)"):
        weights.read_weights(tmp_path / "evil.pth")
    assert not (tmp_path / "owned").exists()


def test_a_whole_pickled_model_is_refused_with_what_to_save(tmp_path):
    torch.save(Net(), tmp_path / "whole.pth")
    with pytest.raises(FileError, match=r"whole pickled models.*model\.state_dict\(\)"):
        weights.read_weights(tmp_path / "whole.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not a zip", b"\x80\x02}."])
def test_weights_that_are_none_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    fresh = Net()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    with pytest.raises(FileError, match="bad"):
        weights.load_weights(fresh, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


@pytest.mark.parametrize("value", [3, [torch.ones(2)], {"a": 3}, torch.ones(2)], ids=str)
def test_a_file_without_a_state_dict_is_refused(tmp_path, value):
    torch.save(value, tmp_path / "odd.pth")
    with pytest.raises(FileError, match="holds no state dict"):
        weights.read_weights(tmp_path / "odd.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_missing_weights_are_named(tmp_path, suffix):
    with pytest.raises(FileError, match=f"there is no file .*nowhere{suffix}"):
        weights.read_weights(tmp_path / f"nowhere{suffix}")


def test_weights_of_another_model_are_refused_and_the_model_is_not_half_filled(tmp_path):
    fresh = Net()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    state = {name: torch.ones_like(tensor) for name, tensor in before.items()}
    state["fc.weight"] = torch.ones(7, 8)
    with pytest.raises(FileError, match=r"(?s)does not fit Net.*fc\.weight"):
        weights.load_weights(fresh, as_file(state, tmp_path / "net.pth"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


# ---- writing -------------------------------------------------------------------------------------


def test_a_path_below_a_file_is_refused_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot write"):
        dafp.save(Net(), tmp_path / "file" / "net.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_directory_in_the_place_of_the_file_is_refused_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "net.safetensors").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        dafp.save(Net(), tmp_path / "net.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_intact_and_nothing_behind(tmp_path, monkeypatch, function):
    path = tmp_path / "net.safetensors"
    dafp.save(Net(), path)
    old = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    with pytest.raises(FileError, match=r"cannot write .*No space left"):
        dafp.save(randomised(Net()), path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_an_interrupted_write_leaves_the_old_file_intact_and_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "net.safetensors"
    dafp.save(Net(), path)
    old = path.read_bytes()

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dafp.save(randomised(Net()), path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_file_under_way_has_another_suffix(tmp_path, monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append(str(a)))
    dafp.save(Net(), tmp_path / "net.safetensors")
    assert not seen[0].endswith(".safetensors")


def test_a_plan_with_an_unusual_group_name_survives(tmp_path):
    small = dafp.slim(randomised(Net()), X, ratio=0.5)
    plan = dafp.plan_of(small)
    assert any("[" in name for name in plan.keep)
    assert PruningPlan.from_json(plan.to_json()) == plan
    dafp.save(small, tmp_path / "net.safetensors")
    assert dafp.plan_of(dafp.load(tmp_path / "net.safetensors", Net())) == plan
