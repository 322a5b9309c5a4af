"""What was made quick must still see what the slow way saw."""

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

import dafp
import dafp.models
from dafp.network.model_copy import deep_copy
from dafp.network.skeleton import meta_tensors
from dafp.pruning.verification import _training_error
from support import zoo

IMAGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))


class Turned(nn.Module):
    """Turns the image upside down in eval mode, and the order of its channels in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.consumer = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.consumer(self.stem(x).flip(1 if self.training else 2))


def test_the_train_pass_sees_calls_that_differ_in_a_number_only():
    graph = dafp.trace(Turned(), IMAGE)
    assert [group.size for group in graph.groups] == [4]  # first and last channel go together


def test_an_image_size_that_is_built_in_is_the_one_to_verify_on():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(64), nn.Flatten(), nn.Linear(16, 5))
    small = dafp.slim(model, LARGE)
    assert small[0].weight.shape == (2, 3, 1, 1)


NOTED: list[int] = []  # by forwards: verification runs a copy, in which nothing would be found


@pytest.fixture(autouse=True)
def nothing_noted():
    NOTED.clear()


def note_if_pruned(stem: nn.Conv2d, what: int) -> None:
    if stem.out_channels < 4:
        NOTED.append(what)


class Numbered(nn.Module):
    """Numbers its channels, in small images only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.consumer = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        note_if_pruned(self.stem, x.shape[-1])
        x = self.stem(x)
        if x.shape[-1] < 128:
            x = x + torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
        return self.consumer(x)


def test_a_path_that_only_small_images_take_is_asked_again_at_full_size():
    torch.manual_seed(0)
    small = dafp.slim(Numbered(), LARGE)
    assert NOTED[:2] == [64, 128]  # at 64 it differs
    assert small.stem.weight.shape == (2, 3, 1, 1)


class OneSize(nn.Module):
    """Takes images of one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 1), nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        note_if_pruned(self.stem, x.shape[-1])
        return self.head(nn.functional.avg_pool2d(self.stem(x), 32).flatten(1))


def test_a_network_that_refuses_small_images_is_asked_both_questions_at_full_size():
    torch.manual_seed(0)
    small = dafp.slim(OneSize(), LARGE)
    assert NOTED[:2] == [128, 128]
    assert small.head.weight.shape == (5, 2 * 16)


class Watched(nn.Module):
    """Notes whether garbage is collected while it runs; fails where it is told to."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.stem, self.consumer, self.fails = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1), fails

    def forward(self, x: Tensor) -> Tensor:
        note_if_pruned(self.stem, gc.isenabled())
        if self.fails:
            raise RuntimeError("told to")
        return self.consumer(self.stem(x))


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_meanwhile_and_after_it_is_as_before(enabled):
    if not enabled:
        gc.disable()
    try:
        dafp.slim(Watched(), LARGE)
        assert NOTED
        assert not any(NOTED)
        assert gc.isenabled() is enabled
        with pytest.raises(dafp.errors.TraceError):
            dafp.trace(Watched(fails=True), LARGE)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


class Own(nn.Module):
    """A module with a way of its own to be copied."""

    def __deepcopy__(self, memo: dict[int, object]) -> "Own":
        return self


def test_copies_share_what_was_shared_and_nothing_with_the_original():
    shared, notes = nn.Conv2d(3, 3, 1), {"a": 1}
    model = nn.Sequential(shared, shared, nn.BatchNorm2d(3), Own())
    model.notes = model[0].notes = notes
    twin = deep_copy(model)
    assert twin[0] is twin[1] is not shared
    assert twin.notes is twin[0].notes is not notes
    assert twin[3] is model[3]
    assert twin[2].running_mean.data_ptr() != model[2].running_mean.data_ptr()
    twin[2].register_forward_hook(lambda *_: None)
    assert not model[2]._forward_hooks


def test_copies_have_the_hooks_and_the_state_that_deepcopy_gives():
    model = nn.Sequential(nn.Conv2d(3, 4, 1, padding_mode="circular"), nn.BatchNorm2d(4))
    model[0].register_forward_hook(lambda *_: None)
    ours, theirs = deep_copy(model), copy.deepcopy(model)
    for a, b in zip(ours.modules(), theirs.modules(), strict=True):
        assert list(vars(a)) == list(vars(b))
        assert a._forward_hooks == b._forward_hooks
    assert torch.equal(ours(IMAGE), theirs(IMAGE))


def test_a_training_step_with_selections_runs_without_data():
    model = dafp.models.build("preresnet20").eval()
    image = torch.randn(1, 3, 32, 32)
    graph = dafp.trace(model, image)
    assert any(group.kind == "selection" for group in graph.groups)
    plan = dafp.selection.uniform(dafp.criteria.l2_norm(model, graph), 0.5)
    small = dafp.prune(model, graph, plan)
    assert _training_error(small, image, meta_tensors()) is None


def test_constants_that_a_forward_reads_need_no_real_data():
    constant, value = (zoo.BY_NAME[f"halves and a {what}"] for what in ("constant", "value"))
    assert dafp.trace(constant.model(), constant.example()).notes == ()
    [note] = dafp.trace(value.model(), value.example()).notes
    assert note.startswith("traced with real data")
