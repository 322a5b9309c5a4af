"""The controller: Algorithm 1 to the letter, by sequences computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafp import SparsityController
from dafp.errors import TrainingError


def penalties(target: float, epochs: int, step: float, course: list[float]) -> list[float]:
    controller = SparsityController(target, epochs, step)
    return [controller.update(sparsity) for sparsity in course]


def test_lambda_is_zero_before_the_first_epoch():
    assert SparsityController(0.5, 4, 1e-5).penalty == 0.0


def test_lambda_rises_by_one_step_an_epoch_while_nothing_dies():
    assert penalties(0.5, 4, 1.0, [0.0, 0.0, 0.0, 0.0]) == [1.0, 2.0, 3.0, 4.0]


def test_lambda_stays_while_the_sparsity_keeps_pace():
    # t=1: 0.2 < 0.5/4 = 0.125? t=2: 0.11 < 0.3/3 = 0.1? t=3: 0.11 < 0.19/2 = 0.095? never
    # t=4: 0.08 < 0.08/1? not either
    assert penalties(0.5, 4, 1.0, [0.2, 0.31, 0.42, 0.5]) == [0.0, 0.0, 0.0, 0.0]


def test_every_branch_in_one_course():
    # N=4, r=0.5
    # t=1: P=0.0:   0.0   < 0.5/4   = 0.125  -> up,    1
    # t=2: P=0.25:  0.25  < 0.5/3   = 0.1667 no, 0.25 > r no     -> stays, 1
    # t=3: P=0.3:   0.05  < 0.25/2  = 0.125  -> up,    2
    # t=4: P=0.75:  0.45  < 0.2/1   = 0.2    no, 0.75 > r        -> down,  1
    assert penalties(0.5, 4, 1.0, [0.0, 0.25, 0.3, 0.75]) == [1.0, 1.0, 2.0, 1.0]


def test_an_increase_equal_to_what_is_due_is_enough():
    # t=1 of 4, r=0.5: 0.125 < 0.125 is false
    assert penalties(0.5, 4, 1.0, [0.125]) == [0.0]


def test_a_sparsity_equal_to_the_target_lowers_nothing():
    # t=1: 0 < 0.5/3 -> up;  t=2: 0.5 < 0.5/2? no, 0.5 > 0.5? no;  t=3: 0 < 0/1? no, no
    assert penalties(0.5, 3, 1.0, [0.0, 0.5, 0.5]) == [1.0, 1.0, 1.0]


def test_above_the_target_lambda_falls_and_stops_at_zero():
    # t=1: 0 < 0.1 -> 1;  t=2: 0.7 < 0.5/4? no, above -> 0;  t=3: 0.1 < -0.2/3? no, above -> 0
    assert penalties(0.5, 5, 1.0, [0.0, 0.7, 0.8, 0.8]) == [1.0, 0.0, 0.0, 0.0]


def test_falling_quickly_from_above_the_target_raises_lambda():
    # the quirk of the listing: t=2 of 4: 0.6 - 0.9 = -0.3 < (0.5 - 0.9)/3 = -0.133 -> up, though
    # 0.6 > r; a slow fall (0.85: -0.05 is not less than -0.133) lowers it
    assert penalties(0.5, 4, 1.0, [0.9, 0.6]) == [0.0, 1.0]
    assert penalties(0.5, 4, 1.0, [0.0, 0.9, 0.85]) == [1.0, 0.0, 0.0]


def test_epochs_beyond_the_last_are_judged_like_the_last():
    # N=1: t=1: 0.2 < 0.5 -> up; t=2: N - t + 1 = 0 would divide by zero; 0.1 < 0.3 -> up
    assert penalties(0.5, 1, 1.0, [0.2, 0.3]) == [1.0, 2.0]


def test_the_papers_step_adds_up():
    assert penalties(0.7, 160, 1e-5, [0.0] * 30)[-1] == pytest.approx(3e-4)


@given(
    st.floats(0.05, 0.95),
    st.integers(1, 30),
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.sampled_from([1e-5, 0.25]),
)
def test_lambda_is_never_negative(target, epochs, course, step):
    assert all(0 <= penalty < math.inf for penalty in penalties(target, epochs, step, course))


def test_the_automatic_step_is_refused_and_the_error_names_sparse_training():
    with pytest.raises(TrainingError, match="SparseTraining"):
        SparsityController(0.5, 10, "auto")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((0.0, 10, 1e-5), "target=0.0"), ((1.0, 10, 1e-5), "target=1.0"),
        ((-0.1, 10, 1e-5), "target=-0.1"), ((math.nan, 10, 1e-5), "target=nan"),
        ((50, 10, 1e-5), "target=50"), ((0.5, 0, 1e-5), "epochs=0"), ((0.5, -3, 1e-5), "epochs=-3"),
        ((0.5, 10, 0.0), "step=0.0"), ((0.5, 10, -1e-5), "step=-1e-05"),
        ((0.5, 10, math.nan), "step=nan"), ((0.5, 10, math.inf), "step=inf"),
        ((0.5, 10, "fast"), "step='fast'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(arguments, reason):
    with pytest.raises(TrainingError, match=reason):
        SparsityController(*arguments)
