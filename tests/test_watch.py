"""Looking at a run changes nothing, and what is seen is what happened."""

import numpy as np
import pytest
import torch
from two_clients import LR, STEPS, A, B, Line, Scaffold, laboratory, local

from fedlib.aggregate import StepNormalized, UniformMean
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.selection import Uniform
from fedlib.server import ServerSGD
from fedlib.task import Task
from fedlib.watch import watch


@pytest.mark.parametrize("parts", [{}, {"select": Uniform(1)}, {"aggregate": UniformMean()}, {"step": ServerSGD(0.5)}])
def test_a_watched_run_is_the_run(parts):
    task, method = laboratory((3, 1)), Federation(local(), **parts)
    seen = list(watch(task, method, rounds=6, seed=4))
    history = run(task, method, rounds=6, seed=4, evaluate_every=0)
    assert torch.equal(seen[-1].new_w, history.w)
    assert [s.line for s in seen] == history.rounds


def test_what_is_seen_belongs_together():
    seen = list(watch(laboratory(), Federation(local()), rounds=3))
    r = (1 - LR * A) ** STEPS
    for before, after in zip(seen, seen[1:], strict=False):
        assert torch.equal(before.new_w, after.w)
    for s in seen:
        np.testing.assert_allclose(s.deltas[:, 0], (1 - r) * (B - s.w.item()), atol=1e-6)
        assert s.mean.item() == pytest.approx(s.deltas.mean().item(), abs=1e-6)
        assert s.new_w.item() == pytest.approx((s.w + s.mean).item(), abs=1e-6)


def test_earlier_rounds_are_not_overwritten_by_later_ones():
    seen = list(watch(laboratory(), Federation(local()), rounds=2))
    assert not torch.equal(seen[0].deltas, seen[1].deltas)


def test_the_aggregator_behind_sees_what_it_needs():
    (seen,) = watch(laboratory(), Federation(local(), aggregate=StepNormalized()), rounds=1)
    assert seen.line["steps"] == [STEPS, STEPS]


def test_rows_of_a_correction_are_kept_between_rounds():
    seen = list(watch(laboratory(), Federation(local(Scaffold())), rounds=250))
    assert seen[-1].new_w.item() == pytest.approx(0.8, abs=1e-5)


class Broken(Line):
    """Its outputs overflow, so every delta is infinite."""

    def forward(self, x):
        return x * self.weight * 1e30


def test_skipped_rounds_have_nothing_to_show():
    task = laboratory()
    broken = Task(Broken, task.data, task.partition, task.loss)
    assert list(watch(broken, Federation(local(lr=1.0)), rounds=3)) == []


def test_what_cannot_work_is_refused_at_once():
    with pytest.raises(ValueError, match="draws 5 clients"):
        next(watch(laboratory(), Federation(local(), select=Uniform(5)), rounds=1))
