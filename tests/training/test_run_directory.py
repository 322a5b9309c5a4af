"""A run directory: its configuration, also of a run that was begun by an earlier version."""

import pytest

from dafp.errors import TrainingError
from dafp.runs.pipeline import run
from dafp.training.config import INTRODUCED, Config, Schedule, to_toml
from dafp.training.run_directory import read_config
from support.tiny_runs import CONFIG, StopError, Unplugged, use_tiny_data


@pytest.mark.parametrize(
    ("name", "line", "before", "of"),
    [
        ("temperature", "temperature = 4.0\n", 2.0, lambda config: config.temperature),
        ("finetune.decay", "decay = 0.5\n", 0.2, lambda config: config.finetune.decay),
    ],
)
def test_a_setting_that_is_newer_than_the_run_has_the_value_that_runs_had_before(
    name, line, before, of, tmp_path, monkeypatch
):
    config = Config(temperature=4.0, finetune=Schedule(20, decay=0.5))
    whole = to_toml(config)
    assert whole.count(line) == 1
    (tmp_path / "config.toml").write_text(whole.replace(line, ""))
    monkeypatch.setitem(INTRODUCED, name, before)
    assert of(read_config(tmp_path)) == before
    (tmp_path / "config.toml").write_text(whole)
    assert read_config(tmp_path) == config


def test_a_start_that_fails_claims_no_directory(tmp_path):
    wrong = Config(method="one-shot", baseline=Schedule(0))
    with pytest.raises(TrainingError, match="prunes a trained network"):
        run(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(TrainingError, match="prunes a trained network"):
        run(wrong, tmp_path / "mine")
    assert {path.name for path in (tmp_path / "mine").iterdir()} <= {".lock"}


def test_a_run_that_fails_later_keeps_its_directory(tmp_path, monkeypatch):
    use_tiny_data(monkeypatch)
    with pytest.raises(StopError):
        run(CONFIG, tmp_path / "out", Unplugged(3))
    assert {"config.toml", "baseline.checkpoint"} <= {p.name for p in (tmp_path / "out").iterdir()}
    with pytest.raises(TrainingError, match="another configuration"):
        run(Config(), tmp_path / "out")
