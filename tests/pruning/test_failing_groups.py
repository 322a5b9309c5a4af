"""Groups because of which a pruned model fails: found by bisection, kept with their reason."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp.criteria import l1_norm
from dafp.errors import VerificationError
from dafp.pruning.failing_groups import failing_groups
from dafp.selection import removed_share, uniform

NAMES = tuple("abcdefghijklmnop")
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


# ---- bisection, without a model ------------------------------------------------------------------


class Counted:
    """A test of groups that counts its runs. It fails if a set of `conflicts` is pruned."""

    def __init__(self, *conflicts: str) -> None:
        self.conflicts, self.runs = [set(c) for c in conflicts], 0

    def __call__(self, pruned) -> bool:
        self.runs += 1
        return not any(conflict <= set(pruned) for conflict in self.conflicts)


@pytest.mark.parametrize("bad", ["a", "p", "ab", "ap", "hi", "aceg", "bcdfhjk"])
def test_all_failing_groups_are_found_and_no_others(bad):
    works = Counted(*bad)
    found = failing_groups(NAMES, works)
    assert found.alone == tuple(bad)
    assert found.together == found.untested == ()
    assert works.runs <= 2 * len(bad) * 4 + len(bad), "two runs per halving of 16 groups"


@pytest.mark.parametrize("pair", [*itertools.combinations("afgp", 2)], ids="".join)
def test_of_groups_that_fail_only_together_the_last_one_is_kept(pair):
    found = failing_groups(NAMES, Counted("".join(pair)))
    assert (found.alone, found.together) == ((), (pair[1],))


def test_what_is_left_works_whatever_fails_together():
    works = Counted("abc", "cd", "dq", "eaf", "op", "o")
    found = failing_groups(NAMES, works)
    assert works([name for name in NAMES if name not in found.names])
    assert found.names == ("o", "c", "f"), "d works without c, p without o"
    assert found.alone == ("o",)


def test_the_number_of_runs_is_limited_and_the_rest_is_kept():
    works = Counted(*NAMES)
    found = failing_groups(NAMES, works, max_runs=5)
    assert works.runs <= 5
    assert set(found.names) == set(NAMES)
    assert found.untested


def test_one_group_that_is_known_to_fail_needs_no_search():
    assert failing_groups(("a",), Counted("a")).alone == ("a",)
    assert failing_groups((), Counted()).names == ()


# ---- networks whose trace is deliberately wrong --------------------------------------------------


class Adds(nn.Module):
    """Adds a number that depends on the width of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.shape[1] / 10


class Refuses(nn.Module):
    """Does not run on any other width, but while it is traced."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = f"{width} channels"

    def forward(self, x: Tensor) -> Tensor:
        if self.words != f"{x.shape[1]} channels" and not x.is_meta:
            raise ValueError(f"{self.words} expected, {x.shape[1]} given")
        return x


class Together(nn.Module):
    """Computes something else if both inputs are narrower."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = f"{width} channels"

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        both = all(f"{t.shape[1]} channels" != self.words for t in (x, y))
        return x + float(both)


def lie(call) -> None:
    """The rule of an elementwise layer, for layers that are none."""
    call.same(call.args[0])


LIES = {"rules": dict.fromkeys((Adds, Refuses, Together), lie)}


class Net(nn.Module):
    """Six convolutions in a row; after number n comes `inserted[n]`."""

    def __init__(self, inserted: dict[int, nn.Module], pair: tuple[int, int] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = [3, *[8] * 6]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths)
        )
        self.inserted = nn.ModuleDict({str(n): module for n, module in inserted.items()})
        self.pair, self.together, self.head = pair, Together(8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for n, conv in enumerate(self.convs):
            x = torch.relu(conv(x))
            if str(n) in self.inserted:
                x = self.inserted[str(n)](x)
            if self.pair is not None and n == self.pair[1]:
                x = self.together(x, seen[self.pair[0]])
            seen.append(x)
        return self.head(x)


CASES = {
    "one": (lambda: Net({2: Adds()}), ("convs.2",)),
    "one that does not run": (lambda: Net({5: Refuses(8)}), ("convs.5",)),
    "two at once": (lambda: Net({0: Adds(), 4: Refuses(8)}), ("convs.0", "convs.4")),
    "two only together": (lambda: Net({}, pair=(1, 4)), ("convs.4",)),
    "one alone, two together": (lambda: Net({3: Adds()}, pair=(0, 5)), ("convs.3", "convs.5")),
}


def failed(model: nn.Module, **options) -> VerificationError:
    graph = dafp.trace(model, X, **LIES)
    plan = uniform(l1_norm(model, graph), 0.5)
    with pytest.raises(VerificationError) as caught:
        dafp.prune(model, graph, plan, **options)
    return caught.value


@pytest.mark.parametrize("compensate", [False, True])
@pytest.mark.parametrize(("build", "names"), CASES.values(), ids=CASES)
def test_the_error_names_the_groups_and_holds_a_graph_that_keeps_them(build, names, compensate):
    model = build().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    error = failed(model, compensate=compensate)
    assert error.groups == names
    assert all(repr(name) in str(error) for name in names)
    kept = {k.name: k for k in error.graph.kept}
    assert set(kept) == {*names, "head"}
    assert all(kept[name].size == 8 and "verification fails" in kept[name].reason for name in names)
    assert error.graph.all_filters == dafp.trace(model, X, **LIES).all_filters
    assert all(name in error.graph.explain(name) for name in names)
    small = dafp.prune(model, error.graph, uniform(l1_norm(model, error.graph), 0.5))
    widths = {name: conv.out_channels for name, conv in small.named_modules() if "convs." in name}
    assert widths == {f"convs.{n}": 8 if f"convs.{n}" in names else 4 for n in range(6)}
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert str(failed(model, compensate=compensate)) == str(error), "the same every time"


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
@pytest.mark.parametrize(
    "options",
    [{}, {"data": [torch.randn(8, 3, 8, 8)], "fast": True}, {"rule": uniform}],
    ids=["no data", "data", "rule"],
)
@pytest.mark.parametrize(("build", "names"), CASES.values(), ids=CASES)
def test_slim_keeps_them_and_still_meets_the_target(build, names, options, unit, caplog):
    model = build().eval()
    small = dafp.slim(model, X, 0.4, unit, **options, **LIES)
    report, plan = dafp.slim_report(small), dafp.plan_of(small)
    assert tuple(k.name for k in report.failing) == names
    assert not set(names) & set(plan.keep)
    whole = dafp.trace(model, X, **LIES)
    all_of_it = dafp.PruningPlan({**{name: tuple(range(8)) for name in names}, **plan.keep})
    assert removed_share(whole, whole.resolve(all_of_it), unit) == pytest.approx(0.4, abs=0.02)
    (line,) = caplog.messages
    assert "\n" not in line
    assert all(name in line for name in names)
    assert line in str(report)


def test_measured_damage_serves_the_second_plan_too():
    data = [torch.randn(8, 3, 8, 8)]
    build, names = CASES["two at once"]
    small = dafp.slim(build().eval(), X, 0.4, data=data, **LIES)
    report = dafp.slim_report(small)
    assert tuple(k.name for k in report.failing) == names
    assert {name for entry in report.table.groups for name in entry.names} >= set(names)
    assert report.rebuilt < report.as_cut
    plan = dafp.plan_of(small)
    assert sum(plan.sizes.values()) - sum(map(len, plan.keep.values())) == round(0.4 * 48)


def test_slim_says_nothing_where_nothing_fails(caplog):
    small = dafp.slim(Net({}).eval(), X)
    assert dafp.slim_report(small).failing == ()
    assert not caplog.messages


def test_a_target_that_the_other_groups_cannot_meet_is_refused():
    model = Net(dict.fromkeys(range(5), Adds())).eval()
    with pytest.raises(dafp.errors.TargetError, match="verification fails"):
        dafp.slim(model, X, 0.5, **LIES)


def test_a_model_that_fails_unpruned_has_no_failing_groups():
    model = Net({})
    graph = dafp.trace(model, X)
    model.convs[3].bias.data[0] = float("inf")
    with pytest.raises(VerificationError, match="not finite") as caught:
        dafp.prune(model, graph, dafp.PruningPlan({"convs.1": (0, 1)}))
    assert caught.value.graph is None
    assert caught.value.groups == ()
