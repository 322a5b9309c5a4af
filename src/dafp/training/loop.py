"""The training loop of every stage and every method."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from ..data import DataSet
from ..errors import TrainingError
from ..files.checkpoint import load_into, read_checkpoint, write_checkpoint
from .config import Config, Schedule
from .devices import align_buffers, log, summed
from .distillation import distillation_loss
from .memory_format import set_memory_format, supports_channels_last
from .run_records import Epoch

CHECK_EVERY = 50  # steps between two checks of the loss: each one synchronises a GPU


class TrainingHook(Protocol):
    """The part of a method that acts during training; it may also add hooks to the optimizer."""

    def end_epoch(self) -> Any:
        """Called after every epoch; fields or items of the result become columns of the metrics."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Progress(Protocol):
    """Shows the progress of a run, as `dafp.cli.progress.TerminalProgress` does."""

    def stage(self, name: str, epochs: int, steps: int, done: int = 0, later: int = 0) -> None:
        """Start a stage; `later` epochs of the run come after it."""

    def step(self, loss: float | None = None) -> None: ...

    def epoch(self, row: Epoch) -> None: ...

    def say(self, text: str) -> None: ...


class NoProgress:
    """Shows nothing."""

    def stage(self, name: str, epochs: int, steps: int, done: int = 0, later: int = 0) -> None: ...

    def step(self, loss: float | None = None) -> None: ...

    def epoch(self, row: Epoch) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class TrainingContext:
    """What all stages of a run have in common."""

    config: Config
    data: DataSet = field(repr=False)
    accelerator: Accelerator = field(repr=False)
    progress: Progress


def train_stage(
    model: nn.Module,
    context: TrainingContext,
    stage: str,
    schedule: Schedule,
    file: Path,
    make_hook: Callable[[nn.Module, Optimizer], TrainingHook] | None = None,
    publish: Callable[[list[Epoch]], None] | None = None,
    teacher: nn.Module | None = None,
    later: int = 0,
) -> list[Epoch]:
    """Train the model in place, from the checkpoint `file` if it exists; return a row per epoch.

    The checkpoint holds the whole state, so a stage that was killed continues to the same result,
    and a finished stage returns at once. A `teacher` (for distillation) is not trained. `later`
    epochs of the run come after this stage; progress counts them in the time left.
    """
    config, data, accelerator = context.config, context.data, context.accelerator
    state = read_checkpoint(file) if file.exists() else None
    if state is not None:
        load_into(model, state["model"], file)
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(state["scaler"])
    set_memory_format(model.to(accelerator.device), config.channels_last)
    if state is not None and state["epoch"] == schedule.epochs:
        return list(state["rows"])
    optimizer = make_optimizer(model, config, schedule.lr)
    hook = make_hook(model, optimizer) if make_hook else None
    rows: list[Epoch] = []
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
        if hook is not None:
            hook.load_state_dict(state["addition"])
        rows = list(state["rows"])
    wrapped, stepper = accelerator.prepare(model, optimizer)
    if teacher is not None:
        teacher.to(accelerator.device).eval()
    steps = data.steps("train", config.batch_size)
    context.progress.stage(stage, schedule.epochs, steps, len(rows), later)
    for epoch in range(len(rows) + 1, schedule.epochs + 1):
        start = time.perf_counter()
        torch.manual_seed(_seed_of(config.seed, stage, epoch))  # same dropout after a restart
        loss, accuracy = train_epoch(
            wrapped, stepper, context, schedule, epoch, f"{stage} in {file}", teacher
        )
        seconds = time.perf_counter() - start
        align_buffers(model, accelerator)
        _check_weights(model, epoch, f"{stage} in {file}")
        row: Epoch = {
            "stage": stage,
            "epoch": epoch,
            "epochs": schedule.epochs,
            "lr": learning_rate(schedule, epoch, 0, steps),
            "loss": loss,
            "train_accuracy": accuracy,
        }
        if hook is not None:
            _add_columns(row, hook.end_epoch())
        _evaluate_epoch(row, model, context, rows, last=epoch == schedule.epochs)
        row["images"], row["epoch_s"] = steps * config.batch_size, seconds
        rows.append(row)
        if accelerator.is_main_process:
            done = epoch == schedule.epochs
            write_checkpoint(
                file,
                {
                    "epoch": epoch,
                    "rows": rows,
                    "model": model.state_dict(),
                    "optimizer": {} if done else optimizer.state_dict(),
                    "addition": hook.state_dict() if hook and not done else {},
                    "scaler": accelerator.scaler.state_dict() if accelerator.scaler else {},
                },
            )
        accelerator.wait_for_everyone()
        log(accelerator, {f"{stage}/{k}": v for k, v in row.items()}, epoch)
        if publish is not None:
            publish(rows)
        context.progress.epoch(row)
    accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
    accelerator.free_memory()
    return rows


def train_epoch(
    model: nn.Module,
    optimizer: Any,
    context: TrainingContext,
    schedule: Schedule,
    epoch: int,
    where: str,
    teacher: nn.Module | None = None,
) -> tuple[float, float]:
    """Train for one epoch; return the mean loss and accuracy on its (augmented) batches."""
    config, accelerator = context.config, context.accelerator
    total = torch.zeros(3, device=accelerator.device)
    model.train()
    batches = context.data.batches(
        "train",
        batch_size=config.batch_size,
        epoch=epoch,
        seed=config.seed,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        device=accelerator.device,
        channels_last=config.channels_last and supports_channels_last(model),
    )
    steps = context.data.steps("train", config.batch_size)
    for step, (x, y) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, epoch, step, steps)
        out = model(x)
        loss = _loss(out, x, y, context, teacher)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total += _sums(loss.detach(), out.detach(), y)
        if step % CHECK_EVERY == 0:
            context.progress.step(_finite(float(loss.detach()), epoch, where))
        else:
            context.progress.step()
    right, loss_sum, count = summed(total, accelerator).tolist()
    return _finite(loss_sum / count, epoch, where), right / count


def _loss(
    out: Tensor, x: Tensor, y: Tensor, context: TrainingContext, teacher: nn.Module | None
) -> Tensor:
    if teacher is None:
        return cross_entropy(out, y)
    with torch.no_grad(), context.accelerator.autocast():
        teacher_logits = teacher(x).float()
    config = context.config
    return distillation_loss(out, y, teacher_logits, config.distill, config.temperature)


def make_optimizer(model: nn.Module, config: Config, lr: float) -> Optimizer:
    if config.optimizer == "adamw":
        return AdamW(model.parameters(), lr, weight_decay=config.weight_decay)
    return SGD(model.parameters(), lr, config.momentum, weight_decay=config.weight_decay)


def learning_rate(schedule: Schedule, epoch: int, step: int = 0, steps: int = 1) -> float:
    """The learning rate of a step (from 0) of an epoch (from 1) that has `steps` steps.

    "steps": times `decay` after every milestone. "cosine": up to lr during warm-up, then down to 0.
    """
    if schedule.shape == "cosine":
        done, total = (epoch - 1) * steps + step, schedule.epochs * steps
        warmup = round(schedule.warmup * total)
        if done < warmup:
            return schedule.lr * (done + 1) / warmup
        return schedule.lr * (1 + math.cos(math.pi * (done - warmup) / (total - warmup))) / 2
    passed = sum(epoch > round(share * schedule.epochs) for share in schedule.milestones)
    return float(schedule.lr * schedule.decay**passed)


@torch.no_grad()
def evaluate(
    model: nn.Module, context: TrainingContext, part: str, batch_size: int = 512
) -> tuple[float, float]:
    """Accuracy (a share) and mean loss on val or test; the model's mode is left as it was."""
    accelerator, training = context.accelerator, model.training
    world = accelerator.num_processes
    total = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    model.eval()
    batches = context.data.batches(
        part,
        batch_size=-(-batch_size // world) * world,
        rank=accelerator.process_index,
        world=world,
        device=accelerator.device,
        channels_last=context.config.channels_last,
    )
    with accelerator.autocast():
        for x, y in batches:
            if len(y):
                out = model(x).float()
                total[0] += (out.argmax(1) == y).sum()
                total[1] += cross_entropy(out, y, reduction="sum")
                total[2] += len(y)
    model.train(training)
    right, loss, count = summed(total, accelerator).tolist()
    if count == 0:
        return math.nan, math.nan
    return right / count, loss / count


def _sums(loss: Tensor, out: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(out.argmax(1) == y).sum(), loss * len(y), loss.new_tensor(len(y))])


def _finite(loss: float, epoch: int, where: str) -> float:
    if not math.isfinite(loss):
        raise _lost(f"the loss became {loss}", epoch, where)
    return loss


def _check_weights(model: nn.Module, epoch: int, where: str) -> None:
    """Raise if a weight is not finite: no loss is computed after the last step of an epoch."""
    tensors = [t for t in model.state_dict().values() if t.is_floating_point()]
    if not bool(torch.stack([t.isfinite().all() for t in tensors]).all()):
        raise _lost("the weights became infinite", epoch, where)


def _lost(what: str, epoch: int, where: str) -> TrainingError:
    kept = f"the checkpoint of epoch {epoch - 1} is kept" if epoch > 1 else "none was finished"
    return TrainingError(
        f"{what} in epoch {epoch} of {where}; {kept}. Lower the learning rate (--set STAGE.lr=…, "
        "with another --out) or look at the data"
    )


def _evaluate_epoch(
    row: Epoch, model: nn.Module, context: TrainingContext, before: list[Epoch], last: bool
) -> None:
    """Evaluate on val; on test only in the last epoch or if val accuracy is the best so far."""
    row["val_accuracy"] = row["val_loss"] = row["test_accuracy"] = None
    if context.data.sizes["val"]:
        row["val_accuracy"], row["val_loss"] = evaluate(model, context, "val")
    best = max((earlier["val_accuracy"] or 0.0 for earlier in before), default=-1.0)
    if last or (row["val_accuracy"] or 0.0) > best:
        row["test_accuracy"] = evaluate(model, context, "test")[0]


def _add_columns(row: Epoch, value: Any) -> None:
    """Add the numbers that a method reports for an epoch; existing columns are not replaced."""
    columns = value if isinstance(value, Mapping) else vars(value)
    for name, number in columns.items():
        cast(dict[str, Any], row).setdefault(name, number)


def _seed_of(seed: int, stage: str, epoch: int) -> int:
    return (seed * 1_000_003 + sum(stage.encode()) * 10_007 + epoch) % 2**63
