"""The round loop, proved on the two-client laboratory with corrections that live in the tests."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from two_clients import (
    EMA,
    LR,
    STEPS,
    A,
    B,
    Given,
    Line,
    PersonalSlice,
    Prox,
    Scaffold,
    laboratory,
    linear_loss,
    local,
    play_rounds,
    task_from,
)

from fedlib import federation, models, partition
from fedlib.aggregate import Unbiased, UniformMean, WeightedMean
from fedlib.data import Dataset
from fedlib.executor import Workers
from fedlib.experiment import run
from fedlib.federation import Federation, begin, play_round, validate
from fedlib.local import LocalSGD
from fedlib.selection import All, Uniform
from fedlib.server import ServerSGD
from fedlib.task import Task


def play(task, method, rounds, seed=0):
    """Play rounds by hand: the final state, the lines, and the committed rows of the correction."""
    state, lines = play_rounds(task, method, rounds, seed)
    store = state.rows.get("correction")
    rows = {k: store.read(k) for k in range(task.num_clients)} if store else {}
    return state, lines, rows


def gradients(x):
    return A * (x - B)


# The laboratory: FedAvg's biased fixed point, and the methods that remove the bias.


def test_fedavg_reaches_its_closed_form_biased_fixed_point():
    state, _, _ = play(laboratory(), Federation(local()), 60)
    shrink = (1 - LR * A) ** STEPS
    fixed = np.sum(B * (1 - shrink)) / np.sum(1 - shrink)
    assert fixed == pytest.approx(0.6925023465, abs=1e-9)
    assert state.w.item() == pytest.approx(fixed, abs=1e-6)


def test_one_full_batch_step_is_centralized_gradient_descent():
    task = laboratory(sizes=(3, 1))
    state, _, _ = play(task, Federation(local(steps=1)), 7)
    x = 3.0
    for _ in range(7):
        x -= LR * np.dot([0.75, 0.25], gradients(x))
    assert state.w.item() == pytest.approx(x, abs=1e-6)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("select", [All(), Uniform(1)])
@pytest.mark.parametrize(("sizes", "optimum"), [((1, 1), 0.8), ((3, 1), 0.5714285714), ((4, 1), 0.5)])
def test_scaffold_reaches_the_weighted_optimum(sizes, optimum, select, warm):
    state, _, rows = play(laboratory(sizes), Federation(local(Scaffold(warm)), select=select), 250)
    assert state.w.item() == pytest.approx(optimum, abs=2e-6)
    np.testing.assert_allclose([rows[0][0], rows[1][0]], gradients(optimum), atol=1e-5)
    assert state.server["c"].item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_scaffold_c_is_the_weighted_mean_of_all_rows_after_partial_rounds(rounds, warm):
    method = Federation(local(Scaffold(warm)), select=Uniform(1))
    task = laboratory(sizes=(3, 1))
    state, _, rows = play(task, method, rounds)
    everyone = [0.0 if rows[k] is None else rows[k][0] for k in range(2)]
    assert state.server["c"].item() == pytest.approx(np.dot(task.weights, everyone), abs=1e-6)


def test_scaffold_rows_are_the_gradients_after_one_full_batch_step():
    _, _, rows = play(laboratory(), Federation(local(Scaffold(), steps=1)), 1)
    np.testing.assert_allclose([rows[0][0], rows[1][0]], gradients(3.0), rtol=1e-6)


def test_a_warm_start_writes_each_clients_own_gradient():
    state, _, rows = play(laboratory(sizes=(3, 1)), Federation(local(Scaffold(warm=True))), 0)
    np.testing.assert_allclose([rows[0][0], rows[1][0]], gradients(3.0), rtol=1e-6)
    assert state.server["c"].item() == pytest.approx(np.dot([0.75, 0.25], gradients(3.0)), rel=1e-6)


def test_prox_walks_its_closed_form():
    mu, w = 2.0, 3.0
    state, _, _ = play(task_from([[2.0]], [[2.0]], [1]), Federation(local(Prox(mu))), 1)
    a, b = 4.0, 1.0
    limit = (a * b + mu * w) / (a + mu)
    assert state.w.item() == pytest.approx(limit + (w - limit) * (1 - LR * (a + mu)) ** STEPS, abs=1e-6)


def test_the_raw_ema_control_is_prox_with_mu_beta_over_lr():
    beta = 0.15
    ema, _, _ = play(laboratory(), Federation(local(EMA(beta, raw=True, kept=False))), 30)
    prox, _, _ = play(laboratory(), Federation(local(Prox(beta / LR))), 30)
    assert ema.w.item() == pytest.approx(prox.w.item(), abs=1e-6)
    assert abs(ema.w.item() - 0.6925023465) > 0.005


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_corrected_ema_control_follows_its_formula_over_rounds(rounds):
    g, beta = np.array([2.0, -3.0]), 0.05
    task = task_from([[1.0], [1.0]], g[:, None], [1, 1], linear_loss)
    _, _, rows = play(task, Federation(local(EMA(beta, raw=False, kept=True))), rounds)
    expected = g / 2 * (1 - (1 - 2 * beta) ** (rounds * STEPS))
    np.testing.assert_allclose([rows[0][0], rows[1][0]], expected, rtol=1e-5)


@pytest.mark.parametrize("select", [All(), Uniform(1)])
def test_a_personal_slice_stays_with_its_client(select):
    # Entry 0 is shared and is the laboratory; entry 1 is personal: client i wants d_i there.
    d = np.array([-1.0, 5.0])
    root = np.sqrt(A)
    task = task_from(np.stack([root, np.ones(2)], 1), np.stack([root * B, d], 1), [1, 1])
    method = Federation(local(PersonalSlice(1, 2)), select=select)
    state, _, rows = play(task, method, 150)
    assert state.w[1].item() == 3.0
    np.testing.assert_allclose([rows[0][0], rows[1][0]], d, atol=1e-5)
    if select == All():
        assert state.w[0].item() == pytest.approx(0.6925023465, abs=1e-6)


# Who writes rows, and when.


def test_only_clients_whose_message_was_used_get_a_row():
    state, lines, rows = play(laboratory(), Federation(local(Scaffold()), select=Uniform(1)), 1)
    (drawn,) = lines[0]["clients"]
    assert rows[drawn] is not None and rows[1 - drawn] is None
    assert state.rows["correction"].num_rows == 1


def test_a_dropped_client_keeps_its_row_and_leaves_the_server_state_alone():
    # Client 1's gradient overflows float32: its delta is not finite.
    task = task_from([[1.0], [1e25]], [[0.0], [1.0]], [1, 1])
    state, lines, rows = play(task, Federation(local(Scaffold())), 2)
    assert [line["clients"] for line in lines] == [[0], [0]]
    assert set(lines[0]["dropped"]) == {"1"} and "not finite" in lines[0]["dropped"]["1"]
    assert rows[1] is None
    assert state.server["c"].item() == pytest.approx(0.5 * rows[0][0])
    assert lines[1]["weights"] == [1.0]
    assert torch.isfinite(state.w).all()


def test_a_lossy_upload_keeps_both_sides_equal():
    @dataclasses.dataclass(frozen=True)
    class Coarse(type(Federation(local()).upload)):
        def encode(self, ctx, message, row):
            return {name: torch.round(8 * vector) / 8 for name, vector in message.items()}, row

    task = laboratory(sizes=(3, 1))
    state, _, rows = play(task, Federation(local(Scaffold()), upload=Coarse()), 5)
    assert state.server["c"].item() == pytest.approx(np.dot(task.weights, [rows[0][0], rows[1][0]]), abs=1e-6)
    assert (rows[0] * 8) % 1 == 0  # what was kept is what was sent, not what was computed


def test_error_feedback_rows_belong_to_their_client():
    @dataclasses.dataclass(frozen=True)
    class RoundWithFeedback(type(Federation(local()).upload)):
        def row_size(self, ctx):
            return ctx.layout.size

        def encode(self, ctx, message, row):
            wanted = message["delta"] + (0 if row is None else row)
            sent = torch.round(2 * wanted) / 2
            return {"delta": sent}, wanted - sent

    task, method = laboratory(), Federation(local(), upload=RoundWithFeedback(), select=Uniform(1))
    model, sent, produced = task.new_model(0), {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}
    state = begin(task, method, model, 0)
    for _ in range(12):
        before = state.w.clone()
        state, line = play_round(task, method, Workers([model]), 0, state)
        (k,) = line["clients"]
        sent[k] += (state.w - before).item()
        y = before.item()
        for _ in range(STEPS):
            y -= LR * A[k] * (y - B[k])
        produced[k] += y - before.item()
    for k in (0, 1):
        assert sent[k] + state.rows["upload"].read(k)[0] == pytest.approx(produced[k], abs=1e-5)


# FAULTS 6, 9, 10, 25: broadcast, drops, renormalization, too few clients.


def test_identical_clients_give_identical_deltas_and_w_is_not_touched():
    task = task_from(np.ones((3, 1)), np.full((3, 1), 5.0), [2, 2, 2])
    model, method, seen = task.new_model(0), Federation(local()), []

    @dataclasses.dataclass(frozen=True)
    class Spy(WeightedMean):
        def combine(self, ctx, deltas):
            seen.append(deltas.clone())
            return super().combine(ctx, deltas)

    state = begin(task, method, model, 0)
    before = state.w.clone()
    play_round(task, dataclasses.replace(method, aggregate=Spy()), Workers([model]), 0, state)
    assert torch.equal(seen[0], seen[0][:1].expand(3, -1)) and seen[0].abs().sum() > 0
    assert torch.equal(state.w, before)


def blobs(n=120, num_clients=6, **kwargs):
    rng = np.random.default_rng(1)
    y = torch.from_numpy(np.arange(n) % 3)
    x = torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)) + y[:, None]
    recipe = partition.dirichlet(alpha=0.5, num_clients=num_clients, **kwargs)
    return Task(models.mlp, Dataset("blobs", x, y, x[:30], y[:30], 3), recipe)


def test_the_order_of_the_clients_does_not_matter(monkeypatch):
    task, method = blobs(), Federation(LocalSGD(lr=0.1, epochs=2, batch_size=8), select=Uniform(4))
    plain = run(task, method, 4)

    def backwards(self, work, jobs, costs):
        return [work(self.models[0], *job) for job in reversed(jobs)][::-1]

    monkeypatch.setattr(Workers, "map", backwards)
    assert run(task, method, 4).sha256 == plain.sha256


def test_equal_runs_have_equal_bits_and_other_seeds_do_not():
    task, method = blobs(), Federation(LocalSGD(lr=0.1), select=Uniform(3))
    first = run(task, method, 3)
    assert run(task, method, 3).rounds == first.rounds
    assert run(task, method, 3).sha256 == first.sha256
    assert run(task, method, 3, seed=1).sha256 != first.sha256


def test_an_empty_client_is_dropped_by_name_and_the_rest_renormalized():
    task = task_from([[1.0], [1.0], [2.0]], [[5.0], [5.0], [2.0]], [2, 0, 1])
    _, lines, _ = play(task, Federation(local()), 1)
    assert lines[0]["clients"] == [0, 2] and lines[0]["dropped"] == {"1": "no samples"}
    assert lines[0]["weights"] == pytest.approx([2 / 3, 1 / 3])


def test_a_round_without_usable_messages_is_skipped_and_the_model_stays():
    task = task_from([[1.0], [1.0]], [[5.0], [5.0]], [0, 3])
    method = Federation(local(), select=Uniform(1))
    model = task.new_model(0)
    state = begin(task, method, model, 0)
    outcomes = set()
    for _ in range(12):
        before = state.w
        state, line = play_round(task, method, Workers([model]), 0, state)
        outcomes.add("skipped" in line)
        if "skipped" in line:
            assert torch.equal(before, state.w) and line["dropped"] == {"0": "no samples"}
            assert "0 usable messages" in line["skipped"] and line["bytes_up"] == 0
    assert outcomes == {True, False} and state.t == 12


def test_too_few_messages_skip_the_round_without_writing_rows():
    task = task_from([[1.0], [1e25]], [[0.0], [1.0]], [1, 1])
    state, lines, rows = play(task, Federation(local(Scaffold()), min_clients=2), 2)
    assert all("skipped" in line for line in lines)
    assert state.w.item() == 3.0 and rows == {0: None, 1: None} and state.server["c"].item() == 0


def test_a_step_that_overflows_is_skipped():
    state, lines, _ = play(laboratory(), Federation(local(), step=ServerSGD(lr=3e38)), 1)
    assert state.w.item() == 3.0 and "finite" in lines[0]["skipped"]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_equal_deltas_give_that_delta_for_every_subset(num):
    task = task_from(np.ones((3, 1)), np.full((3, 1), 5.0), [5, 2, 1])
    state, _, _ = play(task, Federation(local(), select=Uniform(num)), 1)
    assert state.w.item() == pytest.approx(5 + (3 - 5) * (1 - LR) ** STEPS, abs=1e-6)


def test_the_unbiased_estimator_is_unbiased_and_the_renormalized_mean_is_not():
    task = laboratory(sizes=(4, 1))
    model, updates = task.new_model(0), {}
    for aggregate in (Unbiased(), WeightedMean()):
        method = Federation(local(), aggregate=aggregate, select=Uniform(1))
        state = begin(task, method, model, 0)
        by_client = {}
        for t in range(20):
            after, line = play_round(task, method, Workers([model]), 0, dataclasses.replace(state, t=t))
            by_client[line["clients"][0]] = (after.w - state.w).item()
        updates[type(aggregate)] = (by_client[0] + by_client[1]) / 2
    full = play(task, Federation(local()), 1)[0].w.item() - 3.0
    assert updates[Unbiased] == pytest.approx(full, abs=1e-6)
    assert abs(updates[WeightedMean] - full) > 0.05


def test_uniform_weights_solve_another_problem():
    task = laboratory(sizes=(4, 1))
    weighted = play(task, Federation(local(steps=1)), 300)[0].w.item()
    uniform = play(task, Federation(local(steps=1), aggregate=UniformMean()), 300)[0].w.item()
    assert weighted == pytest.approx(0.5, abs=1e-6) and uniform == pytest.approx(0.8, abs=1e-6)


# What a round reports.


def test_bytes_steps_and_lr_are_counted():
    task = blobs()
    _, lines, _ = play(task, Federation(LocalSGD(lr=0.05, epochs=2, batch_size=8), select=Uniform(4)), 1)
    line, d = lines[0], task.new_model(0).layout.size
    assert line["bytes_down"] == 4 * 4 * d and line["bytes_up"] == 4 * 4 * d
    assert line["steps"] == [2 * -(-task.sizes[k] // 8) for k in line["clients"]]
    assert line["lr"] == [0.05]


def test_server_state_and_second_vectors_cost_bytes():
    _, lines, _ = play(laboratory(), Federation(local(Scaffold())), 1)
    assert lines[0]["bytes_down"] == 2 * (4 + 4) and lines[0]["bytes_up"] == 2 * (4 + 4)


def test_memory_does_not_grow_with_rounds_or_registered_clients():
    import gc

    def tensors_alive(num_clients, rounds):
        sizes = [1] * 4 + [0] * (num_clients - 4)
        task = task_from(np.ones((num_clients, 1)), np.ones((num_clients, 1)), sizes)
        kept = play(task, Federation(local(Scaffold())), rounds)[0]
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects()), kept.rows[
            "correction"
        ].num_rows

    assert tensors_alive(4, 2) == tensors_alive(4, 12) == tensors_alive(400, 2)


# validate: what is refused, and that the message names both sides.


def test_local_momentum_with_control_variates_is_refused():
    method = Federation(LocalSGD(lr=0.1, momentum=0.9, correction=Scaffold()))
    with pytest.raises(ValueError, match=r"momentum=0.9.*Scaffold"):
        run(laboratory(), method, 1)
    validate(Federation(LocalSGD(lr=0.1, momentum=0.9)), laboratory())


def test_more_clients_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"Uniform\(num=3\) draws 3 clients.*only 2"):
        validate(Federation(local(), select=Uniform(3)), laboratory())


@pytest.mark.parametrize("least", [0, 2])
def test_an_impossible_minimum_is_refused_instead_of_waited_for(least):
    with pytest.raises(ValueError, match=f"min_clients={least}"):
        validate(Federation(local(), select=Uniform(1), min_clients=least), laboratory())


def test_an_output_size_from_local_labels_is_refused_naming_both():
    def two_outputs(input_shape, num_classes):
        return nn.Linear(4, 2)

    task = dataclasses.replace(blobs(), model=two_outputs)
    with pytest.raises(ValueError, match=r"2 outputs.*num_classes=3"):
        validate(Federation(LocalSGD(lr=0.1)), task)


def test_a_task_without_samples_is_refused():
    with pytest.raises(ValueError, match="no client has a single sample"):
        Task(Line, laboratory().data, Given((0, 0)))
