"""Outliers of slm: which runs are dropped, which seeds repeat them, and what is reported."""

import pytest

from dafp.reproduce import find, jobs_of
from dafp.reproduce.outliers import outliers, repeat_outliers
from dafp.reproduce.page import answers, cells, to_json
from dafp.runs.job_hash import config_hash
from dafp.sweeps import Sweep
from dafp.sweeps.statistics import outcome
from support.sweep_records import record

ITEM = find("cifar10", "lite", ["vgg16/slm/0.6", "vgg16/dafp/0.6"])


def results(finals, jobs) -> Sweep:
    """One result per job: the accuracy of its seed; None is a collapsed run."""
    return Sweep(
        {
            config_hash(job): record(job, finals[job.seed] or 0.0, collapsed=_layer(finals, job))
            for job in jobs
        }
    )


def _layer(finals, job) -> str:
    return "" if finals[job.seed] is not None else "features.3"


@pytest.mark.parametrize(
    ("finals", "dropped"),
    [
        ([0.9, 0.92, 0.79], ()),  # the mean is 0.87: 8 points
        ([0.9, 0.92, 0.70], (2,)),  # 0.84: 14 points
        ([0.9, None, 0.85], (1,)),
        ([None, None, None], ()),  # nothing to compare with: N/A
    ],
)
def test_a_run_ten_points_below_the_mean_or_collapsed_is_an_outlier(finals, dropped):
    (job,) = jobs_of(find("cifar10", "lite", ["vgg16/slm/0.6"]), 1)
    each = [
        record(
            type(job)(**(vars(job) | {"seed": seed})), final or 0.0, collapsed="" if final else "a"
        )
        for seed, final in enumerate(finals)
    ]
    assert outliers([outcome(one) for one in each]) == dropped


def test_an_outlier_of_slm_is_repeated_with_the_next_seeds_until_enough_runs_count():
    finals = {0: 0.9, 1: None, 2: 0.92, 3: 0.5, 4: 0.91}
    asked = []

    def run(jobs):
        asked.append([(job.method, job.seed) for job in jobs])
        return results(finals, jobs)

    done = results(finals, jobs_of(ITEM, 3))
    repeats = repeat_outliers(ITEM, 3, done, run)
    assert asked == [[("slm", 3)], [("slm", 4)]]
    found = {a.row.name: a for a in answers(ITEM, 3, done, repeats) if a.figure.name == "finetune"}
    slm, dafp = found["vgg16/slm/0.6"], found["vgg16/dafp/0.6"]
    assert (slm.text, slm.ours.n) == ("91.00 ± 1.00", 3)
    assert "outliers dropped and repeated: seed 1, 3" in cells(slm)[3].note
    assert to_json(slm)["dropped_seeds"] == [1, 3]
    assert to_json(dafp)["dropped_seeds"] == []  # a run of another method is never repeated
    assert dafp.finished == 3


def test_repeating_ends_after_twice_as_many_runs():
    finals = dict.fromkeys(range(20)) | {0: 0.9}
    done = results(finals, jobs_of(ITEM, 3))
    (repeat,) = repeat_outliers(ITEM, 3, done, lambda jobs: results(finals, jobs)).values()
    assert (repeat.seeds, repeat.dropped) == ((0,), (1, 2, 3, 4, 5))
