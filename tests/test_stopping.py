"""Early stopping on the client against a plain loop that looks after each epoch, and balanced batches by counting."""

import copy
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from two_clients import random_labels

from fedlib import models, partition
from fedlib.control import Scaffold
from fedlib.data import Dataset
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD, balanced, make_batches
from fedlib.rng import stream
from fedlib.stopping import EarlyStopping
from fedlib.task import Task


@pytest.fixture(scope="module")
def task():
    """Labels are random, so the loss on samples that were set aside rises as soon as a client knows its own by heart."""
    return random_labels()


@dataclass(frozen=True)
class Only:
    """Select one client."""

    client: int

    def expected_size(self, num_clients):
        return 1

    def draw(self, t, num_clients, rng):
        return [(self.client, t)]


def eight_and_one(labels, features):
    return [np.arange(8), np.array([8])]


def thirds(labels, features):
    return np.split(np.arange(60), 3)


def squared(outputs, targets):
    return ((outputs[:, 0] - targets) ** 2).mean()


def steps_of(task, rounds=1, **local):
    history = run(task, Federation(LocalSGD(**local)), rounds, seed=0)
    return [line["steps"] for line in history.rounds], history


@pytest.mark.parametrize("patience", [1, 3])
@pytest.mark.parametrize("batch_size", [6, None])
def test_it_is_a_plain_loop_that_stops_by_itself(task, patience, batch_size):
    stop = EarlyStopping(share=0.25, patience=patience)
    local = LocalSGD(lr=0.5, epochs=12, batch_size=batch_size, stop=stop)
    history = run(task, Federation(local), 1, seed=0)
    deltas, counted = [], []
    for k in range(3):
        own, aside = stop.split(task.clients[k], 0, k)
        batches = make_batches(own, local, stream(0, "batches", 0, k))
        net = copy.deepcopy(task.new_model(0).module)
        before = torch.cat([p.detach().flatten().clone() for p in net.parameters()])
        optimizer, losses, steps = torch.optim.SGD(net.parameters(), lr=0.5), [], 0
        for epoch in np.array_split(np.arange(len(batches)), 12):
            for h in epoch:
                optimizer.zero_grad()
                F.cross_entropy(net(task.data.train_x[batches[h]]), task.data.train_y[batches[h]]).backward()
                optimizer.step()
                steps += 1
            with torch.no_grad():
                losses.append(F.cross_entropy(net(task.data.train_x[aside]), task.data.train_y[aside]).item())
            if np.argmin(losses) + patience < len(losses):
                break
        deltas.append(torch.cat([p.detach().flatten() for p in net.parameters()]) - before)
        counted.append(steps)
    line = history.rounds[0]
    assert line["steps"] == counted and len(set(counted)) > 1
    expected = task.new_model(0).theta + sum(p * d for p, d in zip(task.weights, deltas))
    torch.testing.assert_close(history.w, expected, atol=1e-6, rtol=1e-5)


def test_as_long_as_the_loss_falls_nobody_stops(task):
    x = task.data.train_x
    easy = Dataset("easy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long(), 4)
    easy = Task(models.mlp, easy, partition.iid(num_clients=3))
    steps, _ = steps_of(easy, lr=0.05, epochs=4, batch_size=None, stop=EarlyStopping())
    assert steps == [[4, 4, 4]]


def test_a_loss_that_is_no_number_stops(task):
    stop = EarlyStopping(patience=2)
    batches = [torch.tensor([k]) for k in range(10)]
    model = task.new_model(0)
    model.theta.fill_(float("nan"))
    taken = list(stop.watch(batches, 5, task, model, np.arange(4)))
    assert len(taken) == 2 * 2


@given(n=st.integers(1, 60), share=st.floats(0.01, 0.99), seed=st.integers(0, 50), client=st.integers(0, 9))
def test_what_is_set_aside_is_never_trained_on_and_always_the_same(n, share, seed, client):
    stop, indices = EarlyStopping(share), np.arange(100, 100 + n)
    own, aside = stop.split(indices, seed, client)
    assert sorted([*own, *aside]) == indices.tolist()
    assert len(own) >= 1 and (len(aside) >= 1 or n == 1)
    assert abs(len(aside) - share * n) <= 1 or len(own) == 1 or len(aside) == 1
    again = stop.split(indices, seed, client)
    assert np.array_equal(own, again[0]) and np.array_equal(aside, again[1])


def test_the_round_trains_on_what_was_not_set_aside(task):
    """Labels set aside are made impossible: training must not notice, except through when it stops."""
    stop = EarlyStopping(patience=100)
    changed = task.data.train_y.clone()
    for k in range(3):
        _, aside = stop.split(task.clients[k], 0, k)
        changed[aside] = (changed[aside] + 1) % 4
    other = Dataset("random", task.data.train_x, changed, task.data.test_x, task.data.test_y, 4)
    other = Task(models.mlp, other, partition.iid(num_clients=3))
    assert all(np.array_equal(a, b) for a, b in zip(task.clients, other.clients))
    method = Federation(LocalSGD(lr=0.1, epochs=2, stop=stop))
    assert torch.equal(run(task, method, 3, seed=0).w, run(other, method, 3, seed=0).w)


def test_clients_and_seeds_set_aside_different_samples():
    stop, indices = EarlyStopping(0.3), np.arange(40)
    asides = {tuple(sorted(stop.split(indices, seed, k)[1])) for seed in range(2) for k in range(3)}
    assert len(asides) == 6


def test_a_client_with_one_sample_trains_all_its_epochs():
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(9, 8)).astype(np.float32)), torch.arange(9) % 4
    task = Task(models.mlp, Dataset("tiny", x, y, x, y, 4), eight_and_one)
    steps, _ = steps_of(task, lr=0.5, epochs=40, batch_size=None, stop=EarlyStopping(0.5))
    assert steps[0][1] == 40 > steps[0][0]


@pytest.mark.parametrize("workers", [1, 2])
def test_it_goes_with_control_variates_and_any_number_of_workers(task, workers):
    """SCAFFOLD divides a delta by its steps: with those of the plan instead of those taken, its c would be too small."""
    local = LocalSGD(lr=0.3, epochs=9, batch_size=None, stop=EarlyStopping(), correction=Scaffold())
    history = run(task, Federation(local), 1, seed=1, workers=workers)
    (steps,) = (line["steps"] for line in history.rounds)
    assert min(steps) < 9
    plain = LocalSGD(lr=0.3, epochs=9, batch_size=None, stop=EarlyStopping())
    rows = [run(task, Federation(plain, select=Only(k)), 1, seed=1).w - task.new_model(1).theta for k in range(3)]
    c = -sum(row / (0.3 * step) for row, step in zip(rows, steps)) / 3
    assert history.rounds[0]["c_norm"] == pytest.approx(float(c.norm()), rel=1e-4)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_shares_that_are_none(share):
    with pytest.raises(ValueError, match="share"):
        EarlyStopping(share)


@pytest.mark.parametrize("patience, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)])
def test_patience_is_a_number_of_epochs(patience, error):
    with pytest.raises(error, match="patience"):
        EarlyStopping(patience=patience)


def test_the_class_is_not_its_instance():
    with pytest.raises(TypeError, match="brackets"):
        LocalSGD(lr=0.1, stop=EarlyStopping)


def test_batched_training_cannot_look_between_epochs(task):
    with pytest.raises(ValueError, match="after each epoch"):
        run(task, Federation(LocalSGD(lr=0.1, stop=EarlyStopping(), batched=True)), 1)


# Balanced batches


@settings(max_examples=100, deadline=None)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=50), seed=st.integers(0, 20))
def test_each_class_and_each_sample_within_it_is_used_equally_often(labels, seed):
    labels, indices = np.array(labels), np.arange(7, 7 + len(labels))
    drawn = balanced(indices, labels, np.random.default_rng(seed))
    assert len(drawn) == len(labels)
    by_class = Counter(labels[drawn - 7].tolist())
    sizes = [by_class[label] for label in np.unique(labels)]
    assert max(sizes) - min(sizes) <= 1
    uses = Counter(drawn.tolist())
    for label in np.unique(labels):
        often = [uses[i] for i in indices[labels == label]]
        assert max(often) - min(often) <= 1


def test_no_class_or_sample_is_preferred_in_the_long_run():
    labels, indices = np.array([0] * 7 + [1] * 2 + [2]), np.arange(10)
    rng = np.random.default_rng(0)
    uses = np.mean([np.bincount(balanced(indices, labels, rng), minlength=10) for _ in range(6000)], axis=0)
    expected = np.array([10 / 3 / 7] * 7 + [10 / 3 / 2] * 2 + [10 / 3])
    assert np.abs(uses - expected).max() < 0.05


def test_balancing_does_not_change_how_long_a_client_trains(task):
    plain, _ = steps_of(task, lr=0.1, epochs=2, batch_size=6)
    even, history = steps_of(task, lr=0.1, epochs=2, batch_size=6, balance=True)
    assert plain == even and torch.isfinite(history.w).all()


def test_balanced_rounds_are_the_same_batched(task):
    one = run(task, Federation(LocalSGD(lr=0.1, epochs=2, batch_size=6, balance=True)), 2, seed=0)
    rows = run(task, Federation(LocalSGD(lr=0.1, epochs=2, batch_size=6, balance=True, batched=True)), 2, seed=0)
    torch.testing.assert_close(one.w, rows.w, atol=1e-6, rtol=1e-5)


def test_numbers_cannot_be_balanced(task):
    data = Dataset("numbers", task.data.train_x, task.data.train_x[:, 0], task.data.test_x, task.data.test_x[:, 0], 1)
    numbers = Task(models.mlp, data, thirds, loss=squared)
    with pytest.raises(ValueError, match="classes to balance"):
        run(numbers, Federation(LocalSGD(lr=0.1, balance=True)), 1)


def test_a_round_uses_the_labels_of_the_clients_own_samples():
    """One sample of class 0 and three of class 1: a step follows the mean over the first, taken twice, and two of the rest."""
    rng = np.random.default_rng(1)
    x, y = torch.from_numpy(rng.normal(size=(4, 8)).astype(np.float32)), torch.tensor([1, 1, 0, 1])
    task = Task(models.mlp, Dataset("skewed", x, y, x, y, 4), partition.iid(num_clients=1))
    delta = run(task, Federation(LocalSGD(lr=0.1, batch_size=None, balance=True)), 1, seed=0).w - task.new_model(0).theta
    distances = []
    for two in ([0, 1], [0, 3], [1, 3]):
        net, batch = task.new_model(0).module, [2, 2, *two]
        gradient = torch.autograd.grad(F.cross_entropy(net(x[batch]), y[batch]), list(net.parameters()))
        distances.append(float((delta + 0.1 * torch.cat([g.flatten() for g in gradient])).norm()))
    assert sorted(distances)[0] < 1e-6 < 1e-3 < sorted(distances)[1]


def test_balanced_batches_are_mixed():
    labels = np.repeat([0, 1], 20)
    batches = make_batches(np.arange(40), LocalSGD(lr=1, batch_size=10, balance=True), np.random.default_rng(0), labels=labels)
    assert all(0 < labels[batch].sum() < 10 for batch in batches)


@pytest.mark.parametrize("patience, epochs", [(1, 2), (2, 7), (3, 8)])
def test_a_new_lowest_loss_starts_the_waiting_anew(patience, epochs):
    losses = iter([3.0, 4.0, 2.0, 3.0, 1.0, 2.0, 1.5, 1.0])

    class Scripted:
        class data:  # noqa: N801
            train_x = train_y = torch.zeros(1, 1)

        @staticmethod
        def loss(outputs, targets):
            return next(losses)

    class Idle:
        theta = torch.zeros(1)
        load = staticmethod(lambda w: None)

        def __call__(self, x):
            return x

    taken = EarlyStopping(patience=patience).watch(list(range(16)), 8, Scripted, Idle(), np.array([0]))
    assert len(list(taken)) == 2 * epochs
