"""Local training against a plain loop with torch.optim.SGD, and how its batches are made."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from two_clients import random_labels

from fedlib import models, partition
from fedlib.correction import Correction
from fedlib.local import LocalSGD, full_gradient, local_sgd, make_batches
from fedlib.rng import stream
from fedlib.task import Task


@pytest.fixture(scope="module")
def task():
    return random_labels()


def train(task, settings, client=0, start=None, model=None):
    model = model or task.new_model(0)
    start = model.theta.clone() if start is None else start
    batches = make_batches(task.clients[client], settings, stream(0, "batches", 0, client))
    return local_sgd(settings, task, model, start, batches, {}), batches, start


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_local_sgd_is_torch_sgd_on_the_same_batches(task, momentum):
    settings = LocalSGD(lr=0.1, epochs=3, batch_size=6, momentum=momentum)
    result, batches, start = train(task, settings)
    plain = copy.deepcopy(task.new_model(0).module)
    optimizer, losses = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=momentum), []
    for batch in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(task.data.train_x[batch]), task.data.train_y[batch])
        loss.backward()
        optimizer.step()
        losses += [loss.item()] * len(batch)
    end = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert torch.equal(result.delta, end - start)
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert (result.steps, result.samples, result.lr) == (3 * 4, 60, 0.1)


def test_nothing_survives_from_one_client_to_the_next(task):
    settings, model = LocalSGD(lr=0.1, epochs=2, momentum=0.9, batch_size=5), task.new_model(0)
    start = model.theta.clone()
    first, _, _ = train(task, settings, client=1, start=start, model=model)
    train(task, settings, client=2, start=start, model=model)
    again, _, _ = train(task, settings, client=1, start=start, model=model)
    assert torch.equal(first.delta, again.delta)


def test_the_start_is_not_changed_and_shares_no_storage(task):
    start = task.new_model(0).theta.clone()
    kept = start.clone()
    result, _, _ = train(task, LocalSGD(lr=0.1), start=start)
    assert torch.equal(start, kept)
    result.delta.zero_()
    assert torch.equal(start, kept)


def test_a_correction_sees_live_vectors_and_decides_the_step(task):
    class Backwards(Correction):
        def correct(self, grad, theta, carry):
            carry.setdefault("thetas", []).append(theta.clone())
            return -grad

    forward, batches, start = train(task, LocalSGD(lr=0.1, batch_size=None))
    carry = {}
    settings = LocalSGD(lr=0.1, batch_size=None, correction=Backwards())
    backward = local_sgd(settings, task, task.new_model(0), start, batches, carry)
    torch.testing.assert_close(backward.delta, -forward.delta, atol=1e-7, rtol=1e-4)
    assert torch.equal(carry["thetas"][0], start)


def test_bf16_is_close_but_not_equal(task):
    exact, _, _ = train(task, LocalSGD(lr=0.1, epochs=2))
    rough, _, _ = train(task, LocalSGD(lr=0.1, epochs=2, precision="bf16"))
    error = (exact.delta - rough.delta).norm() / exact.delta.norm()
    assert 0 < error < 0.1 and rough.delta.dtype == torch.float32


# Batches


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 40), batch_size=st.one_of(st.none(), st.integers(1, 50)), epochs=st.integers(1, 3))
def test_every_epoch_uses_every_sample_once_and_small_batches_too(n, batch_size, epochs):
    indices = np.arange(100, 100 + n)
    local = LocalSGD(lr=1, epochs=epochs, batch_size=batch_size)
    batches = make_batches(indices, local, np.random.default_rng(0))
    a_pass = -(-n // (batch_size or n))
    assert len(batches) == epochs * a_pass >= epochs
    for epoch in range(epochs):
        seen = torch.cat(batches[epoch * a_pass : (epoch + 1) * a_pass])
        assert seen.sort().values.tolist() == indices.tolist()


def test_epochs_are_shuffled_differently():
    batches = make_batches(np.arange(50), LocalSGD(lr=1, epochs=2, batch_size=None), np.random.default_rng(0))
    assert batches[0].tolist() != batches[1].tolist() != list(range(50))


def test_a_last_batch_of_one_sample_works(task):
    result, batches, _ = train(task, LocalSGD(lr=0.1, batch_size=19))
    assert [len(batch) for batch in batches] == [19, 1] and torch.isfinite(result.delta).all()


def test_rounds_and_clients_draw_different_batches():
    orders = {
        tuple(torch.cat(make_batches(np.arange(30), LocalSGD(lr=1), stream(seed, "batches", t, k))).tolist())
        for seed in range(3) for t in range(3) for k in range(3)
    }  # fmt: skip
    assert len(orders) == 27  # with seed + client as a seed, only some of these would differ


# The full gradient


def test_the_weighted_full_gradients_are_the_pooled_gradient(task):
    model, w = task.new_model(1), task.new_model(0).theta.clone()
    mean = sum(task.weights[k] * full_gradient(task, model, k, w) for k in range(3))
    model.load(w)
    pooled = model.gradient(F.cross_entropy(model(task.data.train_x), task.data.train_y))
    torch.testing.assert_close(mean, pooled, atol=1e-7, rtol=1e-5)


def test_chunks_do_not_change_the_full_gradient(task):
    model, w = task.new_model(1), task.new_model(0).theta.clone()
    whole = full_gradient(task, model, 0, w)
    torch.testing.assert_close(full_gradient(task, model, 0, w, chunk=7), whole, atol=1e-7, rtol=1e-5)


def test_an_empty_client_has_no_gradient(task):
    task = Task(models.mlp, task.data, partition.iid(num_clients=61, min_size=0))
    empty = int(np.argmin(task.sizes))
    with pytest.raises(ValueError, match=f"client {empty} has no samples"):
        full_gradient(task, task.new_model(0), empty, task.new_model(0).theta)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": 1.5}, "epochs must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"momentum": 1}, "momentum must lie"),
        ({"precision": "float16"}, "precision must be one of float32, bf16, fp16"),
    ],
)
def test_useless_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        LocalSGD(**{"lr": 0.1, **wrong})


def test_a_class_instead_of_a_correction_is_refused():
    with pytest.raises(TypeError, match="brackets"):
        LocalSGD(lr=0.1, correction=Correction)
