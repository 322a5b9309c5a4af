"""Corners that a reading of the code found, each with a network that shows it."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import dafp
from dafp.errors import VerificationError
from dafp.graph.slicing import add_selection
from dafp.models import PreResNet
from dafp.network.calling import tensors_in
from dafp.pruning.verification import _gap
from support.zoo import BY_NAME

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Twice(nn.Module):
    """One convolution reads two scales: one bias cannot give back two means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reader = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)
        self.one, self.two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.reader(self.one(x).relu()) + self.reader(self.two(x).relu())


def drop_one(model: nn.Module, example: Tensor) -> nn.Module:
    graph = dafp.trace(model, example)
    name = graph.groups[0].name
    plan = dafp.PruningPlan({name: tuple(range(1, graph.groups[0].size))})
    return dafp.mask(model, graph, plan, compensate=True)


def test_a_consumer_that_is_used_twice_is_not_compensated():
    torch.manual_seed(0)
    model = Twice().eval()
    assert torch.equal(drop_one(model, IMAGE).reader.bias, model.reader.bias)


def test_a_mean_is_not_carried_through_a_maximum():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(4, 5, 1)]
    model = nn.Sequential(*layers).eval()
    assert torch.equal(drop_one(model, IMAGE)[4].bias, model[4].bias)
    del layers[3]
    plain = nn.Sequential(*layers).eval()
    assert not torch.equal(drop_one(plain, IMAGE)[3].bias, plain[3].bias)


def test_keep_holds_for_selections_too():
    model = PreResNet(20, width=0.25).eval()
    names = {group.name for group in dafp.trace(model, LARGE).groups}
    kept = {group.name for group in dafp.trace(model, LARGE, keep=["stages.0.1.bn1"]).groups}
    assert names - kept == {"stages.0.1.bn1"}


def test_an_empty_selection_can_be_masked():
    model = PreResNet(20, width=0.25).eval()
    graph = dafp.trace(model, LARGE)
    masked = dafp.mask(model, graph, dafp.PruningPlan({"stages.0.1.bn1": ()}))
    assert not masked.stages[0][1].conv1.weight.any()


def test_what_is_pruned_in_inference_mode_can_be_trained():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    with torch.inference_mode():
        small = dafp.slim(model, IMAGE)
    small(IMAGE).sum().backward()
    assert small[0].weight.grad.shape == (4, 3, 3, 3)


class UpTo(nn.Module):
    """Takes as many channels as there are, by a number that is written down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.reader = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 5, 1)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.stem(x)[:, : self.width])


def test_a_slice_up_to_the_whole_width_holds_no_channel():
    for width in (6, 7):
        small = dafp.slim(UpTo(width), IMAGE)
        assert small.stem.weight.shape == (3, 3, 1, 1)


# ---- what a stranger found -----------------------------------------------------------------------


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(inner, nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).eval()


@pytest.mark.parametrize("whole", [True, False])
def test_a_module_compiled_in_place_is_pruned_and_does_not_run_the_original(whole):
    model = blocks()
    (model if whole else model[0]).compile(backend="eager")
    small = dafp.slim(model, IMAGE)
    assert small[0][0].weight.shape[0] < 8
    before = small(IMAGE)
    with torch.no_grad():
        model[0][0].weight.zero_()
    assert torch.equal(small(IMAGE), before)
    small(IMAGE).sum().backward()
    assert small[0][0].weight.grad is not None
    assert all(p.grad is None for p in model.parameters())


class Remembers(nn.Module):
    """Holds the features of its last forward pass in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seen = blocks(), {}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["last"] = self.body(x)
        return self.seen["last"]


def test_results_that_a_module_holds_in_a_dict_do_not_stop_a_copy():
    model = Remembers()
    model(IMAGE).sum().backward()
    small = dafp.slim(model, IMAGE)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert model.seen["last"].requires_grad


def test_a_dataclass_with_slots_a_set_and_a_view_hold_outputs():
    @dataclass(slots=True)
    class Held:
        features: Tensor

    tensor = IMAGE
    for value in (Held(tensor), {tensor}, {"a": tensor}.values(), iter([tensor]), [Held(tensor)]):
        assert [id(t) for t in tensors_in(value)] == [id(tensor)]


class Slots:
    """An object without __dict__."""

    __slots__ = ("features", "scores")


class SlottedOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3)
        self.tail = nn.Conv2d(6, 4, 3)

    def forward(self, x: Tensor) -> Slots:
        out = Slots()
        out.features = self.first(x)
        out.scores = self.tail(self.second(out.features.relu()).relu())
        return out


def test_what_an_object_with_slots_holds_is_an_output_and_stays():
    graph = dafp.trace(SlottedOutput().eval(), IMAGE)
    assert [group.name for group in graph.groups] == ["second"]
    assert {kept.name: kept.op for kept in graph.kept} == {"first": "output", "tail": "output"}


def test_whole_numbers_and_complex_ones_are_compared():
    ones = torch.ones(1000)
    assert _gap([ones.long()], [ones.long()]) == 0
    assert _gap([torch.arange(1000)], [torch.arange(1000).flip(0)]) == 1
    few = ones.long()
    few[:5] = 3  # five of a thousand may fall the other way
    assert _gap([few], [ones.long()]) == 0
    assert _gap([ones * 1j], [ones * 1.5j]) == pytest.approx(1 / 3)


def test_a_model_that_is_random_in_eval_mode_is_told_from_one_that_was_pruned_wrongly():
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = blocks()

        def forward(self, x: Tensor) -> Tensor:
            return self.body[1:](F.dropout(self.body[0](x), 0.3))

    with pytest.raises(VerificationError, match="gives different outputs for the same input"):
        dafp.slim(Random().eval(), IMAGE)


class GatedReader(nn.Conv2d):
    """Uses its input twice."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight) * x.mean(1, keepdim=True).sigmoid()


class NamedInput(nn.Conv2d):
    """Is called by a keyword of its own."""

    def forward(self, image: Tensor) -> Tensor:
        return F.conv2d(image, self.weight, padding=1)


class Stream(nn.Module):
    """A pre-activation block of one convolution."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), conv
        self.back = nn.Conv2d(4, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).relu()
        y = self.conv(image=y) if isinstance(self.conv, NamedInput) else self.conv(y)
        return x + self.back(y.relu())


@pytest.mark.parametrize(
    ("conv", "selects"),
    [
        (nn.Conv2d(8, 4, 1), True),
        (NamedInput(8, 4, 3, bias=False), True),
        (GatedReader(8, 4, 1, bias=False), False),
    ],
)
def test_a_layer_selects_its_input_unless_it_uses_it_otherwise_too(conv, selects):
    torch.manual_seed(0)
    plain = (Stream(nn.Conv2d(8, 4, 1)) for _ in range(2))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), next(plain), Stream(conv), next(plain), nn.ReLU())
    model = nn.Sequential(model, nn.Conv2d(8, 5, 1)).eval()
    names = {group.name for group in dafp.trace(model, IMAGE).groups}
    assert ("0.2.norm" in names) is selects
    small = dafp.slim(model, IMAGE, 0.5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


def test_a_norm_without_tensors_knows_its_new_width():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)]
    model = nn.Sequential(*layers).eval()
    small = dafp.slim(model, IMAGE)
    assert small[1].num_features == small[0].out_channels == 4
    small(IMAGE)  # torch warns of a norm that is not as wide as its input
    assert dafp.slim(small, IMAGE)[1].num_features == 2


@pytest.mark.parametrize("function", [nn.RReLU(), nn.LogSigmoid()])
def test_functions_of_single_entries_stop_no_channel(function):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), function, nn.Conv2d(8, 4, 3))
    assert dafp.slim(model.eval(), IMAGE)[0].out_channels == 4


def test_verification_leaves_no_trace_in_the_pruned_model():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls, self.shapes = blocks(), 0, {}
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.shapes[tuple(x.shape)] = self.calls
            self.seen += 1
            return self.body(x)

    small = dafp.slim(Counts().eval(), IMAGE)
    assert (small.calls, small.shapes, float(small.seen)) == (0, {}, 0)


def test_a_selection_finds_the_input_whatever_its_keyword():
    conv = NamedInput(2, 4, 3, bias=False)
    add_selection(conv, torch.tensor([0, 2]))
    expected = F.conv2d(IMAGE[:, [0, 2]], conv.weight, padding=1)
    assert torch.equal(conv(image=IMAGE), expected)


def test_a_pruned_network_still_goes_the_way_that_the_example_did_not_take():
    net = BY_NAME["early exit"]
    model = net.model().eval()
    graph = dafp.trace(model, net.example())
    assert [group.name for group in graph.groups] == ["second.0"]
    small = dafp.slim(model, net.example())
    assert small.second[0].out_channels < 12
    quiet = 0.01 * net.example()
    assert torch.equal(small(quiet), model(quiet))


class ScalesItsInput(nn.Module):
    """Writes into its input, as super-resolution networks do that take pixels from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = blocks()

    def forward(self, x: Tensor) -> Tensor:
        x *= 255
        return self.body(x).sigmoid()


def test_a_forward_that_writes_into_its_input_does_not_change_the_example():
    torch.manual_seed(0)
    model, x, batch = ScalesItsInput().eval(), IMAGE.clone(), LARGE.clone()
    graph = dafp.trace(model, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(model, graph), 0.5)
    small = dafp.prune(model, graph, plan)
    slimmed = dafp.slim(model, x, 0.3, data=[batch, (batch, torch.zeros(2, dtype=torch.long))])
    cost = dafp.cost(small, x)
    assert torch.equal(x, IMAGE)
    assert torch.equal(batch, LARGE)
    assert cost == dafp.plan_of(small).after
    assert sum(map(len, dafp.plan_of(slimmed).keep.values())) < graph.filters
    masked = dafp.mask(model, graph, plan)
    torch.testing.assert_close(small(IMAGE.clone()), masked(IMAGE.clone()))


class MixesWithPositions(nn.Module):
    """(positions, channels) becomes (channels, positions) without a transposition, as in MAnet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mixed = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)
        self.free, self.head = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        rows = self.mixed(x).flatten(2).transpose(1, 2)
        return self.head(self.free(x * rows.reshape(x.shape)).relu())


def test_channels_that_a_view_mixes_with_positions_are_kept():
    model, small_image = MixesWithPositions(), torch.randn(1, 3, 2, 2)
    graph = dafp.trace(model, small_image, residual="couple")
    assert {k.name: k.reason for k in graph.kept if k.op != "output"} == {
        "stem": "a view mixes it with positions",
        "mixed": "a view mixes it with positions",
    }
    plan = dafp.PruningPlan({"free": (0, 4)})
    small, masked = dafp.prune(model, graph, plan), dafp.mask(model, graph, plan)
    torch.testing.assert_close(small(IMAGE), masked(IMAGE))
    assert small.free.weight.shape[0] == 2


class NoBoxes(nn.Module):
    """A second stage that gets no boxes, from several images."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.scores = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 5, 1)
        self.boxes = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(x).relu()
        none = torch.cat([image[:0] for image in x.split(1)])
        return self.scores(x), self.boxes(none)


def test_joining_tensors_without_rows_keeps_their_channels_in_sight():
    model = NoBoxes()
    graph = dafp.trace(model, IMAGE)
    assert [group.name for group in graph.groups] == ["features"]
    assert [slot.param for slot in graph.groups[0].consumers] == ["scores.weight", "boxes.weight"]
    small = dafp.prune(model, graph, dafp.PruningPlan({"features": (1, 2, 5)}))
    assert small(IMAGE)[1].shape == (0, 4, 8, 8)
    assert small.boxes.weight.shape[1] == 3
