"""Sparse training inside your own training loop: three lines, and no λ to choose.

This file holds the hooks and the bookkeeping. λ is controlled by `automatic_control.py` for
step="auto", and by `algorithm1.py` if step is a number.
"""

import logging
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..criteria.scores import Criterion, Scores
from ..criteria.table import criterion_named
from ..errors import TrainingError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..graph.printing import html_table
from ..selection.rules import local_threshold
from ..selection.targets import removed_share, to_target
from .algorithm1 import SparsityController, check_control
from .automatic_control import AutomaticControl, ChannelState, filter_channels, share_without
from .scale_penalty import ScalePenalty
from .schedule import SparsitySchedule
from .taylor_importance import TaylorImportance

FEW_EPOCHS = 8  # with fewer, channels have little time to fade before they are removed
MISSED = 0.02  # P this far below the target has not arrived
_log = logging.getLogger(__name__)
CONTROLS = 4  # number of times per epoch that step="auto" updates λ


@dataclass(frozen=True)
class Record:
    """The result of one epoch of sparse training.

    `aim` is the P that is due by now. With step="auto" it is that of the schedule. Algorithm 1 has
    no such schedule: it compares each increase of P with the distance left. There `aim` is the
    straight line r·t/N, for reference only.

    Examples:
        >>> record = dafp.Record(
        ...     epoch=1, penalty=1e-4, sparsity=0.1, target=0.5, aim=0.12, filters=0.1
        ... )
        >>> record.sparsity < record.aim  # P is behind its schedule
        True
    """

    epoch: int
    penalty: float  # λ of the next epoch
    sparsity: float  # P: the share that local_threshold at p would remove now, in the target's unit
    target: float  # r
    aim: float  # see above
    filters: float  # P in filters, whatever the unit


class SparseTraining:
    """Adds the L1 penalty λ·Σ|γ| on the BN scales to every step of an optimizer, and controls λ.

    P is the share of `unit` that `local_threshold` at `p` (Eq. 6) would remove. Call `end_epoch`
    after every epoch; nothing else in the training loop changes.

    Args:
        model: the network to train
        graph: its channel graph, from `dafp.trace`
        optimizer: the optimizer that trains it; the penalty is added by hooks on its steps
        target: r, the share to remove
        epochs: number of epochs of the whole sparse training
        p: the threshold of `local_threshold`
        criterion: name of a criterion of `dafp.criteria` that needs no data, or a function
        step: "auto" reaches the target by itself; a number is the Δ of Algorithm 1
        unit: "filters", "params" or "macs"

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
        ... )
        >>> images, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 2
        >>> graph = dafp.trace(model, images)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        >>> sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=10)
        >>> for epoch in range(10):
        ...     for _ in range(8):
        ...         optimizer.zero_grad()
        ...         nn.functional.cross_entropy(model(images), labels).backward()
        ...         optimizer.step()
        ...     record = sparse.end_epoch()
        >>> record.epoch, record.sparsity
        (10, 0.5)
        >>> len(sparse.plan().keep["0"])
        4
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
        check_control(target, epochs, step)
        if not 0 < p < 1:
            raise TrainingError(f"p={p} must lie between 0 and 1, e.g. 0.01")
        if unit not in ("filters", "params", "macs"):
            raise TrainingError(f"unit={unit!r} is not known; choose 'filters', 'params' or 'macs'")
        self.model, self.graph, self.optimizer = model, graph, optimizer
        self.target, self.epochs, self.p, self.unit = target, epochs, p, unit
        self.criterion = criterion_named(criterion)
        self.records: list[Record] = []
        # the automatic control needs scales that stop at zero
        self._scales = ScalePenalty(model, graph, optimizer, decoupled=step == "auto")
        scales = self._scales.scales
        self._importance = TaylorImportance([s.weight for s in scales], [s.shift for s in scales])
        self.controller: SparsityController | AutomaticControl
        if isinstance(step, str):
            self.controller = AutomaticControl(
                graph, self._scales.penalised, target=target, p=p, unit=unit
            )
        else:
            self.controller = SparsityController(target, epochs, step)
        self._check_reachable()
        self._step, self._in_epoch, self._per_epoch = 0, 0, 0
        self._count = optimizer.register_step_post_hook(self._after_step)

    def __repr__(self) -> str:
        text = f"SparseTraining towards {self.target} of {self.unit}"
        text += f", after {len(self.records)} of {self.epochs} epochs"
        return text + (f": P = {self.records[-1].sparsity:.3f}" if self.records else "")

    def _repr_html_(self) -> str:
        rows = [
            (r.epoch, f"{r.sparsity:.3f}", f"{r.aim:.3f}", f"{r.penalty:.3g}")
            for r in self.records[-20:]
        ]
        return html_table(repr(self), ("epoch", "P", "aim", "λ"), rows)

    @property
    def penalty(self) -> float:
        """The current λ."""
        return self.controller.penalty

    def end_epoch(self) -> Record:
        """Measure P, update λ for the next epoch, and return the record of this epoch."""
        if self._in_epoch == 0:
            raise TrainingError(
                "end_epoch() was called, but the optimizer made no step since the last epoch; is "
                "it the optimizer that was given to SparseTraining?"
            )
        self._per_epoch, self._in_epoch = self._in_epoch, 0
        scores = self.scores()
        sparsity = self.sparsity(scores)
        aim = self.target * (len(self.records) + 1) / self.epochs
        if isinstance(self.controller, SparsityController):
            self._scales.set_penalties(self._scales.penalised * self.controller.update(sparsity))
        else:
            self._control(self.controller, scores)
            aim = self._schedule().aim(self.target)
        record = Record(
            epoch=len(self.records) + 1,
            penalty=self.penalty,
            sparsity=sparsity,
            target=self.target,
            aim=aim,
            filters=self._share(scores, "filters"),
        )
        self.records.append(record)
        return record

    def scores(self) -> Scores:
        """The criterion's scores of the network as it is now."""
        return self.criterion(self.model, self.graph)

    def sparsity(self, scores: Scores | None = None) -> float:
        """P: the share of the unit that local_threshold at p would remove now."""
        return self._share(self.scores() if scores is None else scores, self.unit)

    def plan(self) -> PruningPlan:
        """The plan of local_threshold at p for the network as it is now.

        Where P has not arrived at the target, for example because training was stopped early, the
        threshold is raised until the plan meets it, and a warning is logged: the channels that go
        in addition are not near zero, and fine-tuning has to make up for them.
        """
        scores = self.scores()
        reached = self.sparsity(scores)
        if reached < self.target - MISSED:
            _log.warning(
                "P is %.3f of the %.3f asked for after %d of %d epochs; the plan meets the target "
                "all the same, by the lowest scores above the threshold p=%g",
                reached, self.target, len(self.records), self.epochs, self.p,
            )  # fmt: skip
            return to_target(scores, self.graph, self.target, self.unit, local_threshold)
        return self.graph.resolve(local_threshold(scores, self.p))

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        self._scales.detach()
        self._count.remove()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs: plain numbers and small tensors."""
        return {
            **self.controller.state_dict(),
            "step": self._step,
            "in_epoch": self._in_epoch,
            "per_epoch": self._per_epoch,
            "taylor_importance": self._importance.state_dict(),
            "records": [asdict(record) for record in self.records],
            "scales": self._scales.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._scales.load_state_dict(state["scales"])
        # version 0.1 stores the importance under the key "felt", and records by position
        importance = state["taylor_importance"] if "taylor_importance" in state else state["felt"]
        self._importance.load_state_dict(importance)
        self.controller.load_state_dict(state)
        self._step, self._in_epoch = state["step"], state["in_epoch"]
        self._per_epoch = state["per_epoch"]
        self.records = [
            Record(**values) if isinstance(values, dict) else Record(*values)
            for values in state["records"]
        ]

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._step == 0 and self.epochs < FEW_EPOCHS:
            _log.warning(
                "epochs=%d is few for sparse training: channels are to fade slowly, and %d or more "
                "keep more accuracy",
                self.epochs,
                FEW_EPOCHS,
            )
        self._step += 1
        self._in_epoch += 1
        if isinstance(self.controller, SparsityController):
            return
        window = self._per_epoch or self._in_epoch
        self._importance.add(window, getattr(optimizer, "found_inf", None))
        if self._per_epoch:
            period = self._period()
            if self._in_epoch % period == 0 and self._in_epoch <= period * (CONTROLS - 1):
                self._control(self.controller, self.scores())

    @torch.no_grad()
    def _control(self, control: AutomaticControl, scores: Scores) -> None:
        """Measure the network, update the automatic control, and set the penalty."""
        state = ChannelState(
            relative=self._relative(scores),
            magnitude=self._scales.magnitudes(),
            importance=self._scales.by_channel(self._importance.by_scale()),
            moving=self._scales.moving(),
            rate=self._scales.fastest_rate(),
        )
        decision = control.update(state, self._schedule(), self._period())
        self._scales.decay_shifts(decision.decayed, decision.decay_steps)
        self._scales.set_penalties(decision.chosen * self.penalty, equalize_lr=True)

    def _period(self) -> int:
        """Number of steps between two updates of λ."""
        return max(1, self._per_epoch // CONTROLS)

    def _schedule(self) -> SparsitySchedule:
        return SparsitySchedule(self.epochs * self._per_epoch, self._step)

    def _share(self, scores: Scores, unit: str) -> float:
        return removed_share(self.graph, local_threshold(scores, self.p), unit)

    def _relative(self, scores: Scores) -> Tensor:
        """Every channel's score as a share of the best of its group."""
        parts = [scores[g.name].detach().double().cpu() for g in self.graph.groups]
        return torch.cat([s / s.max().clamp(min=1e-300) for s in parts])

    def _check_reachable(self) -> None:
        """Raise if the target cannot be reached by the channels that have scales."""
        free = self._scales.penalised & filter_channels(self.graph)
        for part in free.split([group.size for group in self.graph.groups]):
            if bool(part.all()):
                part[0] = False  # every group keeps one
        reach = share_without(self.graph, free.nonzero().flatten(), self.unit)
        if self.target > reach + 1e-9:
            self._scales.detach()
            raise TrainingError(
                f"target={self.target} of {self.unit} is out of reach: the filters that have a BN "
                f"scale to penalise, without one per layer, are only {reach:.3f} of it"
            )
