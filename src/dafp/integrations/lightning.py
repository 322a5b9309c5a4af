"""Sparse training as a callback of a Lightning Trainer."""

from typing import Any

from torch import nn

from ..errors import TrainingError
from ..extras import need
from ..sparse_training.training import SparseTraining
from .callback_results import CallbackResults
from .pending_setup import PendingSetup

need("lightning.pytorch", "lightning", "dafp.integrations.lightning")
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402 - after need()


class LightningSparsityCallback(CallbackResults, Callback):
    """Trains a LightningModule towards sparsity, for as many epochs as its Trainer has.

        sparsity = SparsityCallback(target=0.5, example=torch.zeros(1, 3, 32, 32))
        lightning.Trainer(max_epochs=40, callbacks=[sparsity]).fit(module, data)
        small = dafp.prune(module, sparsity.graph, sparsity.plan())

    `network` names the submodule that takes the example, if it is not the module itself; then you
    prune that submodule. Further options are those of `dafp.trace` (residual, keep, rules) and
    `dafp.SparseTraining` (p, criterion, step, unit). After every epoch the record is logged as
    sparsity/…; the state is part of Lightning's checkpoints.
    """

    _started_by = "trainer.fit(...)"

    def __init__(
        self, target: float = 0.5, *, example: Any, network: str = "", **options: Any
    ) -> None:
        self._setup = PendingSetup(target, example, **options)
        self._network = network
        self._saved: dict[str, Any] = {}  # from a checkpoint, until the training starts

    @property
    def sparse(self) -> SparseTraining:
        """The sparse training, which exists once the training has started."""
        if self._saved:
            raise TrainingError(
                "the checkpoint is that of a finished training, so nothing was trained; give the "
                "Trainer more max_epochs, or use the plan of the finished training"
            )
        return super().sparse

    # ---- what Lightning calls --------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise TrainingError(
                f"SparsityCallback works with one optimizer, {type(pl_module).__name__} has "
                f"{len(trainer.optimizers)}; use dafp.SparseTraining in training_step instead"
            )
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise TrainingError(
                "SparsityCallback needs the length of the training: give the Trainer max_epochs"
            )
        if trainer.global_step > 0 and not self._saved:
            raise TrainingError(
                f"the training continues at epoch {trainer.current_epoch}, step "
                f"{trainer.global_step}, without the state of SparsityCallback; start again with "
                "a new Trainer, or from a checkpoint that was written with the callback"
            )
        network = _part(pl_module, self._network)
        self._sparse = self._setup.start(network, trainer.optimizers[0], trainer.max_epochs)
        if self._saved:
            self._sparse.load_state_dict(self._saved)
            self._saved = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        record = self.sparse.end_epoch()
        values = {f"sparsity/{k}": v for k, v in vars(record).items() if k != "epoch"}
        pl_module.log_dict(values, sync_dist=True)  # equal on all ranks; else Lightning warns

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.sparse.detach()

    @property
    def state_key(self) -> str:
        """The callback's name in checkpoints."""
        return "SparsityCallback"

    def state_dict(self) -> dict[str, Any]:
        return self._saved if self._sparse is None else self._sparse.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict


SparsityCallback = LightningSparsityCallback


def _part(module: LightningModule, name: str) -> nn.Module:
    try:
        part: nn.Module = module.get_submodule(name)
    except AttributeError as error:
        parts = ", ".join(child for child, _ in module.named_children())
        raise TrainingError(
            f"network={name!r} is not a submodule of {type(module).__name__}, which has {parts}; "
            "name the one that takes the example"
        ) from error
    return part
