"""Server steps with momentum, Adam and Yogi, each against a step computed by hand."""

import numpy as np
import pytest
import torch
from two_clients import laboratory, local

from fedlib.evaluate import evaluate
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.selection import Uniform
from fedlib.server import Averaged, ServerAdam, ServerMomentum, ServerSGD, ServerYogi

W = torch.tensor([1.0, -2.0])


def two_steps(step, first, second):
    state = step.prepare(W)
    w, state = step.step(state, W, torch.tensor(first))
    w, state = step.step(state, w, torch.tensor(second))
    assert W.tolist() == [1.0, -2.0], "the old model was overwritten"
    return w.tolist(), state


def test_momentum_by_hand():
    w, state = two_steps(ServerMomentum(lr=0.5, momentum=0.8), [1.0, -2.0], [0.5, 0.0])
    # v: (1, −2), then 0.8 · (1, −2) + (0.5, 0) = (1.3, −1.6); w: + 0.5 v each time.
    assert state["v"].tolist() == pytest.approx([1.3, -1.6])
    assert w == pytest.approx([1 + 0.5 + 0.65, -2 - 1 - 0.8])


def test_momentum_without_memory_is_the_plain_step():
    assert two_steps(ServerMomentum(0.7, 0.0), [1.0, 2.0], [3.0, 4.0])[0] == pytest.approx(
        two_steps(ServerSGD(0.7), [1.0, 2.0], [3.0, 4.0])[0]
    )


def test_adam_by_hand():
    w, state = two_steps(ServerAdam(lr=0.1, beta1=0.9, beta2=0.75, epsilon=0.5), [2.0, -1.0], [0.0, 1.0])
    # v starts at 0.25; no bias correction: m = 0.1 · Δ, v = 0.75 · 0.25 + 0.25 Δ².
    # First: m = (0.2, −0.1), v = (1.1875, 0.4375). Second: m = (0.18, 0.01), v = (0.890625, 0.578125).
    assert state["m"].tolist() == pytest.approx([0.18, 0.01])
    assert state["v"].tolist() == pytest.approx([0.890625, 0.578125])
    first = [0.1 * 0.2 / (1.1875**0.5 + 0.5), 0.1 * -0.1 / (0.4375**0.5 + 0.5)]
    second = [0.1 * 0.18 / (0.890625**0.5 + 0.5), 0.1 * 0.01 / (0.578125**0.5 + 0.5)]
    assert w == pytest.approx([1 + first[0] + second[0], -2 + first[1] + second[1]])


def test_yogi_by_hand():
    w, state = two_steps(ServerYogi(lr=0.1, beta1=0.9, beta2=0.75, epsilon=0.5), [2.0, -0.1], [0.0, 1.0])
    # v − 0.25 Δ² sign(v − Δ²). First: 0.25 < 4, so 0.25 + 1 = 1.25; 0.25 > 0.01, so 0.25 − 0.0025 = 0.2475.
    # Second: Δ² = 0 changes nothing; 0.2475 < 1, so 0.2475 + 0.25 = 0.4975.
    assert state["v"].tolist() == pytest.approx([1.25, 0.4975])
    m = [[0.2, -0.01], [0.18, 0.091]]
    v = [[1.25, 0.2475], [1.25, 0.4975]]
    moved = 0.1 * np.array(m) / (np.sqrt(v) + 0.5)
    assert w == pytest.approx((np.array([1.0, -2.0]) + moved.sum(axis=0)).tolist())


@pytest.mark.parametrize("step", [ServerMomentum(), ServerAdam(), ServerYogi()], ids=repr)
def test_the_server_moves_along_the_update_and_not_against_it(step):
    w, _ = step.step(step.prepare(W), W, torch.tensor([1.0, -1.0]))
    assert w[0] > W[0] and w[1] < W[1]


def test_the_fixed_point_of_fedavg_stays_that_of_momentum():
    history = run(laboratory(), Federation(local(), step=ServerMomentum(0.3, 0.7)), 200, evaluate_every=0)
    assert history.w.item() == pytest.approx(0.6925023465, abs=1e-5)


def models_of(history_of, rounds):
    """The model after each of ``rounds`` rounds, each from a run of its own."""
    return [history_of(t).w.item() for t in range(1, rounds + 1)]


@pytest.mark.parametrize("decay", [0.5, 0.9, 1.0])
def test_the_delivered_model_is_the_mean_of_the_models_of_all_rounds(decay):
    def play(step, rounds):
        return run(laboratory((3, 1)), Federation(local(), step=step, select=Uniform(1)), rounds)

    inner = ServerMomentum(0.5, 0.6)
    plain = models_of(lambda rounds: play(inner, rounds), 6)
    averaged = models_of(lambda rounds: play(Averaged(inner, decay), rounds), 6)
    weights = decay ** np.arange(6)[::-1]
    for t in range(6):
        w = weights[5 - t :]
        assert averaged[t] == pytest.approx(np.dot(w, plain[: t + 1]) / w.sum(), abs=1e-6)
    # Clients go on from the last model, so their losses are those of the run without averaging.
    with_mean, without = play(Averaged(inner, decay), 6), play(inner, 6)
    assert [line["train_loss"] for line in with_mean.rounds] == [line["train_loss"] for line in without.rounds]


def test_what_is_measured_is_the_delivered_model():
    history = run(laboratory(), Federation(local(), step=Averaged(decay=1.0)), 3)
    task, w = laboratory(), history.w
    assert history.rounds[-1]["loss"] == pytest.approx(evaluate(task, task.new_model(0), w)["loss"])
    assert run(laboratory(), Federation(local(), step=Averaged()), 0).w.tolist() == [3.0]


def test_the_mean_of_models_runs_in_float64():
    step, w = Averaged(decay=1.0), torch.tensor([2.0**24 + 2])
    state = step.prepare(w)
    state["total"] += 2.0**50 + 2.0**24
    _, new = step.step(state, w, torch.tensor([0.0]))
    assert new["total"].item() == 2.0**50 + 2.0**25 + 2


@pytest.mark.parametrize(
    "step", [ServerMomentum(0.5, 0.9), ServerAdam(), ServerYogi(), Averaged(ServerMomentum(0.5, 0.9), 0.8)], ids=repr
)
def test_a_continued_run_ends_with_the_same_bits(step, tmp_path):
    method = Federation(local(), step=step)
    whole = run(laboratory(), method, 5)
    run(laboratory(), method, 2, record=tmp_path / "r")
    assert run(laboratory(), method, 5, record=tmp_path / "r").sha256 == whole.sha256


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ServerMomentum(lr=0.0), "lr must be positive and finite, got 0.0"),
        (lambda: ServerMomentum(momentum=1.0), r"momentum must lie in \[0, 1\), got 1.0"),
        (lambda: ServerAdam(lr=float("nan")), "lr must be positive and finite, got nan"),
        (lambda: ServerAdam(beta1=-0.1), "beta1 must lie in"),
        (lambda: ServerYogi(beta2=1.0), "beta2 must lie in"),
        (lambda: ServerYogi(epsilon=0.0), "epsilon must be positive"),
        (lambda: Averaged(decay=0.0), r"decay must lie in \(0, 1\], got 0.0"),
        (lambda: Averaged(decay=1.1), r"decay must lie in \(0, 1\], got 1.1"),
        (lambda: Averaged(decay=float("nan")), "decay must lie in"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
