"""A run directory: its configuration, also of a run that was begun by an earlier version."""

import pytest

from dafp.training.config import INTRODUCED, Config, Schedule, to_toml
from dafp.training.run_directory import read_config


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
