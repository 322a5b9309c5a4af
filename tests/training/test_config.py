"""Configurations: presets, TOML, settings, and everything that is wrong at once."""

import dataclasses
import math
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafp.errors import TrainingError
from dafp.training.config import (
    PRESETS,
    Config,
    Schedule,
    changed,
    differences,
    make_config,
    to_toml,
)
from dafp.training.config import read_toml as read


def test_without_anything_it_is_the_embedded_data():
    assert make_config() == Config()
    assert Config().data == "digits"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_configuration_that_comes_back_from_toml(preset, tmp_path):
    config = make_config(preset)
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert changed(Config(), read(tmp_path / "config.toml"), "file") == config
    assert make_config("imagenet", tmp_path / "config.toml") == config


@pytest.mark.parametrize("preset", ["cifar10", "cifar100"])
def test_the_papers_presets_are_the_papers(preset):
    config = make_config(preset)
    assert config.step == 1e-5
    assert config.batch_size == 64
    assert (config.momentum, config.weight_decay) == (0.9, 1e-4)
    assert config.sparse == Schedule(160, 0.1, ())
    assert config.finetune == config.baseline == Schedule(160, 0.1, (0.5, 0.75), 0.1)
    assert not config.compensate


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(text, st.lists(text, max_size=3), st.floats(1e-6, 1e6), st.floats(0.01, 0.99), st.booleans())
def test_whatever_text_and_numbers_it_holds_toml_gives_them_back(root, keep, lr, target, flag):
    config = Config(
        root=root, weights=root, keep=tuple(keep), target=target, compensate=flag, step=lr,
        sparse=Schedule(3, lr, (0.1, target), 0.5),
    )  # fmt: skip
    assert changed(Config(), tomllib.loads(to_toml(config)), "text") == config


def test_a_file_changes_the_preset_and_settings_change_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('model = "vgg11"\nseed = 3\n[sparse]\nepochs = 7\n')
    config = make_config("cifar10-lite", file, ["seed=4", "sparse.lr=0.5"])
    assert (config.data, config.model, config.seed) == ("cifar10", "vgg11", 4)
    assert config.sparse == Schedule(7, 0.5, ())


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("model=preresnet20", "model", "preresnet20"), ('model="vgg11"', "model", "vgg11"),
        ("model=timm:resnet18", "model", "timm:resnet18"), ("root=/a b/ü=c", "root", "/a b/ü=c"),
        ("weights=", "weights", ""), (" seed = 5 ", "seed", 5), ("target=0.7", "target", 0.7),
        ("width=1", "width", 1.0), ("step=auto", "step", "auto"), ("step=1e-5", "step", 1e-5),
        ("step=1", "step", 1.0), ("compensate=false", "compensate", False),
        ('keep=["a", "b.c"]', "keep", ("a", "b.c")), ("keep=[]", "keep", ()),
    ],
)  # fmt: skip
def test_a_setting_is_read_in_the_type_of_what_it_replaces(setting, key, value):
    found = getattr(make_config(settings=[setting]), key)
    assert (found, type(found)) == (value, type(value))


def test_a_network_of_others_has_its_own_width(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "package:function"')
    assert make_config(file=file).width == 1.0
    assert make_config(settings=["model=torchvision:resnet18"]).width == 1.0
    assert make_config(settings=["model=timm:x", "width=0.5"]).width == 0.5
    assert make_config(settings=["model=vgg11"]).width == 0.25


def test_settings_reach_into_tables():
    config = make_config(settings=["finetune.milestones=[0.3, 1]", "finetune.epochs=9"])
    assert config.finetune == Schedule(9, 0.05, (0.3, 1.0))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("sed=1", "--set: there is no setting sed; did you mean seed?"),
        ("sparse.epoch=1", "no setting sparse.epoch; did you mean sparse.epochs?"),
        ("zzz=1", "no setting zzz; there are model, width"),
        ("seed", "'seed': write key=value"), ("seed=1.5", "seed=1.5 must be an int"),
        ("seed=true", "seed=True must be an int"), ("seed=many", "seed='many' must be an int"),
        ("target=half", "target='half' must be a float"), ("width=true", "width=True"),
        ("compensate=1", "compensate=1 must be a bool"), ("model=3", "model=3 must be a str"),
        ("step=fast", "step='fast'"), ("step=true", "step=True"),
        ("sparse=3", "'sparse' is a table: sparse.epochs"), ("model.depth=3", "model="),
        ("keep=a", "keep='a' must be a list"), ("keep=[1]", "keep=[1]"),
        ("sparse.milestones=[\"a\"]", "sparse.milestones=['a']"),
        ("sparse.milestones=0.5", "sparse.milestones=0.5 must be a list"),
        ("sparse.a.b=3", "no setting sparse.a.b"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(setting, reason):
    with pytest.raises(TrainingError, match=re.escape(reason)):
        make_config(settings=[setting])


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_cannot_be_a_number_as_well(order):
    with pytest.raises(TrainingError, match="'sparse' is a table"):
        make_config(settings=["sparse=3", "sparse.epochs=4"][::order])


@pytest.mark.parametrize(
    "values",
    [
        {"target": 0.0}, {"target": 1.0}, {"target": math.nan}, {"unit": "bytes"},
        {"after": "nothing"}, {"optimizer": "lion"}, {"precision": "int8"}, {"residual": "cut"},
        {"tracker": "paper"}, {"images": -1}, {"threads": -1}, {"seed": -1}, {"p": 0.0}, {"p": 1.0},
        {"step": 0.0}, {"step": -1.0}, {"step": math.nan}, {"criterion": "luck"}, {"method": "x"},
        {"batch_size": 0}, {"width": 0.0}, {"width": math.nan}, {"val_share": -0.1},
        {"val_share": 1.0}, {"momentum": -0.1}, {"momentum": 1.0}, {"weight_decay": -1.0},
        {"weight_decay": math.nan}, {"sparse": Schedule(0)}, {"finetune": Schedule(0)},
        {"baseline": Schedule(-1)}, {"sparse": Schedule(1, 0.0)}, {"sparse": Schedule(1, math.inf)},
        {"sparse": Schedule(1, decay=0.0)}, {"sparse": Schedule(1, 0.1, (-0.5,))},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_run_is_refused_before_anything_starts(values):
    (key,) = values
    with pytest.raises(TrainingError, match=rf"cannot run: {key}[.=]"):
        Config(**values)


def test_all_problems_are_reported_at_once():
    with pytest.raises(TrainingError) as error:
        Config(target=2, unit="bytes", seed=-1, sparse=Schedule(0, -1.0))
    for part in ("target=2", "unit='bytes'", "seed=-1", "sparse.epochs=0", "sparse.lr=-1.0"):
        assert part in str(error.value)


def test_no_baseline_is_a_configuration():
    assert Config(baseline=Schedule(0)).baseline.epochs == 0


def test_an_unknown_preset_is_refused_with_those_that_exist():
    with pytest.raises(
        TrainingError, match="no preset 'cifar'; choose one of digits, cifar10-lite"
    ):
        make_config("cifar")


@pytest.mark.parametrize("content", ["seed =", "seed = 1\nseed = 2", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_refused(content, tmp_path):
    file = tmp_path / "bad.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TrainingError, match=r"bad\.toml cannot be read as TOML"):
        make_config(file=file)


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(TrainingError, match=r"there is no configuration nowhere\.toml"):
        make_config(file=Path("nowhere.toml"))


def test_an_unknown_key_in_a_file_names_the_file(tmp_path):
    (tmp_path / "x.toml").write_text("[finetune]\nlearning_rate = 1\n")
    with pytest.raises(
        TrainingError, match=r"x\.toml: there is no setting finetune\.learning_rate"
    ):
        make_config(file=tmp_path / "x.toml")


def test_differences_name_every_key_with_both_values():
    old = Config()
    new = dataclasses.replace(old, seed=3, model="vgg11", sparse=Schedule(9, 0.05, ()))
    assert differences(old, new) == [
        "model: 'vgg16' → 'vgg11'", "seed: 0 → 3", "sparse.epochs: 20 → 9",
    ]  # fmt: skip
    assert differences(old, Config()) == []
