"""Sparse training as callbacks of the trainer of ultralytics."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from ultralytics.nn.tasks import load_checkpoint

from ..errors import TrainingError
from ..pruning import prune
from . import yolo_networks as networks
from .callback_results import CallbackResults
from .pending_setup import PendingSetup
from .yolo_model import YOLO

_STATE = "dafp_sparsity"  # attribute of the network in every checkpoint: the state, plain tensors


class UltralyticsSparsityCallback(CallbackResults):
    """Trains a YOLO model towards sparsity, for as many epochs as its trainer has.

        sparsity = SparsityCallback(target=0.5, unit="macs")
        sparsity.add_to(yolo)
        yolo.train(data="shapes.yaml", epochs=40)
        small = sparsity.prune()

    Options are those of `dafp.trace` (residual, keep, rules) and `dafp.SparseTraining` (p,
    criterion, step, unit). The example is of the trainer's image size. Records go to results.csv.
    The state is a part of last.pt; add a callback to YOLO("last.pt") before you resume.
    """

    _started_by = "yolo.train(...), on one device"

    def __init__(self, target: float = 0.5, **options: Any) -> None:
        self._setup = PendingSetup(target, None, **options)
        self._yolo: Any = None
        self._saved: dict[str, Any] | None = None  # at the end of the last epoch that was saved

    def add_to(self, yolo: Any) -> None:
        """Register the callbacks at a YOLO, of dafp or of ultralytics."""
        for event in ("on_train_start", "on_train_epoch_start", "on_train_epoch_end",
                      "on_model_save", "on_train_end"):  # fmt: skip
            yolo.add_callback(event, getattr(self, event))
        self._yolo = yolo

    def prune(self) -> YOLO:
        """A YOLO with the network of the end of the training, pruned by `plan()` and verified."""
        model, graph, plan = self.sparse.model, self.graph, self.plan()
        networks.without_loss(model)
        with networks.without_features(model):
            small = prune(model, graph, plan)
        return YOLO(self._yolo)._with(networks.finished(small))

    # ---- what the trainer calls ------------------------------------------------------------------

    def on_train_start(self, trainer: Any) -> None:
        model = _network_of(trainer)
        saved = _state_of(trainer) if trainer.start_epoch > 0 else None
        parameter = next(model.parameters())
        size, channels = trainer.args.imgsz, int(model.yaml.get("channels", 3))
        example = torch.zeros(1, channels, size, size, device=parameter.device)
        with networks.without_features(model):
            setup = replace(self._setup, example=example)
            self._sparse = setup.start(model, trainer.optimizer, trainer.epochs)
        if saved is not None:
            self._sparse.load_state_dict(saved)
            self._saved = saved

    def on_train_epoch_start(self, trainer: Any) -> None:
        if len(self.records) > trainer.epoch and self._saved is not None:
            self.sparse.load_state_dict(self._saved)  # the trainer repeats an epoch that failed

    def on_train_epoch_end(self, trainer: Any) -> None:
        record = self.sparse.end_epoch()
        trainer.lr |= {f"sparsity/{k}": v for k, v in vars(record).items() if k != "epoch"}
        vars(trainer.ema.ema)[_STATE] = self.sparse.state_dict()

    def on_model_save(self, trainer: Any) -> None:
        self._saved = deepcopy(self.sparse.state_dict())

    def on_train_end(self, trainer: Any) -> None:
        self.sparse.detach()


def _network_of(trainer: Any) -> Any:
    """The network that a trainer trains; raise where sparse training is not possible."""
    if trainer.world_size > 1:
        raise TrainingError(
            f"SparsityCallback trains on one device, the trainer has {trainer.world_size}: give "
            "device=0; fine-tune the pruned network on all of them"
        )
    for name, advice in (
        ("time", "give epochs=, which sparse training must know, instead"),
        ("freeze", "the scales of frozen layers cannot fade; leave it out"),
        ("distill_model", "train the network sparse without a teacher, and distil it afterwards"),
        ("compile", "compile the pruned network instead"),
    ):
        value = getattr(trainer.args, name, None)
        if value:
            raise TrainingError(f"SparsityCallback does not work with {name}={value!r}: {advice}")
    steps = len(trainer.train_loader)
    if trainer.accumulate > steps:
        raise TrainingError(
            f"the trainer accumulates {trainer.accumulate} batches for a step (nbs="
            f"{trainer.args.nbs}), but an epoch has {steps}: SparsityCallback needs a step in "
            f"every epoch; give nbs={trainer.batch_size}"
        )
    networks.check_network(trainer.model, "the network of the trainer")
    return trainer.model


def _state_of(trainer: Any) -> dict[str, Any]:
    """The state in the checkpoint from which the trainer resumes."""
    network, _ = load_checkpoint(trainer.args.resume)
    saved = vars(network).get(_STATE)
    if saved is None:
        raise TrainingError(
            f"the training continues at epoch {trainer.start_epoch + 1}, but {trainer.args.resume} "
            "was written without a SparsityCallback; start again, or from a checkpoint that has one"
        )
    return dict(saved)
