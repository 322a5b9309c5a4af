"""The training loop: rates, judging, restarts, and what it does when the loss is lost."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dafp
from dafp.errors import FileError, TrainingError
from dafp.files.checkpoint import read_checkpoint
from dafp.training.config import Config, Schedule
from dafp.training.devices import make_accelerator
from dafp.training.loop import NoProgress, TrainingContext, evaluate, learning_rate, train_stage
from support.slow import slow_except
from support.training import graph_of, tiny_data, tiny_net


class StopError(Exception):
    """Somebody pulled the plug."""


class Unplugged(NoProgress):
    """Stops the training when an epoch has just been finished."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, row) -> None:
        if row["epoch"] == self.last:
            raise StopError


def context(progress=None, data=None, **options) -> TrainingContext:
    config = Config(**{"batch_size": 16, **options})
    accelerator = make_accelerator(config.precision, "", "")
    return TrainingContext(config, data or tiny_data(), accelerator, progress or NoProgress())


def sparse_of(net: nn.Module, optimizer, epochs: int = 4) -> dafp.SparseTraining:
    return dafp.SparseTraining(net, graph_of(net), optimizer, target=0.3, epochs=epochs)


def comparable(rows):
    return [{k: v for k, v in row.items() if not k.endswith("_s")} for row in rows]


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


# ---- rates ---------------------------------------------------------------------------------------


def test_the_rate_falls_after_half_and_three_quarters_of_the_epochs():
    schedule = Schedule(160)
    found = [learning_rate(schedule, epoch) for epoch in (1, 80, 81, 120, 121, 160)]
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_without_milestones_the_rate_is_constant():
    assert {learning_rate(Schedule(9, 0.2, ()), epoch) for epoch in range(1, 10)} == {0.2}


def test_a_cosine_rises_in_the_warm_up_and_then_falls_to_zero_step_by_step():
    schedule = Schedule(4, 0.8, shape="cosine", warmup=0.25)
    rates = [learning_rate(schedule, epoch, step, 2) for epoch in range(1, 5) for step in range(2)]
    assert rates[:3] == pytest.approx([0.4, 0.8, 0.8])  # two of eight steps rise
    cosine = [0.4 * (1 + math.cos(math.pi * n / 6)) for n in range(6)]
    assert rates[2:] == pytest.approx(cosine)
    assert learning_rate(Schedule(2, 0.8, shape="cosine"), 2, 0, 1) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shape": "linear"}, "finetune.shape='linear' must be one of 'steps', 'cosine'"),
        ({"shape": "cosine", "warmup": 1.0}, "finetune.warmup=1.0 must be at least 0 and less"),
        ({"warmup": 0.1}, "finetune.warmup=0.1 needs finetune.shape='cosine'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(values, words):
    with pytest.raises(TrainingError, match=words):
        Config(finetune=Schedule(2, **values))


def test_the_rows_say_the_rate_of_their_epoch(tmp_path):
    schedule = Schedule(4, 0.1, (0.5, 0.75), 0.5)
    rows = train_stage(tiny_net(), context(), "baseline", schedule, tmp_path / "c")
    assert [row["lr"] for row in rows] == [0.1, 0.1, 0.05, 0.025]


# ---- judging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [7, 512])
def test_evaluation_is_that_of_a_loop_by_hand(batch_size):
    net, here = tiny_net(), context()
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    accuracy, loss = evaluate(net, here, "test", batch_size)
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    right, total = 0, 0.0
    net.eval()
    with torch.no_grad():
        for x, y in here.data.batches("test", batch_size=1):
            out = net(x)
            right += int(out.argmax() == y)
            total += float(cross_entropy(out, y))
    assert accuracy == right / 37
    assert loss == pytest.approx(total / 37, rel=1e-5)


def test_without_images_there_is_nothing_to_judge():
    found = evaluate(tiny_net(), context(data=tiny_data(val=0)), "val")
    assert all(math.isnan(value) for value in found)


def test_the_last_row_has_the_test_accuracy_of_the_model_that_is_handed_over(tmp_path):
    net, here = tiny_net(), context()
    rows = train_stage(net, here, "baseline", Schedule(3, 0.05), tmp_path / "c")
    assert rows[-1]["test_accuracy"] == evaluate(net, here, "test")[0]
    assert (rows[-1]["val_accuracy"], rows[-1]["val_loss"]) == evaluate(net, here, "val")


def test_test_images_are_seen_where_validation_is_best_so_far_and_in_the_end(tmp_path):
    rows = train_stage(tiny_net(), context(), "baseline", Schedule(8, 0.05, ()), tmp_path / "c")
    best = -1.0
    for row in rows:
        improved = row["val_accuracy"] > best
        best = max(best, row["val_accuracy"])
        assert (row["test_accuracy"] is not None) == (improved or row["epoch"] == 8)


def test_without_validation_the_last_epoch_is_reported(tmp_path):
    here = context(data=tiny_data(val=0))
    rows = train_stage(tiny_net(), here, "baseline", Schedule(3, 0.05), tmp_path / "c")
    assert [row["val_accuracy"] for row in rows] == [None] * 3
    assert rows[-1]["test_accuracy"] is not None


def test_training_learns_the_tiny_data(tmp_path):
    rows = train_stage(tiny_net(), context(), "baseline", Schedule(12, 0.1), tmp_path / "c")
    assert rows[-1]["test_accuracy"] > 0.6  # chance is 0.25
    assert rows[-1]["loss"] < rows[0]["loss"]


# ---- the same again ------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path):
    nets, rows = [tiny_net() for _ in range(3)], []
    for place, seed in enumerate((0, 0, 1)):
        here = context(seed=seed)
        rows.append(train_stage(nets[place], here, "sparse", Schedule(4, 0.05, ()),
                                tmp_path / str(place), sparse_of))  # fmt: skip
    assert comparable(rows[0]) == comparable(rows[1]) != comparable(rows[2])
    assert same_weights(nets[0], nets[1])
    assert not same_weights(nets[0], nets[2])


def with_dropout() -> nn.Sequential:
    net = tiny_net()
    return nn.Sequential(*net[:7], nn.Flatten(), nn.Dropout(0.5), net[8])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("epoch", slow_except((3,), (1, 3, 4), reason="two training runs each"))
def test_a_stage_stopped_after_any_epoch_goes_on_to_the_same_result(
    epoch, precision, optimizer, tmp_path
):
    options = {"optimizer": optimizer, "precision": precision}
    schedule = Schedule(4, 0.01, ())
    whole, halves, again = with_dropout(), with_dropout(), with_dropout()
    rows = train_stage(whole, context(**options), "s", schedule, tmp_path / "w", sparse_of)
    with pytest.raises(StopError):
        train_stage(
            halves, context(Unplugged(epoch), **options), "s", schedule, tmp_path / "h", sparse_of
        )
    found = train_stage(again, context(**options), "s", schedule, tmp_path / "h", sparse_of)
    assert comparable(found) == comparable(rows)
    assert same_weights(again, whole)


def test_the_loss_scale_of_half_precision_survives_a_restart(tmp_path):
    def scaled(progress=None) -> TrainingContext:
        here = context(progress)
        here.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
        return here

    schedule = Schedule(3, 0.01, ())
    scales = []
    for restarted in (False, True):
        if restarted:
            with pytest.raises(StopError):
                train_stage(tiny_net(), scaled(Unplugged(2)), "s", schedule, tmp_path / "True")
        here = scaled()
        train_stage(tiny_net(), here, "s", schedule, tmp_path / str(restarted))
        scales.append(here.accelerator.scaler.get_scale())
    assert scales[0] == 2.0 * 2**4  # 12 steps, doubled every 3
    assert scales[1] == scales[0]
    again = scaled()  # the next stage goes on with it, whether or not this one was just trained
    train_stage(tiny_net(), again, "s", schedule, tmp_path / "False")
    assert again.accelerator.scaler.state_dict() == here.accelerator.scaler.state_dict()


def test_a_finished_stage_returns_at_once(tmp_path):
    class Alarm(NoProgress):
        def stage(self, *args, **kwargs) -> None:
            raise AssertionError("it trains again")

    net, again = tiny_net(), tiny_net(seed=5)
    rows = train_stage(net, context(), "baseline", Schedule(2, 0.05), tmp_path / "c")
    before = (tmp_path / "c").stat().st_mtime_ns
    assert train_stage(again, context(Alarm()), "baseline", Schedule(2), tmp_path / "c") == rows
    assert same_weights(net, again)
    assert (tmp_path / "c").stat().st_mtime_ns == before


def test_a_finished_stage_leaves_the_model_on_the_device_of_the_run(tmp_path):
    class Elsewhere:
        device = torch.device("meta")
        scaler = None

    net = tiny_net()
    train_stage(net, context(), "baseline", Schedule(1, 0.05), tmp_path / "c")
    there = dataclasses.replace(context(), accelerator=Elsewhere())
    train_stage(net, there, "baseline", Schedule(1, 0.05), tmp_path / "c")
    assert {p.device.type for p in net.parameters()} == {"meta"}


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    train_stage(tiny_net(), context(), "baseline", Schedule(1), tmp_path / "c")
    with pytest.raises(FileError, match=r"c does not fit the model of this run"):
        train_stage(tiny_net(widths=(4, 4)), context(), "baseline", Schedule(1), tmp_path / "c")


# ---- when the loss is lost -----------------------------------------------------------------------


class Exploding(NoProgress):
    """Makes the weights infinite in the middle of an epoch."""

    def __init__(self, net: nn.Sequential, epoch: int, step: int) -> None:
        self.net, self.left = net, 4 * (epoch - 1) + step

    def step(self, loss=None) -> None:
        self.left -= 1
        if self.left == 0:
            with torch.no_grad():
                self.net[8].weight.fill_(math.inf)


@pytest.mark.parametrize("step", [1, 3, 4])  # 4: the last of its epoch, whose losses were finite
def test_a_lost_loss_ends_the_training_and_keeps_the_last_good_checkpoint(step, tmp_path):
    net = tiny_net()
    here = context(Exploding(net, epoch=3, step=step))
    with pytest.raises(TrainingError, match=r"epoch 3 of baseline.*epoch 2 is kept"):
        train_stage(net, here, "baseline", Schedule(5, 0.01), tmp_path / "c")
    kept = read_checkpoint(tmp_path / "c")
    assert kept["epoch"] == 2
    assert all(torch.isfinite(tensor).all() for tensor in kept["model"].values())


def test_a_loss_lost_at_once_leaves_no_checkpoint(tmp_path):
    here = context(Exploding(net := tiny_net(), epoch=1, step=2))
    with pytest.raises(TrainingError, match=r"epoch 1 of baseline.*none was finished"):
        train_stage(net, here, "baseline", Schedule(5, 0.01), tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# ---- precision -----------------------------------------------------------------------------------


def test_runs_of_different_precision_can_follow_each_other():
    kinds = ("fp32", "bf16", "fp32")
    assert [make_accelerator(k, "", "").mixed_precision for k in kinds] == ["no", "bf16", "no"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_is_refused_on_a_cpu():
    with pytest.raises(TrainingError, match="needs a GPU"):
        make_accelerator("fp16", "", "")
