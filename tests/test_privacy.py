"""Clipping, noise, Poisson draws and private control variates, held against closed forms and hand computation."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from two_clients import LR, STEPS, A, B, Given, laboratory, linear_loss, local, task_from

from fedlib import accounting, models, partition
from fedlib.aggregate import FixedMean, UniformMean, WeightedMean
from fedlib.audit import Canaries
from fedlib.compress import Quantize, TopK
from fedlib.context import Context
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.executor import Workers
from fedlib.experiment import run
from fedlib.federation import Federation, begin, play_round, validate
from fedlib.local import LocalSGD
from fedlib.privacy import Clip, Noisy, PrivateScaffold, clip_rows, joint_multiplier
from fedlib.rng import stream
from fedlib.selection import All, Poisson, Uniform
from fedlib.server import ServerMomentum
from fedlib.similarity import Similarity
from fedlib.task import Task
from fedlib.upload import Compress, Dense, ErrorFeedback

HERE = Path(__file__).parent
N, Q, C, Z = 40, 0.25, 2.0, 1.5


def context(t=0, num=N, seed=0):
    everyone = np.arange(num)
    return Context(t, seed, everyone, everyone, np.full(num, 1 / num), None, None)


def private(rate=Q, clip=C, z=Z, correction=None, control=None, **parts):
    parts = {"min_clients": 0, "select": Poisson(rate), "upload": Clip(clip, control), **parts}
    return Federation(local(correction, steps=1), aggregate=Noisy(FixedMean(rate), clip, z), **parts)


# Clipping


def test_clipping_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0], [-1e30, 0.0], [1e-30, 0.0]])
    clipped = clip_rows(rows, 1.0)
    torch.testing.assert_close(clipped[0], torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(clipped[3], torch.tensor([-1.0, 0.0]))
    assert torch.equal(clipped[2], rows[2]) and torch.equal(clipped[4], rows[4])


def test_clipped_rows_are_short_enough_point_the_same_way_and_otherwise_untouched():
    rows = torch.from_numpy(stream(0, "toy").normal(0, 1, (200, 50)) * np.geomspace(0.01, 100, 200)[:, None]).float()
    clipped, lengths = clip_rows(rows, C), rows.double().norm(dim=1)
    assert (clipped.double().norm(dim=1) <= C * (1 + 1e-6)).all()
    inside = lengths <= C
    assert inside.any() and (~inside).any() and torch.equal(clipped[inside], rows[inside])
    cosine = torch.cosine_similarity(clipped.double(), rows.double())
    torch.testing.assert_close(cosine, torch.ones(200, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.allclose(clipped[~inside].norm(dim=1), torch.tensor(C))
    assert torch.equal(clip_rows(rows[7], C), clipped[7]), "one vector is clipped as a row is"


def test_each_named_vector_has_a_clip_norm_of_its_own():
    sent, row = Clip(1.0, control=0.1).encode(None, {"delta": torch.ones(4), "control": torch.ones(4)}, None)
    assert sent["delta"].norm() == pytest.approx(1) and sent["control"].norm() == pytest.approx(0.1)
    assert row is None


def test_clipping_depends_on_deltas_not_on_where_the_model_is():
    """Each gradient is constant, so a model elsewhere gives the same deltas and has to get the same update."""
    task = task_from([[4.0], [-1.0]], [[1.0], [1.0]], [1, 1], linear_loss)
    method = private(rate=1.0, clip=0.25, z=1e-6)
    model = task.new_model(0)
    moved = []
    for shift in (0.0, 1024.0):
        state = begin(task, method, model, 0)
        start = replace(state, w=state.w + shift)
        after, _ = play_round(task, method, Workers([model]), 0, start)
        moved.append(float(after.w - start.w))
    assert moved[0] == pytest.approx((-0.25 + 0.1) / 2, abs=1e-4)
    assert moved[1] == pytest.approx(moved[0], abs=2e-4)


# Noise


@pytest.mark.parametrize("drawn", [0, 1, 7, 40])
def test_the_noise_has_the_same_size_whoever_comes(drawn):
    d = 40_000
    deltas = torch.zeros(drawn, d)
    update, weights = Noisy(FixedMean(Q), C, Z).combine(context(), deltas)
    assert float(update.std()) == pytest.approx(Z * C / (Q * N), rel=0.02)
    assert abs(float(update.mean())) < 5 * Z * C / (Q * N) / d**0.5
    assert update.shape == (d,) and update.dtype == torch.float32
    assert weights.tolist() == [1 / (Q * N)] * drawn


def test_one_more_client_moves_the_update_by_its_share_and_no_other():
    rows = clip_rows(torch.from_numpy(stream(1, "toy").normal(0, 3, (9, 30))).float(), C)
    noisy = Noisy(FixedMean(Q), C, Z)
    (without, _), (all_nine, _) = noisy.combine(context(), rows[:8]), noisy.combine(context(), rows)
    torch.testing.assert_close(all_nine - without, rows[8] / (Q * N), atol=1e-6, rtol=1e-4)
    assert float((all_nine - without).norm()) == pytest.approx(C / (Q * N), rel=1e-4)


def test_noise_differs_by_round_and_seed_and_comes_from_its_own_stream():
    noisy, nobody = Noisy(FixedMean(Q), C, Z), torch.zeros(0, 3)
    draws = {(t, seed): noisy.combine(context(t, seed=seed), nobody)[0] for t in (0, 1) for seed in (0, 1)}
    assert len({tuple(draw.tolist()) for draw in draws.values()}) == 4
    expected = stream(1, "noise", 1).normal(0, Z * C / (Q * N), 3)
    np.testing.assert_allclose(draws[1, 1], expected, rtol=1e-6)


def test_the_fixed_mean_divides_by_who_is_expected():
    update, _ = FixedMean(Q).combine(context(), torch.full((3, 2), 5.0))
    assert update.tolist() == pytest.approx([15 / (Q * N)] * 2)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_clip_norms_and_noise_must_be_positive_and_finite(bad):
    for make in (lambda: Clip(bad), lambda: Clip(1.0, bad), lambda: Noisy(FixedMean(Q), bad, Z),
                 lambda: Noisy(FixedMean(Q), C, bad), lambda: joint_multiplier(1.0, bad),
                 lambda: PrivateScaffold(clip=bad, noise_multiplier=1.0),
                 lambda: PrivateScaffold(clip=1.0, noise_multiplier=bad)):  # fmt: skip
        with pytest.raises(ValueError, match="positive and finite, got"):
            make()


# Poisson draws


def test_poisson_draws_each_client_by_itself():
    drawn = np.zeros((4000, 12), dtype=bool)
    for t in range(4000):
        jobs = Poisson(0.3).draw(t, 12, stream(0, "select", t))
        clients = [client for client, version in jobs if version == t]
        assert clients == sorted(clients) and len(clients) == len(jobs)
        drawn[t, clients] = True
    sd = np.sqrt(0.3 * 0.7 / 4000)
    assert np.abs(drawn.mean(axis=0) - 0.3).max() < 5 * sd
    counts = drawn.sum(axis=1)
    assert counts.var() == pytest.approx(12 * 0.3 * 0.7, rel=0.1), "the number drawn is binomial"
    assert np.abs(np.corrcoef(drawn.T) - np.eye(12)).max() < 5 / np.sqrt(4000)
    assert 0 < np.mean(counts == 0) < 0.05


def test_poisson_with_rate_one_draws_everybody_and_knows_what_to_expect():
    assert Poisson(1.0).draw(3, 2, stream(0, "select", 3)) == [(0, 3), (1, 3)]
    assert Poisson(0.05).expected_size(1000) == pytest.approx(50)


@pytest.mark.parametrize("rate", [0, -0.1, 1.5])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(ValueError, match=f"got {rate}"):
        Poisson(rate)


# Whole rounds


def test_without_clip_and_noise_to_speak_of_it_is_fedavg():
    method = replace(private(rate=1.0, clip=1e3, z=1e-9), local=local())
    history = run(laboratory(), method, 60, evaluate_every=0)
    shrink = (1 - LR * A) ** STEPS
    assert float(history.w) == pytest.approx(np.sum(B * (1 - shrink)) / np.sum(1 - shrink), abs=1e-4)


def test_a_round_without_clients_is_pure_noise_and_not_skipped():
    method = private(rate=0.05)
    history = run(laboratory(), method, 12, seed=3, evaluate_every=0)
    assert [line["clients"] for line in history.rounds].count([]) >= 8
    assert not any("skipped" in line for line in history.rounds)
    empty = next(line["t"] for line in history.rounds if not line["clients"])
    before = run(laboratory(), method, empty, seed=3, evaluate_every=0).w
    after = run(laboratory(), method, empty + 1, seed=3, evaluate_every=0).w
    noise = stream(3, "noise", empty).normal(0, Z * C / (0.05 * 2), 1)
    np.testing.assert_allclose(after - before, noise, rtol=1e-4)


def test_a_client_without_a_usable_message_counts_as_zero():
    """Client 0's sample is not a number and client 2 has none: the denominator stays, and so does the noise."""
    task = task_from([[np.nan], [-1.0], [0.0]], [[1.0], [1.0], [1.0]], [1, 1, 0], linear_loss)
    method = private(rate=1.0, clip=10.0)
    model = task.new_model(0)
    state = begin(task, method, model, 0)
    after, line = play_round(task, method, Workers([model]), 0, state)
    noise = stream(0, "noise", 0).normal(0, Z * 10 / 3, 1)
    assert float(after.w - state.w) == pytest.approx(LR / 3 + noise[0], rel=1e-4)
    assert set(line["dropped"]) == {"0", "2"} and line["clients"] == [1]


def small_task(num_clients=8):
    rng = stream(5, "toy")
    x, y = torch.from_numpy(rng.normal(size=(64, 3))).float(), torch.from_numpy(rng.integers(2, size=64))
    return Task(models.mlp, Dataset("toy", x, y, x, y, 2), partition.iid(num_clients=num_clients))


def scaffold(clip=0.5, z=1.0, **settings):
    return PrivateScaffold(clip=clip, noise_multiplier=z, **settings)


METHODS = {"FedAvg": (Correction(), None), "SCAFFOLD": (scaffold(), 0.5)}


def trained(name, rate=0.12, **settings):
    correction, control = METHODS[name]
    method = private(rate, correction=correction, control=control, step=ServerMomentum(0.5, 0.9))
    return replace(method, local=LocalSGD(0.1, correction=correction, **settings))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_the_result_depends_neither_on_workers_nor_on_an_interruption(tmp_path, name, batched):
    """Nobody is drawn in some rounds; interruptions come just before and just after the first of them, too."""
    task, method = small_task(), trained(name, batched=batched)
    whole = run(task, method, 12, workers=1)
    empty = [line["t"] for line in whole.rounds if not line["clients"]]
    assert empty and empty[0] < 11
    workers = (1,) if batched else (2, 3)  # batched training has one process
    for count in workers:
        more = run(task, method, 12, workers=count)
        assert more.sha256 == whole.sha256 and more.rounds == whole.rounds
    for stop in (2, empty[0], empty[0] + 1):
        folder = tmp_path / f"stopped-{stop}"
        run(task, method, stop, record=folder, workers=1)
        resumed = run(task, method, 12, record=folder, workers=workers[0])
        assert resumed.sha256 == whole.sha256 and resumed.rounds == whole.rounds


@pytest.mark.parametrize(("name", "place"), [("FedAvg", "noise"), ("SCAFFOLD", "noise"), ("SCAFFOLD", "rows")])
def test_a_run_that_is_killed_in_the_middle_of_a_round_continues_to_the_same_bits(tmp_path, name, place):
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "kill_private.py", tmp_path / "r", name, place]
    killed = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < (tmp_path / "r" / "rounds.jsonl").read_text().count("\n") < 8
    task, method = small_task(), trained(name)
    whole, resumed = run(task, method, 8), run(task, method, 8, record=tmp_path / "r", workers=2)
    assert resumed.sha256 == whole.sha256 and resumed.rounds == whole.rounds
    assert accounting.spent(resumed, 1e-5)[1].tolist() == accounting.spent(whole, 1e-5)[1].tolist()


def test_batched_training_is_private_in_the_same_way():
    task, method = small_task(), replace(private(), local=LocalSGD(0.1))
    batched = replace(method, local=LocalSGD(0.1, batched=True))
    torch.testing.assert_close(run(task, batched, 4).w, run(task, method, 4).w, atol=1e-5, rtol=1e-4)


# Private control variates


def test_the_control_variate_is_the_mean_of_all_clients_plus_its_own_noise():
    correction = scaffold(clip=0.5, z=0.8)
    method = replace(private(correction=correction, control=0.5), local=LocalSGD(0.1, correction=correction))
    task = small_task()
    model = task.new_model(0)
    state = begin(task, method, model, 0)
    for _ in range(5):
        state, _ = play_round(task, method, Workers([model]), 0, state)
    rows = [state.rows["correction"].read(k) for k in range(8)]
    mean = sum(row for row in rows if row is not None) / 8
    noise = sum(stream(0, "control_noise", t).normal(0, 0.8 * 0.5, len(mean)) for t in range(5)) / 8
    np.testing.assert_allclose(state.server["c"], mean + noise, atol=1e-5)
    delta_noise = stream(0, "noise", 0).normal(0, 1, len(mean))
    assert abs(np.corrcoef(delta_noise, stream(0, "control_noise", 0).normal(0, 1, len(mean)))[0, 1]) < 0.4


def test_what_a_client_keeps_is_what_was_sent_of_its_change():
    correction = scaffold(clip=0.01)
    method = replace(private(1.0, correction=correction, control=0.01), local=LocalSGD(0.1, correction=correction))
    task = small_task()
    model = task.new_model(0)
    state, _ = play_round(task, method, Workers([model]), 0, begin(task, method, model, 0))
    for k in range(8):
        assert np.linalg.norm(state.rows["correction"].read(k)) == pytest.approx(0.01, rel=1e-4)


def test_with_nobody_drawn_the_control_variate_gets_noise_only():
    ctx = context(t=4, num=10)
    server = {"c": torch.ones(6)}
    new = scaffold(clip=0.5, z=2.0).commit(ctx, server, {"delta": torch.zeros(0, 6)})["c"]
    np.testing.assert_allclose(new, 1 + stream(0, "control_noise", 4).normal(0, 1.0, 6) / 10, rtol=1e-5)
    assert torch.equal(server["c"], torch.ones(6))


def test_without_clip_and_noise_to_speak_of_it_is_scaffold():
    correction = PrivateScaffold(clip=1e3, noise_multiplier=1e-9)
    method = replace(private(1.0, 1e3, 1e-9, correction, 1e3), local=local(correction))
    assert float(run(laboratory(), method, 250, evaluate_every=0).w) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("settings", [{"start": "own"}, {"refresh_every": 2}, {"rebuild": True}])
def test_what_would_be_released_otherwise_than_accounted_is_refused(settings):
    with pytest.raises(ValueError, match="starts at zero and renews"):
        scaffold(**settings)


def test_joint_multipliers():
    assert joint_multiplier(1, 1) == pytest.approx(0.7071, abs=1e-4)
    assert joint_multiplier(3, 4) == pytest.approx(2.4)
    assert joint_multiplier(0.7) == pytest.approx(0.7)


# What does not go together


@dataclass(frozen=True)
class Gossip(Correction):
    """Tells the server something about a client's data."""

    def commit(self, ctx, server, messages):
        return {"mean": messages["delta"].mean(0)}


@dataclass(frozen=True)
class Doubled(Clip):
    """Clips, and makes it twice as long afterwards."""

    def encode(self, ctx, message, row):
        payload, row = super().encode(ctx, message, row)
        return {name: 2 * vector for name, vector in payload.items()}, row


class BySize(FixedMean):
    """Might weight by whatever it likes."""


class Paired(Poisson):
    """Might draw clients in pairs."""


class Talkative(PrivateScaffold):
    """Might send anything."""


REFUSED = {
    "sizes": ("depend on the clients' data", {"aggregate": Noisy(WeightedMean(), C, Z)}),
    "similarity": ("depend on the clients' data", {"aggregate": Noisy(Similarity(0.8), C, Z)}),
    "divides by who came": ("on who else is drawn", {"aggregate": Noisy(UniformMean(), C, Z)}),
    "a kind of fixed mean": ("depend on the clients' data", {"aggregate": Noisy(BySize(Q), C, Z)}),
    "a kind of Poisson draw": ("drawn by itself", {"select": Paired(Q)}),
    "a fixed number": ("drawn by itself", {"select": Uniform(1)}),
    "everybody": ("drawn by itself", {"select": All()}),
    "two rates": ("two rates", {"select": Poisson(0.5)}),
    "no clip": ("nothing bounds what arrives", {"upload": Dense()}),
    "top-k": ("whatever follows it may lengthen", {"upload": Compress(TopK(0.1))}),
    "8 bits": ("whatever follows it may lengthen", {"upload": Compress(Quantize(8))}),
    "error feedback": ("whatever follows it may lengthen", {"upload": ErrorFeedback(TopK(0.1), Quantize(8))}),
    "longer after the clip": ("may lengthen the vector again", {"upload": Doubled(C)}),
    "two clips": ("two clip norms", {"upload": Clip(2 * C)}),
    "skipping": ("min_clients=1", {"select": Poisson(1.0), "aggregate": Noisy(FixedMean(1.0), C, Z), "min_clients": 1}),
    "control variates": ("without noise", {"local": local(Scaffold())}),
    "a kind of private control variates": (
        "that without noise",
        {"local": local(Talkative(clip=0.5, noise_multiplier=1.0)), "upload": Clip(C, 0.5)},
    ),
    "gossip": ("its commit may tell", {"local": local(Gossip())}),
    "two clips for control": ("two clip norms for control", {"local": local(scaffold(0.5)), "upload": Clip(C, 0.7)}),
    "no clip for control": ("two clip norms for control", {"local": local(scaffold(0.5))}),
    "nothing to clip": ("sends no control variates", {"upload": Clip(C, 0.7)}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_combinations_whose_epsilon_would_be_wrong_are_refused(what):
    phrase, parts = REFUSED[what]
    with pytest.raises(ValueError, match="differential privacy does not go with") as raised:
        validate(replace(private(), **parts), laboratory())
    assert phrase in str(raised.value)


@pytest.mark.parametrize("correction", [Scaffold(), Scaffold(rebuild=True)])
def test_a_vector_without_a_clip_norm_is_a_mistake_also_without_noise(correction):
    method = Federation(local(correction), upload=Clip(C))
    with pytest.raises(TypeError, match=r"no clip norm for \['(control|length)'\]"):
        run(laboratory(), method, 1, evaluate_every=0)


def test_what_goes_together_is_let_through():
    validate(private(), laboratory())
    validate(replace(private(), aggregate=FixedMean(Q)), laboratory())  # clipped, without noise
    validate(replace(private(control=0.5), local=local(scaffold(0.5))), laboratory())
    validate(replace(private(), local=local(Canaries(((0,),), C, (True,)))), laboratory())


def test_only_a_mean_that_takes_nobody_may_have_rounds_without_clients():
    with pytest.raises(ValueError, match="cannot combine nothing"):
        validate(Federation(local(), select=Poisson(0.5), min_clients=0), laboratory())
    with pytest.raises(ValueError, match="must lie between 0 and"):
        validate(replace(private(), min_clients=-1), laboratory())


def test_a_correction_that_only_bends_gradients_is_private(tmp_path):
    @dataclass(frozen=True)
    class Halved(Correction):
        def correct(self, grad, theta, carry):
            return grad / 2

    task = Task(models.mlp, small_task().data, Given((8,) * 8))
    validate(private(correction=Halved()), task)
