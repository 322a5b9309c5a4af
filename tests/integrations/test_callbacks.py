"""Callbacks in real trainers: the same result as a plain loop, also after a restart."""

import importlib
import shutil
import sys

import lightning
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, TensorDataset
from transformers import Trainer, TrainerState, TrainingArguments

import dafp
from dafp.errors import ExtraError, TrainingError
from dafp.integrations import huggingface
from dafp.integrations import lightning as lit
from support.training import OPTIMIZERS, graph_of, images, step, tiny_net, train

EPOCHS, EXAMPLE = 8, torch.zeros(1, 3, 8, 8)

pytestmark = [
    # Lightning 2.6 makes a tree node that torch 2.13 announces to replace
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning.pytorch.utilities._pytree"),
    # on machines with many cores it suggests worker processes for the 64 images
    pytest.mark.filterwarnings(
        "ignore::UserWarning:lightning.pytorch.trainer.connectors.data_connector"
    ),
]


@pytest.fixture(scope="module")
def plain():
    """Records, plan and weights of the plain loop."""
    net = tiny_net()
    optimizer, graph = OPTIMIZERS["sgd"](net), graph_of(net)
    sparse = dafp.SparseTraining(net, graph, optimizer, target=0.5, epochs=EPOCHS)
    records = train(net, optimizer, sparse, EPOCHS)
    assert records[-1].sparsity == pytest.approx(0.5, abs=0.08)
    return records, sparse.plan(), net.state_dict()


def same_weights(net, expected):
    found = net.state_dict()
    return all(torch.equal(found[name], value) for name, value in expected.items())


# ---- Lightning -----------------------------------------------------------------------------------


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = tiny_net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return OPTIMIZERS["sgd"](self)


class Validated(Module):
    def validation_step(self, batch, index):
        self.log("loss", cross_entropy(self.net(batch[0]), batch[1]))


def fit(folder, *extra, network="net", validate=False, start=None, callback=True, **options):
    """Train by Lightning; the module and its callback."""
    module = Validated() if validate else Module()
    sparsity = lit.SparsityCallback(0.5, example=EXAMPLE, network=network)
    callbacks = [sparsity, *extra] if callback else [*extra]
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, callbacks=callbacks, accelerator="cpu", log_every_n_steps=1,
        logger=CSVLogger(folder), enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=bool(extra), num_sanity_val_steps=0, **options,
    )  # fmt: skip
    batches = DataLoader(TensorDataset(*images()), 8)
    trainer.fit(module, batches, batches if validate else None, ckpt_path=start)
    return module, sparsity


def checkpoint(folder, epoch, **options):
    """Train by Lightning; the checkpoint after an epoch, the only one that is left."""
    saved, start = folder / "saved", folder / "start.ckpt"
    fit(folder, ModelCheckpoint(saved, "{epoch}", save_top_k=-1), **options)
    (saved / f"epoch={epoch}.ckpt").rename(start)
    shutil.rmtree(saved)
    return start


def test_lightning_gives_what_the_plain_loop_gives(plain, tmp_path):
    records, plan, weights = plain
    module, sparsity = fit(tmp_path)
    assert sparsity.records == records
    assert sparsity.plan() == plan
    assert same_weights(module.net, weights)


def test_a_whole_lightning_module_can_be_pruned(plain, tmp_path):
    _, plan, _ = plain
    module, sparsity = fit(tmp_path, network="")
    small = dafp.prune(module, sparsity.graph, sparsity.plan())
    assert isinstance(small, Module)
    assert [len(kept) for kept in dafp.plan_of(small).keep.values()] == [
        len(kept) for kept in plan.keep.values()
    ]


@pytest.mark.parametrize("validate", [False, True], ids=["epoch end", "validation end"])
def test_lightning_resumed_from_a_checkpoint_gives_the_same_result(plain, tmp_path, validate):
    records, plan, weights = plain
    start = checkpoint(tmp_path, 3, validate=validate)
    again = ModelCheckpoint(tmp_path / "saved")
    module, sparsity = fit(tmp_path, again, validate=validate, start=start)
    assert sparsity.records == records
    assert sparsity.plan() == plan
    assert same_weights(module.net, weights)


def test_lightning_logs_every_record(plain, tmp_path):
    fit(tmp_path)
    (file,) = tmp_path.rglob("metrics.csv")
    head, *rows = [line.split(",") for line in file.read_text().splitlines()]
    column = head.index("sparsity/penalty")
    assert [float(row[column]) for row in rows] == pytest.approx([r.penalty for r in plain[0]])


def test_after_lightning_the_optimizer_is_free_of_hooks(tmp_path):
    _, sparsity = fit(tmp_path)
    assert not sparsity.sparse.optimizer._optimizer_step_post_hooks


def test_lightning_with_two_optimizers_is_refused(tmp_path, monkeypatch):
    def two(self):
        return [OPTIMIZERS["sgd"](self), OPTIMIZERS["sgd"](self)]

    monkeypatch.setattr(Module, "configure_optimizers", two)
    monkeypatch.setattr(Module, "automatic_optimization", False, raising=False)
    with pytest.raises(TrainingError, match="one optimizer, Module has 2"):
        fit(tmp_path)


def test_a_lightning_checkpoint_without_the_callback_is_refused(tmp_path):
    start = checkpoint(tmp_path, 3, callback=False)
    with pytest.raises(TrainingError, match="continues at epoch 4, step 32, without the state"):
        fit(tmp_path, ModelCheckpoint(tmp_path / "saved"), start=start)


def test_resuming_a_finished_lightning_training_is_refused(tmp_path):
    start = checkpoint(tmp_path, 7)
    _, sparsity = fit(tmp_path, ModelCheckpoint(tmp_path / "saved"), start=start)
    with pytest.raises(TrainingError, match="finished training"):
        sparsity.plan()


def test_an_unknown_submodule_of_the_lightning_module_is_refused_by_name(tmp_path):
    with pytest.raises(TrainingError, match=r"'nope' is not a submodule of Module.* has net;"):
        fit(tmp_path, network="nope")


# ---- Hugging Face --------------------------------------------------------------------------------


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = tiny_net()

    def forward(self, pixel_values, labels=None):
        logits = self.net(pixel_values)
        loss = None if labels is None else cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if loss is not None else {"logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            for image, label in zip(*images(), strict=True):
                yield {"pixel_values": image, "labels": label}


def hf_train(folder, start=None, callback=True, stream=None, **options):
    """Train by the Trainer; the trainer and its callback."""
    model, (x, y) = Classifier(), images()
    data = [{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)]
    settings = {"save_strategy": "epoch", "num_train_epochs": EPOCHS} | options
    trainer = InOrder(
        model,
        TrainingArguments(
            str(folder), logging_strategy="epoch", per_device_train_batch_size=8, max_grad_norm=0.0,
            learning_rate=0.05, lr_scheduler_type="constant", report_to="none", disable_tqdm=True,
            use_cpu=True, **settings,
        ),
        train_dataset=stream or data,
        optimizers=(OPTIMIZERS["sgd"](model), None),
    )  # fmt: skip
    sparsity = huggingface.SparsityCallback(0.5, example={"pixel_values": EXAMPLE}, log=trainer.log)
    if callback:
        trainer.add_callback(sparsity)
    trainer.train(resume_from_checkpoint=start)
    return trainer, sparsity


@pytest.fixture(scope="module")
def hugged(tmp_path_factory):
    """A run with a checkpoint every four steps, eight to an epoch, and its folder."""
    folder = tmp_path_factory.mktemp("hf")
    return *hf_train(folder, save_strategy="steps", save_steps=4), folder


def test_the_trainer_gives_what_the_plain_loop_gives(plain, hugged):
    records, plan, weights = plain
    trainer, sparsity, _ = hugged
    assert sparsity.records == records
    assert list(sparsity.plan().keep.values()) == list(plan.keep.values())
    assert same_weights(trainer.model.net, weights)


@pytest.mark.parametrize("steps", [28, 32], ids=["inside an epoch", "before an epoch is judged"])
def test_the_trainer_resumed_from_a_checkpoint_gives_the_same_result(
    plain, hugged, tmp_path, steps
):
    records, _, weights = plain
    trainer, sparsity = hf_train(tmp_path, str(hugged[2] / f"checkpoint-{steps}"))
    assert sparsity.records == records
    assert same_weights(trainer.model.net, weights)


def test_the_trainer_resumes_at_the_end_of_an_epoch(plain, tmp_path):
    hf_train(tmp_path / "a")
    _, sparsity = hf_train(tmp_path / "b", str(tmp_path / "a" / "checkpoint-24"))
    assert sparsity.records == plain[0]


def test_the_trainer_logs_every_record_and_its_own_loss(plain, hugged):
    history = hugged[0].state.log_history
    logged = [row["sparsity/penalty"] for row in history if "sparsity/penalty" in row]
    assert logged == [record.penalty for record in plain[0]]
    assert sum("loss" in row for row in history) == EPOCHS


def test_the_state_is_found_under_the_name_of_version_0_1_too():
    old = {"SparsityCallback": {"args": {}, "attributes": {"records": [1]}}}
    callback = huggingface.HuggingFaceSparsityCallback.__name__
    for saved in (old, {callback: old["SparsityCallback"]}):
        state = TrainerState(stateful_callbacks=saved)
        assert huggingface._saved_state(state, callback) == {"records": [1]}


def test_a_checkpoint_without_the_callback_is_refused(tmp_path):
    hf_train(tmp_path / "a", callback=False, num_train_epochs=1)
    with pytest.raises(TrainingError, match="written without a SparsityCallback"):
        hf_train(tmp_path / "b", str(tmp_path / "a" / "checkpoint-8"))


def test_steps_of_a_stream_without_a_length_are_refused(tmp_path):
    with pytest.raises(TrainingError, match="max_steps=64 of a dataset without a length"):
        hf_train(tmp_path, stream=Stream(), max_steps=64)


def test_the_trainer_must_not_rebuild_the_callback(tmp_path):
    with pytest.raises(TrainingError, match="restores itself"):
        hf_train(tmp_path, restore_callback_states_from_checkpoint=True)


# ---- Accelerate ----------------------------------------------------------------------------------


def accelerated(epochs, load=None, save=None):
    """Train by Accelerate for some epochs, from a saved state or into one."""
    accelerator, net = Accelerator(cpu=True), tiny_net()
    optimizer = OPTIMIZERS["sgd"](net)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=0.5, epochs=EPOCHS)
    accelerator.register_for_checkpointing(sparse)
    wrapped, stepper = accelerator.prepare(net, optimizer)
    if load:
        accelerator.load_state(str(load))
    for _ in range(epochs):
        x, y = images()
        for part in zip(x.chunk(8), y.chunk(8), strict=True):
            step(wrapped, stepper, *part)
        sparse.end_epoch()
    if save:
        accelerator.save_state(str(save))
    return net, sparse


def test_accelerate_resumed_from_its_checkpoint_gives_the_same_result(plain, tmp_path):
    records, plan, weights = plain
    accelerated(3, save=tmp_path / "state")
    net, sparse = accelerated(5, load=tmp_path / "state")
    assert sparse.records == records
    assert sparse.plan() == plan
    assert same_weights(net, weights)


def test_an_optimizer_that_only_wraps_another_is_refused():
    net = tiny_net()
    prepared = Accelerator(cpu=True).prepare(SGD(net.parameters(), 0.1))
    with pytest.raises(TrainingError, match=r"give that one: optimizer\.optimizer"):
        dafp.SparseTraining(net, graph_of(net), prepared)


# ---- before anything runs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [("lightning.pytorch", "lightning", "lightning"),
     ("transformers", "huggingface", "transformers")],
)  # fmt: skip
def test_a_missing_library_is_named_with_its_extra(monkeypatch, package, module, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"dafp.integrations.{module}")
    with pytest.raises(ExtraError, match=rf'needs {package}.*pip install "dafp\[{extra}\]"'):
        importlib.import_module(f"dafp.integrations.{module}")


@pytest.mark.parametrize("callback", [lit.SparsityCallback, huggingface.SparsityCallback])
def test_a_callback_refuses_an_impossible_target(callback):
    with pytest.raises(TrainingError, match="target=50"):
        callback(50, example=EXAMPLE)


@pytest.mark.parametrize("callback", [lit.SparsityCallback, huggingface.SparsityCallback])
def test_a_callback_has_no_plan_before_the_training(callback):
    with pytest.raises(TrainingError, match="has no results before"):
        callback(0.5, example=EXAMPLE).plan()
