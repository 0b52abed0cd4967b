"""Learning rates by round, against their formulas and through the round loop."""

import numpy as np
import pytest
from two_clients import laboratory, local

from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.schedule import Cosine, InverseTime


def test_inverse_time_halves_and_thirds():
    rate = InverseTime(0.3, halving=20)
    assert [rate.at(t) for t in (0, 20, 40)] == pytest.approx([0.3, 0.15, 0.1])


def test_cosine_starts_full_is_half_way_down_in_the_middle_and_ends_near_zero():
    rate = Cosine(0.2, rounds=50)
    assert [rate.at(t) for t in (0, 25)] == pytest.approx([0.2, 0.1])
    assert rate.at(50) == rate.at(80) == pytest.approx(0.2 / 1000)
    assert all(a > b for a, b in zip(map(rate.at, range(49)), map(rate.at, range(1, 50))))


def test_the_rate_of_the_round_is_used_and_recorded():
    rate = InverseTime(0.1, halving=1)
    history = run(laboratory(), Federation(local(lr=rate, steps=1)), 3)
    assert [line["lr"] for line in history.rounds] == [[pytest.approx(rate.at(t))] for t in range(3)]
    # One full-batch step of both clients is gradient descent on 0.5 f_1 + 0.5 f_2, written out here.
    x = 3.0
    for t in range(3):
        x -= rate.at(t) * np.mean([x - 0, 4 * (x - 1)])
    assert history.w.item() == pytest.approx(x, rel=1e-6)


def test_a_falling_rate_removes_the_bias_of_a_constant_one():
    falling = run(laboratory(), Federation(local(lr=InverseTime(0.1, halving=5))), 400, evaluate_every=0)
    constant = run(laboratory(), Federation(local()), 400, evaluate_every=0)
    assert constant.w.item() == pytest.approx(0.6925023, abs=1e-6)
    assert abs(falling.w.item() - 0.8) < 0.01


def test_a_schedule_is_in_the_record():
    history = run(laboratory(), Federation(local(lr=Cosine(0.1, 7))), 1)
    assert history.config["method"]["local"]["lr"] == {"is": "Cosine", "lr": 0.1, "rounds": 7}


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_useless_rates_are_refused(wrong):
    for make in (lambda: InverseTime(wrong, 5), lambda: InverseTime(0.1, wrong), lambda: Cosine(wrong, 5)):
        with pytest.raises(ValueError, match="must be positive and finite"):
            make()
    with pytest.raises(ValueError, match="positive and finite, or a schedule"):
        LocalSGD(lr=wrong)
