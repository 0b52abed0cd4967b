"""SCAFFOLD against the laboratory's closed forms and a transcription of the paper's algorithm."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from two_clients import LR, STEPS, A, B, laboratory, local, play_rounds, task_from

from fedlib.aggregate import UniformMean
from fedlib.control import Scaffold, control_change
from fedlib.ema import MatchedRate
from fedlib.experiment import run
from fedlib.federation import Federation, validate
from fedlib.local import LocalSGD, make_batches
from fedlib.prox import FedProx
from fedlib.rng import stream
from fedlib.selection import All, Uniform
from fedlib.server import ServerMomentum, ServerSGD
from fedlib.upload import Dense

WAYS = [Scaffold(), Scaffold(option=1), Scaffold(rebuild=True)]


def play(task, method, rounds, seed=0):
    """Play rounds by hand: the final state, the lines, and the committed row of each client (zeros if none)."""
    state, lines = play_rounds(task, method, rounds, seed)
    read = state.rows["correction"].read
    rows = [torch.zeros_like(state.w) if read(k) is None else torch.from_numpy(read(k)) for k in range(task.num_clients)]
    return state, lines, torch.stack(rows).numpy()


def gradients(x):
    return A * (x - B)


@pytest.mark.parametrize("correction", [*WAYS, Scaffold(refresh_every=3)], ids=repr)
@pytest.mark.parametrize("select", [All(), Uniform(1)])
@pytest.mark.parametrize(("sizes", "optimum"), [((1, 1), 0.8), ((3, 1), 0.5714285714), ((4, 1), 0.5)])
def test_the_laboratory_ends_at_the_weighted_optimum(correction, select, sizes, optimum):
    state, _, rows = play(laboratory(sizes), Federation(local(correction), select=select), 300)
    assert state.w.item() == pytest.approx(optimum, abs=3e-6)
    np.testing.assert_allclose(rows[:, 0], gradients(optimum), atol=2e-5)
    assert state.server["c"].item() == pytest.approx(0, abs=2e-5)


@pytest.mark.parametrize("correction", WAYS, ids=repr)
@pytest.mark.parametrize("start", ["zero", "own", "mean", "shared"])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_c_is_the_weighted_mean_of_all_rows_after_partial_rounds(correction, start, rounds):
    correction = Scaffold(correction.option, start, rebuild=correction.rebuild)
    task = laboratory(sizes=(3, 1))
    state, _, rows = play(task, Federation(local(correction), select=Uniform(1)), rounds)
    # Also for "mean" and "shared", where c_k = c = v at first: Σ p_k v is v.
    assert state.server["c"].item() == pytest.approx(task.weights @ rows[:, 0], abs=2e-5)


def test_uniform_deltas_with_weighted_controls_are_told_apart_by_the_end_point():
    """The aggregator decides whose objective is followed; the control variates stay the objective's."""
    state, _, _ = play(laboratory((4, 1)), Federation(local(Scaffold()), aggregate=UniformMean()), 400)
    assert state.w.item() == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("correction", WAYS, ids=repr)
def test_one_full_batch_step_from_zero_leaves_the_gradients(correction):
    _, _, rows = play(laboratory(), Federation(local(correction, steps=1)), 1)
    np.testing.assert_allclose(rows[:, 0], gradients(3.0), rtol=1e-6)


def test_at_the_optimum_the_corrected_gradient_is_zero():
    correction, w = Scaffold(), torch.tensor([0.8])
    for k, slope in enumerate(gradients(0.8)):
        own = torch.tensor([slope], dtype=torch.float32)
        _, carry = correction.begin(None, {"c": torch.zeros(1)}, own, w)
        assert correction.correct(own.clone(), w, carry).item() == pytest.approx(0, abs=1e-7), k


@pytest.mark.parametrize("option", [1, 2])
def test_a_flipped_sign_does_not_end_at_the_optimum(option):
    @dataclass(frozen=True)
    class Flipped(Scaffold):
        def begin(self, ctx, server, row, w):
            start, carry = super().begin(ctx, server, row, w)
            return start, carry | {"bias": -carry["bias"]}

    state, lines, _ = play(laboratory(), Federation(local(Flipped(option=option))), 80)
    if option == 1:
        assert state.w.item() == pytest.approx(0.5307, abs=1e-4)
    else:
        assert any("skipped" in line or line["dropped"] for line in lines) or abs(state.w.item()) > 100


# The paper's algorithm, written down line by line.


def transcription(task, drawn_in, seed, lr, epochs, batch_size, option, start):
    """Algorithm 1 of Karimireddy et al. (2020) in NumPy for the loss Σ_j (x_j w_j − y_j)²/2, weights p for 1/N."""
    X, Y, p = task.data.train_x.double().numpy(), task.data.train_y.double().numpy(), task.weights
    settings = LocalSGD(lr, epochs, batch_size)

    def gradient(w, batch):
        return (X[batch] * (X[batch] * w - Y[batch])).mean(axis=0)

    x = np.full(X.shape[1], 3.0)
    c_i = [gradient(x, ids) if start == "own" else np.zeros(len(x)) for ids in task.clients]
    c = sum(p[i] * c_i[i] for i in range(len(p)))
    for t, S in enumerate(drawn_in):
        y, c_plus = {}, {}
        for i in S:
            y[i], K = x.copy(), 0
            for batch in make_batches(task.clients[i], settings, stream(seed, "batches", t, i)):
                y[i] = y[i] - lr * (gradient(y[i], batch.numpy()) - c_i[i] + c)
                K += 1
            c_plus[i] = gradient(x, task.clients[i]) if option == 1 else c_i[i] - c + (x - y[i]) / (K * lr)
        share = {i: p[i] / sum(p[j] for j in S) for i in S}
        x = x + sum(share[i] * (y[i] - x) for i in S)
        c = c + sum(p[i] * (c_plus[i] - c_i[i]) for i in S)
        c_i = [c_plus.get(i, c_i[i]) for i in range(len(c_i))]
    return x, c, np.array(c_i)


@pytest.mark.parametrize("start", ["zero", "own"])
@pytest.mark.parametrize("correction", WAYS, ids=repr)
@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_agree_with_the_papers_algorithm(correction, start, rounds):
    rng = np.random.default_rng(6)
    task = task_from(rng.normal(size=(12, 3)), rng.normal(size=(12, 3)), [1] * 12)
    task = type(task)(task.model, task.data, Owners((5, 1, 4, 2)), task.loss)
    correction = Scaffold(correction.option, start, rebuild=correction.rebuild)
    method = Federation(LocalSGD(0.1, 3, 2, correction=correction), select=Uniform(2))
    state, lines, rows = play(task, method, rounds, seed=9)
    x, c, c_i = transcription(task, [line["clients"] for line in lines], 9, 0.1, 3, 2, correction.option, start)
    np.testing.assert_allclose(state.w, x, atol=1e-5)
    np.testing.assert_allclose(state.server["c"], c, atol=1e-5)
    np.testing.assert_allclose(rows, c_i, atol=1e-5)


@dataclass(frozen=True)
class Owners:
    sizes: tuple

    def __call__(self, labels, features=None):
        return np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])


# Warm starts.


def test_warm_starts_hold_what_they_say():
    task = laboratory((3, 1))
    slopes, p = gradients(3.0), np.array([0.75, 0.25])
    expected = {"zero": (0.0, [0, 0]), "own": (p @ slopes, slopes), "mean": (p @ slopes, [p @ slopes] * 2),
                "shared": (slopes[0], [slopes[0]] * 2)}  # fmt: skip
    for start, (c, own) in expected.items():
        state, _, rows = play(task, Federation(local(Scaffold(start=start))), 0)
        assert state.server["c"].item() == pytest.approx(c, rel=1e-6), start
        np.testing.assert_allclose(rows[:, 0], own, rtol=1e-6, err_msg=start)


@pytest.mark.parametrize("start", ["mean", "shared"])
def test_with_everybody_present_equal_starts_are_the_zero_start(start):
    def path(correction, select):
        return play(laboratory((3, 1)), Federation(local(correction), select=select), 4)[0].w.item()

    assert path(Scaffold(start=start), All()) == pytest.approx(path(Scaffold(), All()), abs=1e-5)
    assert abs(path(Scaffold(start=start), Uniform(1)) - path(Scaffold(), Uniform(1))) > 1e-3


def test_a_client_without_samples_has_no_start():
    task = task_from([[1.0], [2.0], [3.0]], [[1.0]] * 3, [2, 0, 1])
    for start in ("own", "mean", "shared"):
        state, _, rows = play(task, Federation(local(Scaffold(start=start))), 1)
        assert rows[1].item() == 0 and torch.isfinite(state.w).all()


# Traffic.


def lines_of(correction, rounds=1):
    return play(laboratory(), Federation(local(correction)), rounds)[1]


def test_the_ledger_counts_two_vectors_each_way_or_one_and_a_number():
    task, d = task_from(np.ones((2, 3)), np.ones((2, 3)), [1, 1]), 4 * 3  # bytes of a vector
    for correction, up in ((Scaffold(), 2 * d), (Scaffold(option=1), 2 * d), (Scaffold(rebuild=True), d + 4)):
        _, (line,), _ = play(task, Federation(local(correction)), 1)
        assert line["bytes_down"] == 2 * 2 * d and line["bytes_up"] == 2 * up


def test_nothing_is_sent_up_for_c_in_rounds_without_a_renewal():
    up = [line["bytes_up"] for line in lines_of(Scaffold(refresh_every=3), rounds=5)]
    assert up == [16, 8, 8, 16, 8]


def test_the_server_rebuilds_what_the_client_computed():
    rebuilt = play(laboratory((3, 1)), Federation(local(Scaffold(rebuild=True)), select=Uniform(1)), 9)
    sent = play(laboratory((3, 1)), Federation(local(Scaffold()), select=Uniform(1)), 9)
    assert np.array_equal(rebuilt[2], sent[2]) and torch.equal(rebuilt[0].server["c"], sent[0].server["c"])


def test_the_change_follows_from_the_delta_by_hand():
    # Two steps with lr 0.5 and mean step (2, −4), while c was (1, 1): Δ = −(2, −4).
    change = control_change(torch.tensor([1.0, 1.0]), torch.tensor([[-2.0, 4.0]]), torch.tensor([[1.0]]))
    assert change.tolist() == [[1.0, -5.0]]


@dataclass(frozen=True)
class Coarse(Dense):
    """Round what is sent, as a lossy compressor does."""

    def encode(self, ctx, message, row):
        return {name: vector.mul(50).round().div(50) for name, vector in message.items()}, row


@pytest.mark.parametrize("correction", [Scaffold(), Scaffold(option=1), Scaffold(rebuild=True)], ids=repr)
def test_both_sides_stay_equal_under_a_lossy_upload(correction):
    task = laboratory((3, 1))
    state, _, rows = play(task, Federation(local(correction), upload=Coarse(), select=Uniform(1)), 12)
    assert state.server["c"].item() == pytest.approx(task.weights @ rows[:, 0], abs=1e-5)


# What is reported, refused and composed.


def test_norms_are_reported():
    line = lines_of(Scaffold())[0]
    state, _, rows = play(laboratory(), Federation(local(Scaffold())), 1)
    assert line["c_norm"] == pytest.approx(abs(state.server["c"].item()))
    assert line["c_k_norms"] == pytest.approx(np.abs(rows)[:, 0].tolist())


@pytest.mark.parametrize("correction", WAYS, ids=repr)
def test_local_momentum_is_refused_and_the_servers_is_not(correction):
    local_momentum = LocalSGD(lr=0.1, momentum=0.9, correction=correction)
    with pytest.raises(ValueError, match=r"momentum=0.9 .*Scaffold\(.*server"):
        validate(Federation(local_momentum), laboratory())
    method = Federation(local(correction), step=ServerMomentum(lr=0.5, momentum=0.5))
    assert play(laboratory((3, 1)), method, 200)[0].w.item() == pytest.approx(0.5714285714, abs=3e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"option": 3}, "option must be 1 or 2, got 3"),
        ({"start": "warm"}, "start must be one of zero, own, mean, shared, got 'warm'"),
        ({"refresh_every": 0}, "refresh_every must be an integer of at least 1, got 0"),
        ({"refresh_every": 1.5}, "got 1.5"),
        ({"option": 1, "rebuild": True}, "rebuild=True does not go with option=1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Scaffold(**settings)


@pytest.mark.parametrize("correction", [*WAYS, Scaffold(start="own", refresh_every=2)], ids=repr)
def test_a_continued_run_ends_with_the_same_bits(correction, tmp_path):
    method = Federation(local(correction), select=Uniform(1), step=ServerMomentum(0.5, 0.5))
    whole = run(laboratory((3, 1)), method, 5)
    run(laboratory((3, 1)), method, 2, record=tmp_path / "r")
    continued = run(laboratory((3, 1)), method, 5, record=tmp_path / "r")
    assert continued.sha256 == whole.sha256 and continued.rounds == whole.rounds


def test_the_laboratorys_numbers_are_those_that_were_promised():
    assert (LR, STEPS) == (0.1, 5) and gradients(0.8) == pytest.approx([0.8, -0.8])


def test_a_client_with_broken_data_spoils_nobody_elses_vectors():
    broken = task_from([[1.0], [2.0], [np.nan]], [[1.0], [0.5], [0.0]], [2, 1, 1])
    for start in ("own", "mean"):
        history = run(broken, Federation(local(Scaffold(start=start))), 3, evaluate_every=0)
        assert all(line["clients"] == [0, 1] and "2" in line["dropped"] for line in history.rounds)
    largest = task_from([[np.nan], [2.0]], [[1.0], [0.5]], [2, 1])
    with pytest.raises(ValueError, match="largest client's samples is not finite"):
        run(largest, Federation(local(Scaffold(start="shared"))), 1)


def test_a_rising_schedule_is_refused_in_the_round_where_it_gets_too_large():
    @dataclass(frozen=True)
    class Rising:
        def at(self, t):
            return 0.05 * (1 + t)

    with pytest.raises(ValueError, match="mu=15"):
        run(laboratory(), Federation(local(FedProx(15.0), lr=Rising())), 9, evaluate_every=0)


def test_server_and_control_arm_refuse_useless_settings():
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="lr"):
            ServerSGD(wrong)
        with pytest.raises(ValueError, match="beta"):
            MatchedRate(wrong)
