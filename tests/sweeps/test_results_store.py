"""The results file: found again by later versions, safe with several writers, old ones read."""

import dataclasses
import json
import multiprocessing
import subprocess
from dataclasses import field
from pathlib import Path

import pytest

import dafp
from dafp.errors import FileError
from dafp.runs.job_hash import config_hash, identity, stage_hash
from dafp.storage.revision import code_revision
from dafp.sweeps import SweepPaths, results_store
from dafp.sweeps.results_store import claim, read_records, record_of, write_record
from dafp.training.config import INTRODUCED, Config, Schedule
from support.sweep_records import record

PUBLISHED = Path(__file__).parents[2] / "benchmarks/results/cifar10_lite.jsonl"
CONFIGS = [Config(seed=seed) for seed in range(3)]


def row_of(config, final=0.9):
    """A row as a run writes it, with made-up numbers."""
    return record(config, final) | {"format": 2, "config": identity(config)}


def stored(path: Path, configs=CONFIGS) -> SweepPaths:
    paths = SweepPaths(path / "out", path / "results")
    for config in configs:
        write_record(paths, row_of(config))
    return paths


def with_new_setting(monkeypatch, default, before):
    """The class Config of a later version, which has one more setting."""
    monkeypatch.setitem(INTRODUCED, "brand_new", before)
    return dataclasses.make_dataclass(
        "Config", [("brand_new", float, field(default=default))], bases=(Config,), frozen=True
    )


# ---- later versions ------------------------------------------------------------------------------


def test_rows_are_found_after_a_new_version_number(tmp_path, monkeypatch):
    paths = stored(tmp_path)
    monkeypatch.setattr(dafp, "__version__", "99.0")
    monkeypatch.setattr(results_store, "__version__", "99.0")
    assert list(read_records(paths, CONFIGS)) == [config_hash(config) for config in CONFIGS]


def test_rows_are_found_after_a_setting_was_added(tmp_path, monkeypatch):
    paths = stored(tmp_path)
    new = with_new_setting(monkeypatch, default=0.5, before=0.0)
    same = [new(seed=seed, brand_new=0.0) for seed in range(3)]
    assert len(read_records(paths, same)) == 3
    assert stage_hash(same[0], "baseline") == stage_hash(CONFIGS[0], "baseline")
    assert read_records(paths, [new(seed=0)]) == {}  # its default is no longer what runs had before


def test_rows_made_after_a_setting_was_added_hold_it(tmp_path, monkeypatch):
    new = with_new_setting(monkeypatch, default=0.5, before=0.0)
    configs = [new(), new(brand_new=0.0)]
    paths = stored(tmp_path, configs)
    rows = read_records(paths, configs)
    assert [rows[config_hash(c)]["config"]["brand_new"] for c in configs] == [0.5, 0.0]


def test_a_setting_may_be_added_to_a_stage(tmp_path, monkeypatch):
    paths = stored(tmp_path)
    monkeypatch.setitem(INTRODUCED, "sparse.nesterov", 0)
    later = dataclasses.make_dataclass(
        "Schedule", [("nesterov", int, field(default=0))], bases=(Schedule,), frozen=True
    )
    sparse = later(**vars(Config().sparse))
    assert len(read_records(paths, [Config(sparse=sparse)])) == 1
    assert read_records(paths, [Config(sparse=dataclasses.replace(sparse, nesterov=2))]) == {}


def test_every_published_row_is_complete_and_can_be_looked_up():
    lines = PUBLISHED.read_text().splitlines()
    assert len(lines) == 135
    assert PUBLISHED.stat().st_size < 2**20
    configs = []
    for line in lines:
        row = json.loads(line)
        assert set(identity(Config())) - set(INTRODUCED) <= set(row["config"])
        assert row["revision"]
        values = {
            key: Schedule(**value | {"milestones": tuple(value["milestones"])})
            if isinstance(value, dict)
            else value
            for key, value in row["config"].items()
        }
        configs.append(Config(**values | {"keep": tuple(values["keep"])}))
    assert len(read_records(SweepPaths(Path(), PUBLISHED), configs)) == 135


def test_runs_begun_by_another_version_go_on(tmp_path):
    mark = tmp_path / "out/version.json"
    mark.parent.mkdir()
    mark.write_text('{"dafp": "0.0.9", "format": 1}')
    claim(SweepPaths(tmp_path / "out", tmp_path / "results"))
    assert json.loads(mark.read_text())["dafp"] == "0.0.9"


# ---- files ---------------------------------------------------------------------------------------


def test_results_are_a_file_or_a_directory(tmp_path):
    for results, file in (("a/mine.jsonl", "a/mine.jsonl"), ("b", "b/results.jsonl")):
        paths = SweepPaths(tmp_path, tmp_path / results)
        write_record(paths, row_of(CONFIGS[0]))
        assert (tmp_path / file).read_text().count("\n") == 1
        assert len(read_records(paths, CONFIGS)) == 1


def test_files_of_format_1_are_read_and_rows_win_over_them(tmp_path):
    paths = SweepPaths(tmp_path, tmp_path)
    for config in CONFIGS[:2]:
        old = row_of(config, final=0.1) | {
            "format": 1,
            "hash": config_hash(config),
            "dafp": "0.0.9",
        }
        (tmp_path / f"{config_hash(config)}.json").write_text(json.dumps(old, indent=1))
    write_record(paths, row_of(CONFIGS[1]))
    found = read_records(paths, CONFIGS)
    finals = [found[config_hash(c)]["result"]["stages"][-1]["accuracy"] for c in CONFIGS[:2]]
    assert finals == [0.1, 0.9]
    assert len(found) == 2


def _write(paths: SweepPaths, seeds: range) -> None:
    for seed in seeds:
        write_record(paths, row_of(Config(seed=seed)))


def test_several_processes_may_append_to_one_file(tmp_path):
    paths, context = (
        SweepPaths(tmp_path, tmp_path / "all.jsonl"),
        multiprocessing.get_context("fork"),
    )
    jobs = [
        context.Process(target=_write, args=(paths, range(at, at + 20))) for at in (0, 100, 200)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    configs = [Config(seed=at + n) for at in (0, 100, 200) for n in range(20)]
    assert len(read_records(paths, configs)) == 60


def test_a_last_line_without_its_end_is_completed(tmp_path):
    paths = stored(tmp_path, CONFIGS[:1])
    paths.results_file.write_text(paths.results_file.read_text().rstrip("\n"))
    write_record(paths, row_of(CONFIGS[1]))
    assert len(read_records(paths, CONFIGS)) == 2


def test_a_row_names_the_revision_of_the_code(tmp_path):
    result = record(CONFIGS[0], 0.9)["result"]
    row = record_of(CONFIGS[0], result, tmp_path)
    assert row["revision"] == code_revision(Path(dafp.__file__).parent, dafp.__version__)


def test_the_revision_of_code_outside_git_is_its_version(tmp_path):
    assert code_revision(tmp_path, "1.2.3") == "1.2.3"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed/__init__.py").write_text("")
    assert code_revision(tmp_path / "installed", "1.2.3") == "1.2.3"  # there, but not tracked


# ---- refused -------------------------------------------------------------------------------------


def test_a_row_in_a_later_format_is_refused(tmp_path):
    paths = SweepPaths(tmp_path, tmp_path)
    write_record(paths, row_of(CONFIGS[0]) | {"format": 3, "dafp": "9.9"})
    with pytest.raises(FileError, match=r"line 1 was made by dafp 9\.9 in format 3.*update dafp"):
        read_records(paths, CONFIGS)


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 1'])
def test_a_damaged_row_is_refused_with_what_to_do(text, tmp_path):
    (tmp_path / "results.jsonl").write_text(text + "\n")
    with pytest.raises(FileError, match=r"line 1 .*damaged.*delete the line to compute it again"):
        read_records(SweepPaths(tmp_path, tmp_path), CONFIGS)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1'])
def test_a_damaged_result_is_refused_with_what_to_do(text, tmp_path):
    (tmp_path / f"{config_hash(CONFIGS[0])}.json").write_text(text)
    with pytest.raises(FileError, match=r"damaged.*delete it to compute it again"):
        read_records(SweepPaths(tmp_path, tmp_path), CONFIGS)


def test_a_result_under_the_name_of_another_job_is_refused(tmp_path):
    old = row_of(CONFIGS[0]) | {"format": 1, "hash": config_hash(CONFIGS[0])}
    (tmp_path / f"{config_hash(CONFIGS[1])}.json").write_text(json.dumps(old))
    with pytest.raises(FileError, match="holds the result of job"):
        read_records(SweepPaths(tmp_path, tmp_path), [CONFIGS[1]])
