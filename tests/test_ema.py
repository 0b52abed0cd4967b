"""FedProx and the moving average: what they are, against closed forms and against each other."""

import numpy as np
import pytest
import torch
from two_clients import LR, STEPS, A, B, laboratory, linear_loss, local, task_from

from fedlib.ema import EMAControl, MatchedRate
from fedlib.experiment import run
from fedlib.federation import Federation, validate
from fedlib.local import LocalSGD
from fedlib.prox import FedProx
from fedlib.selection import Uniform

ALL = [EMAControl(0.1), EMAControl(0.1, "raw"), EMAControl(0.1, "global"), EMAControl(0.1, kept=True, start="own"),
       MatchedRate(0.1), FedProx(0.5)]  # fmt: skip


def end(correction, rounds=1, task=None, **parts):
    return run(task or laboratory(), Federation(local(correction), **parts), rounds, evaluate_every=0).w


def walk(correction, gradients, lr, row=None):
    """Take one step a gradient function from w = 0 in double precision: the points, and c after each step."""
    w = torch.zeros(3, dtype=torch.float64)
    theta, points, controls = w.clone(), [], []
    _, carry = correction.begin(None, {}, row, w)
    for gradient in gradients:
        theta = theta - lr * correction.correct(gradient(theta), theta, carry)
        points.append(theta)
        controls.append(carry.get("c"))
    return torch.stack(points), controls


def noisy(num):
    rng = np.random.default_rng(0)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    return [lambda x, e=torch.from_numpy(rng.normal(size=3)): scale * (x - 1) + e for _ in range(num)]


# FedProx.


def test_prox_walks_its_closed_form():
    mu, w, a, b = 2.0, 3.0, 4.0, 1.0
    limit = (a * b + mu * w) / (a + mu)
    expected = limit + (w - limit) * (1 - LR * (a + mu)) ** STEPS
    assert end(FedProx(mu), task=task_from([[2.0]], [[2.0]], [1])).item() == pytest.approx(expected, abs=1e-6)


def test_prox_without_a_pull_is_fedavg():
    assert end(FedProx(0.0), 30).item() == end(None, 30).item()


def test_a_pull_that_must_diverge_is_refused_and_a_strong_one_is_not():
    with pytest.raises(ValueError, match="lr=0.1 times mu=20.0 is 2"):
        validate(Federation(local(FedProx(20.0))), laboratory())
    validate(Federation(local(FedProx(19.9))), laboratory())
    # The limit with the loss included is lr (mu + L) < 2, here L = 4.
    assert abs(end(FedProx(15.9), 40).item()) < 3.1
    with pytest.raises(ValueError, match="mu must be finite"):
        FedProx(-1.0)


def test_the_reference_of_prox_does_not_follow_the_live_parameters():
    """One client that starts at w and is pushed by a constant gradient: μ (θ − w) grows until it balances."""
    points, _ = walk(FedProx(2.0), [lambda x: torch.ones(3, dtype=torch.float64)] * 200, lr=0.1)
    assert points[-1].tolist() == pytest.approx([-0.5] * 3)


# The three readings.


def test_the_raw_reading_is_prox_with_mu_beta_over_lr():
    beta, lr = 0.05, 0.2
    raw, _ = walk(EMAControl(beta, "raw"), noisy(400), lr)
    prox, _ = walk(FedProx(beta / lr), noisy(400), lr)
    assert (raw - prox).abs().max() < 1e-12
    assert (raw - walk(EMAControl(beta), noisy(400), lr)[0]).abs().max() > 0.01


def test_the_corrected_reading_follows_its_formula_for_a_constant_gradient():
    g, beta = torch.tensor([2.0, -3.0, 0.5], dtype=torch.float64), 0.07
    points, controls = walk(EMAControl(beta), [lambda x: g.clone()] * 60, 0.1)
    for t, c in enumerate(controls, start=1):
        assert torch.allclose(c, g / 2 * (1 - (1 - 2 * beta) ** t), atol=1e-12)
    # And the control arm takes the same steps.
    matched, _ = walk(MatchedRate(beta), [lambda x: g.clone()] * 60, 0.1)
    assert torch.allclose(points, matched, atol=1e-12)


def test_the_corrected_reading_pulls_toward_a_trailing_average_of_the_clients_own_path():
    beta, lr = 0.1, 0.2
    points, controls = walk(EMAControl(beta), noisy(50), lr)
    average = torch.zeros(3, dtype=torch.float64)
    for theta, c in zip(points, controls):
        average = (1 - beta) * average + beta * theta
        assert torch.allclose(c, -beta / (lr * (1 - beta)) * (theta - average), atol=1e-12)


def test_the_global_reading_pulls_toward_the_initial_model():
    """With everybody present, training settles where ∇f(w) + β/(H lr) (w − w⁰) = 0, far from the optimum."""
    beta, w0 = 0.1, 3.0
    one_step = run(laboratory(), Federation(local(EMAControl(beta, "global"), steps=1)), 400, evaluate_every=0)
    mu = beta / LR
    assert one_step.w.item() == pytest.approx((np.mean(A * B) + mu * w0) / (A.mean() + mu), abs=1e-5)
    history = run(laboratory(), Federation(local(EMAControl(beta, "global"))), 3, evaluate_every=0)
    assert history.rounds[-1]["c_k_norms"][0] > 0
    before = run(laboratory(), Federation(local(EMAControl(beta, "global"))), 2, evaluate_every=0).w.item()
    c = beta / (STEPS * LR) * abs(before - w0)
    assert history.rounds[-1]["c_k_norms"] == pytest.approx([c, c], rel=1e-5)


def test_the_global_average_has_the_objectives_weights():
    g = np.array([4.0, -2.0])
    task = task_from([[1.0], [1.0]], g[:, None], [3, 1], linear_loss)
    history = run(task, Federation(local(EMAControl(0.1, "global"))), 2, evaluate_every=0)
    assert history.rounds[1]["c_k_norms"][0] == pytest.approx(0.1 * (0.75 * 4 - 0.25 * 2), rel=1e-5)
    assert history.rounds[0]["bytes_up"] == 2 * 8 and history.rounds[0]["bytes_down"] == 2 * 8


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("kept", "rounds"), [(False, 1), (False, 4), (True, 1), (True, 4)])
def test_c_is_changed_after_every_so_many_steps_and_kept_if_asked(every, kept, rounds):
    g, beta = np.array([2.0, -3.0]), 0.05
    task = task_from([[1.0], [1.0]], g[:, None], [1, 1], linear_loss)
    correction = EMAControl(beta, kept=kept, refresh_every=every)
    history = run(task, Federation(local(correction)), rounds, evaluate_every=0)
    changes = -(-STEPS // every) * (rounds if kept else 1)
    expected = np.abs(g) / 2 * (1 - (1 - 2 * beta) ** changes)
    assert history.rounds[-1]["c_k_norms"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reading", ["corrected", "raw"])
def test_a_local_average_is_not_sent_and_no_other_client_enters(reading):
    line = run(laboratory(), Federation(local(EMAControl(0.1, reading, kept=True))), 1).rounds[0]
    assert line["bytes_up"] == line["bytes_down"] == 2 * 4
    alone = run(laboratory(), Federation(local(EMAControl(0.1, reading)), select=Uniform(1)), 1)
    both = run(laboratory(), Federation(local(EMAControl(0.1, reading))), 1)
    k = alone.rounds[0]["clients"][0]
    assert alone.rounds[0]["c_k_norms"][0] == both.rounds[0]["c_k_norms"][k]


def test_a_warm_start_from_the_own_gradient_takes_no_first_step():
    history = run(laboratory(), Federation(local(EMAControl(0.1, kept=True, start="own"), steps=1)), 1, evaluate_every=0)
    assert history.w.item() == 3.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta must lie between 0 and 1, got 0.0"),
        ({"beta": 1.0}, "got 1.0"),
        ({"beta": 0.1, "reading": "ema"}, "reading must be one of corrected, raw, global, got 'ema'"),
        ({"beta": 0.1, "start": "mean"}, "start='mean' needs kept=True"),
        ({"beta": 0.1, "start": "x", "kept": True}, "start must be one of"),
        ({"beta": 0.1, "refresh_every": 0}, "refresh_every must be an integer of at least 1, got 0"),
        ({"beta": 0.1, "reading": "global", "kept": True}, "c is the server's"),
        ({"beta": 0.1, "reading": "global", "refresh_every": 2}, "c is the server's"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EMAControl(**settings)


def test_local_momentum_is_refused_only_where_gradients_are_inferred_from_steps():
    def validated(reading):
        validate(Federation(LocalSGD(0.1, momentum=0.9, correction=EMAControl(0.1, reading))), laboratory())

    validated("corrected")
    validated("raw")
    with pytest.raises(ValueError, match="momentum=0.9"):
        validated("global")


@pytest.mark.parametrize("correction", ALL, ids=repr)
def test_a_continued_run_ends_with_the_same_bits(correction, tmp_path):
    method = Federation(local(correction), select=Uniform(1))
    whole = run(laboratory((3, 1)), method, 5)
    run(laboratory((3, 1)), method, 2, record=tmp_path / "r")
    continued = run(laboratory((3, 1)), method, 5, record=tmp_path / "r")
    assert continued.sha256 == whole.sha256 and continued.rounds == whole.rounds
    assert str(whole.config["method"]["local"]["correction"]["is"]) == type(correction).__name__


@pytest.mark.parametrize("correction", ALL, ids=repr)
def test_identical_clients_do_the_same_whoever_was_trained_before(correction):
    if isinstance(correction, EMAControl) and correction.start == "own":
        pytest.skip("nobody moves in the first round")
    twins = task_from([[1.0], [1.0]], [[1.0], [1.0]], [1, 1])
    one = task_from([[1.0]], [[1.0]], [1])
    assert end(correction, 3, twins).item() == pytest.approx(end(correction, 3, one).item(), abs=1e-6)
