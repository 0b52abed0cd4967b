"""Servers that remember absent clients, against a transcription in NumPy, an enumeration of all draws, and two closed forms."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest
import torch
from two_clients import LR, STEPS, A, B, Line, laboratory, local, task_from
from two_clients import play_rounds as play

from fedlib.aggregate import Unbiased, WeightedMean
from fedlib.context import Context
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.memory import MIFA, FedVARP
from fedlib.privacy import Clip, Noisy
from fedlib.selection import All, Poisson, Uniform
from fedlib.task import Task
from fedlib.watch import watch

BOTH = pytest.mark.parametrize("aggregate", [MIFA(), FedVARP()], ids=["MIFA", "FedVARP"])
P = np.array([0.1, 0.2, 0.3, 0.4])
Y = torch.tensor([[1.0, 0.0], [0.0, -2.0], [3.0, 1.0], [-1.0, 5.0]])
DELTAS = torch.tensor([[2.0, 1.0], [0.5, -1.0], [3.0, 0.0], [0.0, 4.0]])


def combine(aggregate, clients, heard=(0, 1, 2, 3)):
    clients = np.array(clients)
    ctx = Context(0, 0, clients, clients, P, None, None, last=lambda k: Y[k] if k in heard else None)
    return aggregate.combine(ctx, DELTAS[clients])


def test_mifa_by_hand():
    update, weights = combine(MIFA(), [0, 2])
    # 0.1 (2, 1) + 0.2 (0, −2) + 0.3 (3, 0) + 0.4 (−1, 5)
    assert update.tolist() == pytest.approx([0.7, 1.7])
    assert weights.tolist() == pytest.approx([0.1, 0.3])


def test_mifa_renormalizes_over_those_who_were_ever_heard():
    update, weights = combine(MIFA(), [0, 2], heard=(1,))
    assert update.tolist() == pytest.approx([1.1 / 0.6, -0.3 / 0.6])
    assert weights.tolist() == pytest.approx([1 / 6, 1 / 2])
    first, _ = combine(MIFA(), [0, 2], heard=())
    ctx = Context(0, 0, np.array([0, 2]), np.array([0, 2]), P, None, None)
    assert first.tolist() == pytest.approx(WeightedMean().combine(ctx, DELTAS[[0, 2]])[0].tolist())


def test_fedvarp_by_hand():
    update, weights = combine(FedVARP(), [1, 3])
    # What is remembered: (0.1 + 0.9 − 0.4, −0.4 + 0.3 + 2) = (0.6, 1.9).
    # Changes, 2 · (0.2 (0.5, 1) + 0.4 (1, −1)) = (1, −0.4).
    assert update.tolist() == pytest.approx([1.6, 1.5])
    assert weights.tolist() == pytest.approx([0.4, 0.8])
    update, _ = combine(FedVARP(), [1, 3], heard=(0, 1))
    # (0.1, −0.4) + 2 · (0.2 (0.5, 1) + 0.4 (0, 4))
    assert update.tolist() == pytest.approx([0.3, 3.2])


@pytest.mark.parametrize("m", [1, 2, 3])
def test_fedvarp_over_all_draws_has_the_mean_of_everybody_and_the_spread_of_the_changes(m):
    draws = list(combinations(range(4), m))
    updates = torch.stack([combine(FedVARP(), draw)[0] for draw in draws]).double()
    torch.testing.assert_close(updates.mean(0), torch.from_numpy(P) @ DELTAS.double(), rtol=0, atol=1e-6)
    changes = (DELTAS - Y).double()
    plain = []
    for draw in draws:
        clients = np.array(draw)
        ctx = Context(0, 0, clients, clients, P, None, None)
        plain.append(Unbiased().combine(ctx, changes[clients])[0])
    torch.testing.assert_close(updates.var(0), torch.stack(plain).double().var(0), rtol=1e-5, atol=0)


@BOTH
def test_with_everybody_there_is_nothing_to_remember(aggregate):
    update, weights = combine(aggregate, [0, 1, 2, 3])
    assert update.tolist() == pytest.approx((P @ DELTAS.numpy()).tolist(), abs=1e-6)
    assert weights.tolist() == pytest.approx(P.tolist())


def transcription(task, draws, unbiased):
    """Both algorithms on the laboratory, in float64: each client's delta is (1 − r)(b − x)."""
    p, x, y = task.weights, 3.0, {}
    r = (1 - LR * A) ** STEPS
    for drawn in draws:
        delta = {k: (1 - r[k]) * (B[k] - x) for k in drawn}
        if unbiased:
            gain = len(p) / len(drawn)
            update = sum(p[k] * y[k] for k in y) + sum(gain * p[k] * (delta[k] - y.get(k, 0.0)) for k in drawn)
            y |= delta
        else:
            y |= delta
            update = sum(p[k] * y[k] for k in y) / sum(p[k] for k in y)
        x += update
    return x


@BOTH
@pytest.mark.parametrize("rounds", [1, 2, 3, 12])
def test_the_round_loop_remembers_as_the_papers_do(aggregate, rounds):
    task = laboratory((3, 1))
    state, lines = play(task, Federation(local(), aggregate, select=Uniform(1)), rounds, seed=1)
    draws = [line["clients"] for line in lines]
    assert rounds < 12 or len({draw[0] for draw in draws}) == 2
    assert state.w.item() == pytest.approx(transcription(task, draws, isinstance(aggregate, FedVARP)), abs=2e-6)


@BOTH
@pytest.mark.parametrize(("sizes", "optimum"), [((1, 1), 0.8), ((3, 1), 0.5714285714)])
def test_one_local_step_and_one_of_two_clients_end_in_the_optimum(aggregate, sizes, optimum):
    """With one full-batch step these are SAG and SAGA, which a constant learning rate leads all the way."""
    task = laboratory(sizes)
    state, _ = play(task, Federation(local(steps=1), aggregate, select=Uniform(1)), 400)
    assert state.w.item() == pytest.approx(optimum, abs=1e-5)
    forgetful = run(task, Federation(local(steps=1), select=Uniform(1)), 400, evaluate_every=0)
    assert abs(forgetful.w.item() - optimum) > 0.01


@BOTH
def test_what_is_remembered_is_what_arrived(aggregate):
    @dataclasses.dataclass(frozen=True)
    class Coarse(type(Federation(local()).upload)):
        def encode(self, ctx, message, row):
            return {name: torch.round(8 * vector) / 8 for name, vector in message.items()}, row

    state, _ = play(laboratory(), Federation(local(), aggregate, Coarse(), select=Uniform(1)), 6)
    rows = [state.rows["aggregate"].read(k) for k in range(2)]
    assert all((row * 8) % 1 == 0 for row in rows) and any(rows)


class FailsOnOne(Line):
    """Its outputs for the second client's sample overflow."""

    def forward(self, x):
        return torch.where(x > 1.5, x * self.weight * 1e30, x * self.weight)


@BOTH
def test_a_client_that_was_dropped_is_not_remembered(aggregate):
    task = laboratory()
    task = Task(FailsOnOne, task.data, task.partition, task.loss)
    state, lines = play(task, Federation(local(), aggregate), 2)
    assert lines[1]["clients"] == [0] and list(lines[1]["dropped"]) == ["1"]
    assert state.rows["aggregate"].num_rows == 1
    state, lines = play(task, Federation(local(), aggregate, min_clients=2), 2)
    assert lines[1]["skipped"] and state.rows["aggregate"].num_rows == 0


@BOTH
def test_the_server_remembers_only_whom_it_heard(aggregate):
    rows = np.ones((50, 1))
    task = task_from(rows, rows, [1] * 50)
    state, lines = play(task, Federation(local(), aggregate, select=Uniform(2)), 3)
    assert state.rows["aggregate"].num_rows == len({k for line in lines for k in line["clients"]}) <= 6


@BOTH
def test_nobody_sends_or_receives_more(aggregate):
    _, plain = play(laboratory(), Federation(local(), select=Uniform(1)), 3)
    _, lines = play(laboratory(), Federation(local(), aggregate, select=Uniform(1)), 3)
    for name in ("bytes_up", "bytes_down", "header_up", "header_down"):
        assert [line[name] for line in lines] == [line[name] for line in plain]


@BOTH
def test_a_continued_run_and_any_number_of_workers_end_with_the_same_bits(aggregate, tmp_path):
    method = Federation(local(), aggregate, select=Uniform(1))
    task = laboratory((3, 1))
    whole = run(task, method, 7, workers=1)
    run(task, method, 3, record=tmp_path / "r", workers=2)
    again = run(task, method, 7, record=tmp_path / "r", workers=2)
    assert again.sha256 == whole.sha256 and again.rounds == whole.rounds
    plain = run(task, Federation(local(), Unbiased() if aggregate == FedVARP() else WeightedMean(), select=Uniform(1)), 7)
    assert plain.sha256 != whole.sha256


@BOTH
def test_a_watched_run_remembers_as_well(aggregate):
    method = Federation(local(), aggregate, select=Uniform(1))
    *_, seen = watch(laboratory(), method, rounds=5)
    assert torch.equal(seen.new_w, run(laboratory(), method, 5).w)


@BOTH
def test_privacy_is_refused_because_old_deltas_count_again(aggregate):
    method = Federation(local(), Noisy(aggregate, 1.0, 1.0), Clip(1.0), select=Poisson(0.5), min_clients=0)
    with pytest.raises(ValueError, match="differential privacy does not go with"):
        run(laboratory(), method, 1)


def test_plain_methods_keep_nothing_on_the_server():
    state, _ = play(laboratory(), Federation(local(), select=All()), 2)
    assert "aggregate" not in state.rows
