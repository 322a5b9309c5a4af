"""Sparse training as a callback of the Hugging Face Trainer."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import TrainingError
from ..extras import need
from .callback_results import CallbackResults
from .pending_setup import PendingSetup

need("transformers", "transformers", "dafp.integrations.huggingface")
from transformers import TrainerCallback, TrainerControl, TrainerState  # noqa: E402 - after need()
from transformers import TrainingArguments as Arguments  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402


class HuggingFaceSparsityCallback(CallbackResults, TrainerCallback, ExportableState):
    """Trains the model of a Trainer towards sparsity, for as many epochs as it has.

        sparsity = SparsityCallback(target=0.5, example={"pixel_values": x}, log=trainer.log)
        trainer.add_callback(sparsity)
        trainer.train()
        small = dafp.prune(trainer.model, sparsity.graph, sparsity.plan())

    Options are those of `dafp.trace` (residual, keep, rules) and `dafp.SparseTraining` (p,
    criterion, step, unit). After every epoch `log`, if given, is called with the values of the
    record, named sparsity/…. The state is a part of trainer_state.json in every checkpoint;
    `trainer.train(resume_from_checkpoint=...)` restores it.
    """

    _started_by = "trainer.train()"

    def __init__(
        self,
        target: float = 0.5,
        *,
        example: Any,
        log: Callable[[dict[str, float]], None] | None = None,
        **options: Any,
    ) -> None:
        self._setup = PendingSetup(target, example, **options)
        self._log = log

    # ---- what the Trainer calls ------------------------------------------------------------------

    def on_train_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.restore_callback_states_from_checkpoint:
            raise TrainingError(
                "SparsityCallback restores itself, while restore_callback_states_from_checkpoint="
                "True would make a new one without its example; leave it False"
            )
        if state.num_train_epochs >= sys.maxsize:  # the Trainer's value for an unknown number
            raise TrainingError(
                "SparsityCallback needs the number of epochs, which is unknown with "
                f"max_steps={args.max_steps} of a dataset without a length; give the dataset a "
                "__len__, or use dafp.SparseTraining in a loop of your own"
            )
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has no hooks
        self._sparse = self._setup.start(kwargs["model"], optimizer, state.num_train_epochs)
        if state.global_step == 0:
            return
        saved = _saved_state(state, type(self).__name__)
        if not saved:
            raise TrainingError(
                f"the training continues at step {state.global_step}, but its checkpoint was "
                "written without a SparsityCallback; start again, or from a checkpoint that has one"
            )
        self._sparse.load_state_dict(_with_tensors(saved))
        if len(self.records) < int(state.epoch):  # saved at the last step, before the epoch's end
            self._sparse.end_epoch()

    def on_epoch_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        record = self.sparse.end_epoch()
        if self._log is not None:
            wanted = control.should_log  # logging resets it, but the epoch's loss needs it
            self._log({f"sparsity/{k}": v for k, v in vars(record).items() if k != "epoch"})
            control.should_log = wanted

    def on_train_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.sparse.detach()

    def state(self) -> dict[str, Any]:
        """The entry in trainer_state.json."""
        saved = {} if self._sparse is None else _as_json(self._sparse.state_dict())
        return {"args": {}, "attributes": saved}


SparsityCallback = HuggingFaceSparsityCallback


def _saved_state(state: TrainerState, name: str) -> dict[str, Any]:
    """The callback's entry in a checkpoint; version 0.1 wrote it as SparsityCallback."""
    saved = state.stateful_callbacks
    entry = saved.get(name) or saved.get("SparsityCallback", {})
    attributes: dict[str, Any] = entry.get("attributes", {})
    return attributes


def _as_json(value: Any) -> Any:
    """The same nesting with tensors as lists; Python's floats keep every bit."""
    if isinstance(value, Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _with_tensors(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"tensor", "dtype"}:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]), device="cpu")
    if isinstance(value, dict):
        return {key: _with_tensors(item) for key, item in value.items()}
    return [_with_tensors(item) for item in value] if isinstance(value, list) else value
