"""Distillation, pruning in steps and recalibration: what they compute, and restarts."""

import dataclasses
import json
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dafp
from dafp.errors import FileError, TrainingError
from dafp.files.checkpoint import read_checkpoint
from dafp.pruning.plan_history import begin
from dafp.pruning.pruned_model import pruning_record
from dafp.report import read_run, write_report
from dafp.report.run_charts import stage_bands
from dafp.runs import pipeline, saved_models
from dafp.runs.job_hash import stage_hash
from dafp.runs.pipeline import run
from dafp.runs.prune_and_finetune import part_of
from dafp.training.config import Config, Schedule
from dafp.training.devices import make_accelerator
from dafp.training.distillation import distillation_loss
from dafp.training.loop import NoProgress, TrainingContext, train_stage
from dafp.training.run_directory import Paths
from support.slow import slow_except
from support.tiny_runs import StopError, Unplugged, outcome, uninterrupted, use_tiny_data
from support.training import graph_of, tiny_data, tiny_net

CONFIG = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1, method="l1-norm",
    baseline=Schedule(4, 0.05), sparse=Schedule(3, 0.05, ()), finetune=Schedule(3, 0.05),
)  # fmt: skip
TAUGHT = dataclasses.replace(CONFIG, distill=0.7)
STEPS = dataclasses.replace(CONFIG, steps=3, distill=0.5, recalibrate=True)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    use_tiny_data(monkeypatch)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """An uninterrupted run of three steps, and how many events it has."""
    out = tmp_path_factory.mktemp("runs") / "steps"
    return out, *uninterrupted(STEPS, out)


# ---- distillation --------------------------------------------------------------------------------


def test_the_loss_of_distillation_is_the_one_computed_by_hand():
    # student (0, 0): ½, ½ at any T; teacher (2·ln 3, 0) at T = 2: ¾, ¼
    # KL = ¾·ln(¾ / ½) + ¼·ln(¼ / ½), cross-entropy = ln 2
    teacher_logits = torch.tensor([[2 * math.log(3), 0.0]])
    apart = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    found = distillation_loss(torch.zeros(1, 2), torch.tensor([0]), teacher_logits, 0.75, 2.0)
    assert float(found) == pytest.approx(0.25 * math.log(2) + 0.75 * 4 * apart, rel=1e-6)


def test_the_loss_is_a_mean_over_the_images():
    out, teacher_logits, y = torch.randn(3, 5), torch.randn(3, 5), torch.tensor([0, 4, 2])
    each = [
        distillation_loss(out[i, None], y[i, None], teacher_logits[i, None], 0.6, 3.0)
        for i in (0, 1, 2)
    ]
    assert float(distillation_loss(out, y, teacher_logits, 0.6, 3.0)) == pytest.approx(
        float(sum(each)) / 3
    )


def test_without_a_share_the_teacher_has_no_say_and_a_pupil_that_agrees_pays_nothing_for_it():
    torch.manual_seed(0)
    out, y = torch.randn(4, 5, dtype=torch.double), torch.tensor([0, 1, 2, 3])
    plain = cross_entropy(out, y)
    assert torch.equal(distillation_loss(out, y, torch.randn(4, 5), 0.0, 4.0), plain)
    assert float(distillation_loss(out, y, out + 7, 1.0, 4.0)) == pytest.approx(0, abs=1e-12)


def test_the_teacher_is_asked_in_eval_mode_and_stays_as_it_was(tmp_path):
    teacher, pupil = tiny_net(1), tiny_net(2)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    modes = []
    teacher.register_forward_hook(lambda net, args, out: modes.append((net.training, out.grad_fn)))
    config = Config(batch_size=16, distill=0.7)
    context = TrainingContext(config, tiny_data(), make_accelerator("fp32", "", ""), NoProgress())
    train_stage(pupil, context, "finetune", Schedule(2, 0.05), tmp_path / "c", teacher=teacher)
    assert modes == [(False, None)] * 8
    assert all(torch.equal(before[n], t) for n, t in teacher.state_dict().items())
    assert all(p.grad is None for p in teacher.parameters())


def test_a_pupil_of_the_teacher_alone_comes_nearer_to_its_answers(tmp_path):
    teacher, data = tiny_net(1), tiny_data()
    x = next(data.batches("test", batch_size=37))[0]
    teacher.eval()
    wanted = teacher(x).softmax(1).detach()
    gaps = []
    for share in (0.0, 1.0):
        pupil = tiny_net(2)
        context = TrainingContext(
            Config(batch_size=16, distill=share),
            data,
            make_accelerator("fp32", "", ""),
            NoProgress(),
        )
        schedule = Schedule(10, 0.05)
        train_stage(pupil, context, "finetune", schedule, tmp_path / f"{share}", teacher=teacher)
        gaps.append(float((pupil.eval()(x).softmax(1).detach() - wanted).abs().mean()))
    assert gaps[1] < gaps[0] / 3


def teacher_of(monkeypatch, config, out):
    """The weights of the network that taught in a run."""
    taught = []
    real = pipeline.prune_and_train.__globals__["train_stage"]

    def listening(*args, **options):
        taught.append(options["teacher"] and options["teacher"].state_dict())
        return real(*args, **options)

    monkeypatch.setitem(pipeline.prune_and_train.__globals__, "train_stage", listening)
    run(config, out)
    return taught


@pytest.mark.parametrize(
    ("values", "stage"),
    [({}, "baseline"), ({"method": "dafp"}, "baseline"),
     ({"method": "dafp", "baseline": Schedule(0)}, "sparse")],
    ids=["l1-norm", "dafp", "no baseline"],
)  # fmt: skip
def test_the_baseline_teaches_or_without_one_the_sparse_network(
    values, stage, tmp_path, monkeypatch
):
    config = dataclasses.replace(TAUGHT, **values)
    (teacher,) = teacher_of(monkeypatch, config, tmp_path / "run")
    wanted = read_checkpoint(Paths(tmp_path / "run").checkpoint(stage))["model"]
    assert all(torch.equal(wanted[name], tensor) for name, tensor in teacher.items())


def test_without_distillation_there_is_no_teacher(tmp_path, monkeypatch):
    assert teacher_of(monkeypatch, CONFIG, tmp_path / "run") == [None]


# after the baseline: pruning and fine-tuning
@pytest.mark.parametrize("event", slow_except((7, 9), range(6, 11), reason="three runs each"))
def test_a_taught_run_stopped_anywhere_goes_on_to_the_same_bits(event, tmp_path):
    run(TAUGHT, tmp_path / "whole")
    with pytest.raises(StopError):
        run(TAUGHT, tmp_path / "run", Unplugged(event))
    run(TAUGHT, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_taught_run_ends_elsewhere_than_an_untaught_one_and_shares_its_baseline(tmp_path):
    run(TAUGHT, tmp_path / "taught")
    run(CONFIG, tmp_path / "plain")
    taught, plain = outcome(tmp_path / "taught"), outcome(tmp_path / "plain")
    assert taught["pruned"] == plain["pruned"]
    assert taught["model"] != plain["model"]
    assert stage_hash(TAUGHT, "sparse") == stage_hash(CONFIG, "sparse")


def test_finetuning_of_a_file_counts_threads_tracks_and_publishes_as_a_run_does(
    tmp_path, monkeypatch
):
    pytest.importorskip("tensorboard")
    dafp.save(pipeline.make_model(CONFIG, 4), tmp_path / "model.safetensors")
    config = dataclasses.replace(CONFIG, threads=1, tracker="tensorboard")
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    with pytest.raises(StopError):
        saved_models.finetune(
            config, tmp_path / "model.safetensors", tmp_path / "run", Unplugged(3)
        )
    assert asked == [1]
    assert len(Paths(tmp_path / "run").metrics.read_text().splitlines()) >= 1
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_a_saved_model_is_taught_by_the_model_of_a_file_on_both_sides_of_a_restart(tmp_path):
    run(CONFIG, tmp_path / "run")
    whole = dafp.load(Paths(tmp_path / "run").pruned, pipeline.make_model(CONFIG, 4))
    dafp.save(pipeline.make_model(CONFIG, 4), tmp_path / "teacher.safetensors")
    config = dataclasses.replace(TAUGHT, teacher=str(tmp_path / "teacher.safetensors"))
    file = Paths(tmp_path / "run").pruned
    saved_models.finetune(config, file, tmp_path / "a")
    with pytest.raises(StopError):
        saved_models.finetune(config, file, tmp_path / "b", Unplugged(3))
    saved_models.finetune(config, file, tmp_path / "b")
    saved_models.finetune(CONFIG, file, tmp_path / "untaught")
    models = [Paths(tmp_path / name).model.read_bytes() for name in ("a", "b", "untaught")]
    assert models[0] == models[1] != models[2]
    assert dafp.plan_of(dafp.load(Paths(tmp_path / "a").model, pipeline.make_model(CONFIG, 4))) == (
        dafp.plan_of(whole)
    )


# ---- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["filters", "macs"])
def test_after_each_step_its_share_of_the_target_is_gone(unit, tmp_path):
    config = dataclasses.replace(CONFIG, steps=3, target=0.6, unit=unit)
    stages = {s["stage"]: s for s in run(config, tmp_path / "run")["stages"]}
    assert list(stages) == [
        "baseline", "pruned-1", "finetuned-1", "pruned-2", "finetuned-2", "pruned", "finetuned",
    ]  # fmt: skip
    names = ("pruned-1", "pruned-2", "pruned")
    left = [stages[name][unit] / stages["baseline"][unit] for name in names]
    assert left == pytest.approx([0.8, 0.6, 0.4], abs=0.001 if unit == "filters" else 0.06)


def test_the_plan_of_a_run_in_steps_cuts_the_first_network_to_the_last_ones_shape(stepped):
    paths = Paths(stepped[0])
    plan = dafp.PruningPlan.from_json(paths.plan.read_text())
    fresh = pipeline.make_model(STEPS, 4)
    last = dafp.load(paths.model, fresh)
    assert dafp.plan_of(last).keep == plan.keep
    cut = dafp.prune(fresh, graph_of(fresh), plan)
    assert [t.shape for t in cut.state_dict().values()] == [
        t.shape for t in last.state_dict().values()
    ]
    assert sum(map(len, plan.keep.values())) == 10  # half of 8 + 12


@pytest.mark.parametrize("residual", ["keep", "couple"])
@pytest.mark.parametrize("name", ["vgg11", "resnet20", "preresnet20"])
def test_cuts_in_steps_are_one_cut_by_the_composed_plan(name, residual):
    net = dafp.models.build(name, classes=10, width=0.25).eval()
    x = torch.randn(1, 3, 32, 32)
    history, small = begin(dafp.trace(net, x, residual=residual)), net
    for share in (0.2, 0.3):
        graph = dafp.trace(small, x, residual=residual)
        scores = dafp.criteria.l1_norm(small, graph)
        plan = graph.resolve(dafp.selection.to_target(scores, graph, share))
        small = dafp.prune(small, graph, plan)
        history = history.then(graph, plan, pruning_record(small).positions)
    at_once = dafp.prune(net, history.graph, history.plan).state_dict()
    in_steps = small.state_dict()
    assert in_steps.keys() == at_once.keys()
    assert all(torch.equal(at_once[name], tensor) for name, tensor in in_steps.items())
    kept = sum(len(history.plan.keep[g.name]) for g in history.graph.groups if g.kind == "filter")
    assert kept / history.graph.filters == pytest.approx(0.8 * 0.7, abs=0.03)


def test_the_epochs_of_finetuning_are_split_over_the_steps():
    assert [part_of(Schedule(8), step, 3).epochs for step in (1, 2, 3)] == [2, 3, 3]
    assert part_of(Schedule(8, 0.2, (0.5,)), 1, 1) == Schedule(8, 0.2, (0.5,))


def test_the_metrics_have_the_epochs_of_every_step(stepped):
    rows = [json.loads(line) for line in Paths(stepped[0]).metrics.read_text().splitlines()]
    found = [(row["stage"], row["epoch"], row["epochs"]) for row in rows[4:]]
    assert found == [("finetune-1", 1, 1), ("finetune-2", 1, 1), ("finetune", 1, 1)]


def test_the_report_names_the_steps(stepped):
    found = read_run(stepped[0])
    names = [band.name for band in stage_bands(found.epochs)]
    assert names == ["baseline", "fine-tuning, step 1", "fine-tuning, step 2", "fine-tuning"]
    assert "recalibrated-2" in write_report(stepped[0]).read_text()
    (stepped[0] / "report.html").unlink()


def test_half_precision_is_taught_in_steps_as_well(tmp_path):
    config = dataclasses.replace(STEPS, precision="bf16")
    result = run(config, tmp_path / "run")
    assert result["stages"][-1]["filters"] == 10


@pytest.mark.parametrize("event", slow_except((7, 10, 13), range(6, 15), reason="two runs each"))
def test_a_run_in_steps_stopped_anywhere_goes_on_to_the_same_bits(event, stepped, tmp_path):
    assert stepped[2] == 14  # 5 of the baseline, then pruning, stage and epoch of every step
    with pytest.raises(StopError):
        run(STEPS, tmp_path / "run", Unplugged(event))
    run(STEPS, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(stepped[0])


def test_a_method_that_has_arrived_in_training_refuses_steps_and_says_which_do_not(tmp_path):
    config = dataclasses.replace(CONFIG, method="dafp", steps=2)
    with pytest.raises(TrainingError, match=r"steps=2: dafp removes its filters.*one-shot"):
        run(config, tmp_path / "run")


@pytest.mark.parametrize("criterion", ["dependency_aware", "shift_aware", "taylor"])
def test_one_shot_prunes_the_baseline_by_the_criterion_asked_for(criterion, tmp_path):
    config = dataclasses.replace(CONFIG, method="one-shot", criterion=criterion, compensate=False)
    result = run(config, tmp_path / "run")
    assert result["sparsity"]["removed"] == 0.5
    net = pipeline.make_model(CONFIG, 4)
    net.load_state_dict(read_checkpoint(Paths(tmp_path / "run").checkpoint("baseline"))["model"])
    graph = graph_of(net)
    if criterion != "taylor":
        scores = getattr(dafp.criteria, criterion)(net.eval(), graph)
        wanted = dafp.selection.to_target(scores, graph, 0.5)
        plan = dafp.PruningPlan.from_json(Paths(tmp_path / "run").plan.read_text())
        assert plan.keep == wanted.keep


@pytest.mark.parametrize(
    ("values", "said"),
    [({"steps": 4}, "steps=4 are too many for finetune.epochs=3"),
     ({"steps": 0}, "steps=0 must be at least 1"),
     ({"steps": 2, "after": "scratch-E"}, "steps concerns fine-tuning"),
     ({"distill": 0.5, "after": "scratch-B"}, "distill concerns fine-tuning"),
     ({"distill": 1.5}, "distill=1.5 must be a share"),
     ({"temperature": 0.0}, "temperature=0.0 must be positive"),
     ({"teacher": "x"}, "has no effect while distill=0.0"),
     ({"criterion": "taylor"}, "criterion='taylor' is for method='one-shot'")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(values, said):
    with pytest.raises(TrainingError, match=said):
        dataclasses.replace(CONFIG, **values)


def test_a_run_is_taught_by_itself_and_a_file_by_a_file(tmp_path):
    with pytest.raises(TrainingError, match="is for dafp finetune"):
        run(dataclasses.replace(TAUGHT, teacher="x.safetensors"), tmp_path / "run")
    with pytest.raises(TrainingError, match="needs a teacher"):
        saved_models.finetune(TAUGHT, tmp_path / "x.safetensors", tmp_path / "run")


@pytest.mark.parametrize("damaged", ["model", "teacher"])
def test_a_damaged_file_begins_no_run(tmp_path, damaged):
    for name in ("model", "teacher"):
        dafp.save(pipeline.make_model(CONFIG, 4), tmp_path / f"{name}.safetensors")
    broken = tmp_path / f"{damaged}.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1] + b"x")
    config = dataclasses.replace(TAUGHT, teacher=str(tmp_path / "teacher.safetensors"))
    with pytest.raises(FileError, match=f"{damaged}.safetensors is damaged"):
        saved_models.finetune(config, tmp_path / "model.safetensors", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- recalibration -------------------------------------------------------------------------------


def test_recalibration_is_reported_beside_the_plain_accuracy_and_starts_the_finetuning(stepped):
    names = [stage["stage"] for stage in stepped[1]["stages"]]
    assert names == [
        "baseline", "pruned-1", "recalibrated-1", "finetuned-1", "pruned-2", "recalibrated-2",
        "finetuned-2", "pruned", "recalibrated", "finetuned",
    ]  # fmt: skip


def test_recalibrated_statistics_are_those_of_the_training_images(tmp_path):
    run(dataclasses.replace(CONFIG, recalibrate=True), tmp_path / "run")
    small = dafp.load(Paths(tmp_path / "run").pruned, pipeline.make_model(CONFIG, 4))
    batches = tiny_data().batches("train", batch_size=64)  # augmented, as in training
    x = small[0](next(batches)[0])
    norm = small[1]
    assert isinstance(norm, nn.BatchNorm2d)
    torch.testing.assert_close(norm.running_mean, x.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_a_saved_model_can_be_recalibrated_before_it_is_finetuned(tmp_path):
    run(CONFIG, tmp_path / "run")
    config = dataclasses.replace(CONFIG, recalibrate=True)
    result = saved_models.finetune(config, Paths(tmp_path / "run").pruned, tmp_path / "again")
    assert [s["stage"] for s in result["stages"]] == ["given", "recalibrated", "finetuned"]
