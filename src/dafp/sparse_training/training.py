"""Train towards sparsity, in anybody's own loop: three lines, no λ to choose."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..criteria.scores import Criterion, Scores
from ..criteria.table import criterion_named
from ..errors import TrainingError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..selection.rules import local_threshold
from ..selection.targets import removed_share, share_of_flags
from .algorithm1 import SparsityController
from .scale_penalty import ScalePenalty
from .schedule import SparsitySchedule
from .taylor_importance import TaylorImportance

CONTROLS = 4  # times per epoch that step="auto" looks at the network
_FLOOR = 8  # channels of a layer (of small ones a quarter) that are chosen last
_LESS = 0.1  # a selection goes if the loss feels it less, by this factor, than filters that go
_HARDER = 1.25  # factor on the pull when sparsity lags behind its line


@dataclass(frozen=True)
class Record:
    """What one epoch of sparse training came to."""

    epoch: int
    penalty: float  # λ of the epoch that comes next
    sparsity: float  # P: the share that p would remove now, in the unit of the target
    target: float
    aim: float  # where P should be by now
    filters: float  # P in filters, whatever the unit


class SparseTraining:
    """Adds the L1 penalty on the BN scales to every step of an optimizer, and steers it.

        graph = dafp.trace(model, example)
        sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=40)
        ...                                 # your loop, unchanged
            record = sparse.end_epoch()     # after every epoch

    P is the share of `unit` (filters, params or macs) that local_threshold at `p` would remove.
    step="auto" arrives at the target by itself (docs/sparsity.md); a number is Algorithm 1.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: ChannelGraph,
        optimizer: Optimizer,
        target: float = 0.5,
        epochs: int = 40,
        p: float = 0.01,
        criterion: str | Criterion = "dependency_aware",
        step: float | str = "auto",
        *,
        unit: str = "filters",
    ) -> None:
        check_same_model(model, graph)
        self.controller = SparsityController(target, epochs, step)
        if not 0 < p < 1:
            raise TrainingError(f"p={p} must lie between 0 and 1, e.g. 0.01")
        if unit not in ("filters", "params", "macs"):
            raise TrainingError(f"unit={unit!r} is not known; choose 'filters', 'params' or 'macs'")
        self.model, self.graph, self.optimizer = model, graph, optimizer
        self.target, self.epochs, self.p, self.unit = target, epochs, p, unit
        self.criterion = criterion_named(criterion)
        self.records: list[Record] = []
        self._sizes = [g.size for g in graph.groups]
        self._is_filter = torch.cat(
            [torch.full((g.size,), g.kind == "filter") for g in graph.groups] or [torch.zeros(0)]
        ).bool()
        # steering needs scales that stop at zero
        self._scales = ScalePenalty(model, graph, optimizer, decoupled=step == "auto")
        self._penalised = self._scales.penalised
        scales = self._scales.scales
        self._felt = TaylorImportance([s.weight for s in scales], [s.shift for s in scales])
        self._reach()
        self._step, self._in_epoch, self._per_epoch = 0, 0, 0
        self._effort = 1.0
        self._count = optimizer.register_step_post_hook(self._after_step)

    # ---- what the loop sees --------------------------------------------------------------------

    @property
    def penalty(self) -> float:
        """λ now."""
        return self.controller.penalty

    def end_epoch(self) -> Record:
        """Judge the network, steer λ for what comes, and say where it stands."""
        if self._in_epoch == 0:
            raise TrainingError(
                "end_epoch() was called, but the optimizer made no step since the last epoch; is "
                "it the optimizer that was given to SparseTraining?"
            )
        self._per_epoch, self._in_epoch = self._in_epoch, 0
        scores = self.scores()
        sparsity = self.sparsity(scores)
        if self.controller.step == "auto":
            self._steer(scores)
        else:
            self._scales.pull(self._penalised * self.controller.update(sparsity))
        record = Record(
            len(self.records) + 1, self.penalty, sparsity, self.target,
            self._aim(), self._share(scores, "filters"),
        )  # fmt: skip
        self.records.append(record)
        return record

    def scores(self) -> Scores:
        """The criterion's scores of the network as it is now."""
        return self.criterion(self.model, self.graph)

    def sparsity(self, scores: Scores | None = None) -> float:
        """P: the share of the unit that local_threshold at p would remove now."""
        return self._share(self.scores() if scores is None else scores, self.unit)

    def plan(self) -> PruningPlan:
        """What local_threshold at p removes now, made legal."""
        return self.graph.resolve(local_threshold(self.scores(), self.p))

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        self._scales.detach()
        self._count.remove()

    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on after a restart: plain numbers and small tensors."""
        return {
            "penalty": self.penalty,
            "sparsity": self.controller.sparsity,
            "epoch": self.controller.epoch,
            "step": self._step,
            "in_epoch": self._in_epoch,
            "per_epoch": self._per_epoch,
            "effort": self._effort,
            "felt": self._felt.state_dict(),
            "records": [tuple(vars(r).values()) for r in self.records],
            "scales": self._scales.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._scales.load_state_dict(state["scales"])
        self._felt.load_state_dict(state["felt"])
        self.controller.penalty = state["penalty"]
        self.controller.sparsity, self.controller.epoch = state["sparsity"], state["epoch"]
        self._step, self._in_epoch = state["step"], state["in_epoch"]
        self._per_epoch, self._effort = state["per_epoch"], state["effort"]
        self.records = [Record(*values) for values in state["records"]]

    # ---- the steering, a few times an epoch ------------------------------------------------------

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._step += 1
        self._in_epoch += 1
        if self.controller.step != "auto":
            return
        self._felt.add(self._per_epoch or self._in_epoch, getattr(optimizer, "found_inf", None))
        if self._per_epoch:
            period = max(1, self._per_epoch // CONTROLS)
            if self._in_epoch % period == 0 and self._in_epoch <= period * (CONTROLS - 1):
                self._steer(self.scores())

    def _aim(self) -> float:
        if self.controller.step == "auto":
            return self._course().aim(self.target)
        return self.target * (len(self.records) + 1) / self.epochs  # Algorithm 1: a straight line

    def _course(self) -> SparsitySchedule:
        return SparsitySchedule(self.epochs * self._per_epoch, self._step)

    @torch.no_grad()
    def _steer(self, scores: Scores) -> None:
        """Choose the channels that are due, and pull so that they are gone in time.

        A line leads from nothing to the target; the channels that it asks for within the next
        stretch are pulled to be at zero by then. The others are left alone.
        """
        course, period = self._course(), max(1, self._per_epoch // CONTROLS)
        relative, size = self._relative(scores), self._scales.magnitudes()
        dead = relative <= self.p
        chosen = self._choose(relative, self.target * course.due(course.step + course.stretch))
        # a scale at zero leaves σ(β): let β follow, so that in the end nothing is left to lose
        self._scales.fade(dead & chosen, 0 if course.step > course.rest else course.stretch)
        waiting = chosen & self._is_filter & (size > 0) & self._scales.moving()
        arrived = course.step >= course.arrival
        behind = arrived or self._gone(dead) < course.aim(self.target) - 0.01
        late = behind and bool(waiting.any())
        self._effort = self._effort * _HARDER if late else max(1.0, self._effort / _HARDER)
        if bool(waiting.any()):
            way = self._effort * float(size[waiting].max()) / max(course.stretch, 2.0 * period)
            speed = self._scales.speed()
            # near zero the way is short: what lags behind is not pulled less than before
            harder = self.penalty * _HARDER if late else 0.0
            self.controller.penalty = min(max(way / speed, harder), float(size.max()) / speed)
        self._scales.pull(chosen * self.penalty, evenly=True)

    def _choose(self, relative: Tensor, target: float) -> Tensor:
        """The filters that go first until this share is reached, and selections worth far less.

        Selections count for nothing in P, so none is forced.
        """
        worth = self._worth(relative)
        filters = worth.masked_fill(~self._is_filter, torch.inf)
        order = filters.argsort(stable=True)
        low, high = 0, int(filters.isfinite().sum())
        if self.unit == "filters" and not self.graph.label_index.even_splits:
            high = min(high, round(target * int(self._is_filter.sum())))
        else:
            while low < high:
                middle = (low + high) // 2
                if self._share_without(order[:middle]) < target:
                    low = middle + 1
                else:
                    high = middle
        chosen = torch.zeros_like(self._is_filter)
        if high:
            chosen = ~self._is_filter & (worth <= _LESS * filters[order[high - 1]])
            chosen[order[:high]] = True
        return chosen

    def _gone(self, dead: Tensor) -> float:
        """The share of the unit that dead channels make up."""
        if self.unit == "filters":
            return float(dead[self._is_filter].double().mean())
        return self._share_without((dead & self._is_filter).nonzero().flatten())

    def _worth(self, relative: Tensor) -> Tensor:
        """What a channel is worth: in its group by its score, among groups by what the loss feels.

        The k-th by score has the k-th of the group's losses. The best few of a group go last, so
        that no layer becomes a bottleneck; the very best and what has no scale never go.
        """
        losses = self._scales.by_channel(self._felt.by_scale())
        worth, best = torch.empty_like(relative), torch.zeros_like(self._is_filter)
        for own, first, score, loss in zip(
            worth.split(self._sizes), best.split(self._sizes), relative.split(self._sizes),
            losses.split(self._sizes), strict=True,
        ):  # fmt: skip
            order = score.argsort(stable=True)
            own[order] = loss.sort().values.to(own)
            own[order[len(order) - min(_FLOOR, len(order) // 4) :]] += 1 + losses.sum()
            first[order[-1]] = True
        worth[relative <= self.p] = -1.0  # gone already
        return worth.masked_fill_(~self._penalised | best, torch.inf)

    def _share_without(self, channels: Tensor) -> float:
        stays = torch.ones_like(self._is_filter)
        stays[channels] = False
        return share_of_flags(self.graph, list(stays.split(self._sizes)), self.unit)

    def _share(self, scores: Scores, unit: str) -> float:
        return removed_share(self.graph, local_threshold(scores, self.p), unit)

    def _relative(self, scores: Scores) -> Tensor:
        """Every channel's score as a share of the best of its group."""
        parts = [scores[g.name].detach().double().cpu() for g in self.graph.groups]
        return torch.cat([s / s.max().clamp(min=1e-300) for s in parts])

    def _reach(self) -> None:
        """Refuse a target that cannot be reached by the channels that have scales."""
        free = (self._penalised & self._is_filter).clone()
        for part in free.split(self._sizes):
            if bool(part.all()):
                part[0] = False  # one of each stays
        reach = self._share_without(free.nonzero().flatten())
        if self.target > reach + 1e-9:
            self._scales.detach()
            raise TrainingError(
                f"target={self.target} of {self.unit} is out of reach: only {reach:.3f} goes with "
                "the filters that have a BN scale to penalise, leaving one in each layer"
            )
