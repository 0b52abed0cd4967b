"""The small parts: selection, upload, server step, executor, evaluation, context."""

import dataclasses

import numpy as np
import pytest
import torch
from two_clients import laboratory

from fedlib import models, partition
from fedlib.context import Context
from fedlib.data import Dataset
from fedlib.evaluate import evaluate, outputs
from fedlib.executor import Workers
from fedlib.flat import Layout, Segment
from fedlib.rng import stream
from fedlib.selection import All, Uniform
from fedlib.server import ServerSGD
from fedlib.task import Task
from fedlib.upload import Dense, num_bytes


def test_uniform_draws_without_replacement_sorted_and_evenly():
    counts = np.zeros(10)
    for t in range(3000):
        jobs = Uniform(3).draw(t, 10, stream(0, "select", t))
        drawn = [client for client, version in jobs if version == t]
        assert len(set(drawn)) == 3 and drawn == sorted(drawn)
        counts[drawn] += 1
    assert np.abs(counts - 900).max() < 5 * np.sqrt(3000 * 0.3 * 0.7)


def test_all_draws_everyone():
    assert All().draw(4, 3, None) == [(0, 4), (1, 4), (2, 4)]


@pytest.mark.parametrize("num", [0, 1.5])
def test_drawing_nobody_is_refused(num):
    with pytest.raises(ValueError, match=f"at least 1, got {num}"):
        Uniform(num)


def test_dense_uploads_arrive_unchanged_and_count_their_bytes():
    messages = [{"delta": torch.randn(5), "control": torch.randn(2)} for _ in range(3)]
    payloads = [Dense().encode(None, message, None)[0] for message in messages]
    layout = Layout([Segment("w", 0, 5, (5,), False)])
    ctx = Context(0, 0, np.arange(3), np.arange(3), np.ones(3) / 3, layout, None)
    arrived = Dense().decode(ctx, payloads)
    for k, message in enumerate(messages):
        assert torch.equal(arrived["delta"][k], message["delta"])
        assert torch.equal(arrived["control"][k], message["control"])
    assert (
        num_bytes(payloads[0])
        == len(b"".join(array.numpy().tobytes() for array in payloads[0].values()))
        == 28
    )


def test_one_server_step_by_hand():
    w, update = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 2.0])
    new, _ = ServerSGD().step({}, w, update)
    assert new.tolist() == [1.5, 0.0]
    new, _ = ServerSGD(lr=0.5).step({}, w, update)
    assert new.tolist() == [1.25, -1.0] and w.tolist() == [1.0, -2.0]


def test_a_context_gives_every_client_and_purpose_its_own_stream():
    ctx = Context(3, 7, np.arange(2), np.arange(2), np.ones(2) / 2, None, None)
    draws = {
        (where, purpose): dataclasses.replace(ctx, client=where).stream(purpose).integers(2**40)
        for where in (None, 0, 1) for purpose in ("batches", "noise")
    }  # fmt: skip
    assert len(set(draws.values())) == 6
    assert draws[1, "noise"] == stream(7, "noise", 3, 1).integers(2**40)
    assert ctx.num_clients == 2


def constant_class(input_shape, num_classes):
    """A network that answers with the class in the sample's first entry."""
    network = torch.nn.Linear(input_shape[0], num_classes, bias=False)
    torch.nn.init.eye_(network.weight)
    return network


def test_evaluation_by_hand_with_a_class_nobody_tests():
    x = torch.eye(3)[[0, 0, 1, 1, 2]]
    y = torch.tensor([0, 0, 1, 0, 1])
    task = Task(constant_class, Dataset("hand", x, y, x, y, 3), partition.iid(num_clients=1))
    scores = evaluate(task, task.new_model(0), task.new_model(0).theta)
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["class_accuracy"] == [pytest.approx(2 / 3), pytest.approx(1 / 2), None]
    hit, miss = -np.log(np.e / (np.e + 2)), -np.log(1 / (np.e + 2))
    assert scores["loss"] == pytest.approx((3 * hit + 2 * miss) / 5)


def test_evaluation_of_a_regression_has_a_loss_only():
    task = laboratory()
    assert evaluate(task, task.new_model(0), torch.tensor([2.0])) == {"loss": pytest.approx(2.0)}
    assert evaluate(task, task.new_model(0), torch.tensor([3e38]))["loss"] is None


def test_outputs_do_not_depend_on_the_chunks():
    model = models.build(models.mlp, (4,), 3, seed=0)
    x, w = torch.randn(23, 4, generator=torch.Generator().manual_seed(0)), model.theta.clone()
    whole = outputs(model, w, x)
    torch.testing.assert_close(outputs(model, w, x, chunk=5), whole)
    two = Workers([model, models.build(models.mlp, (4,), 3, seed=1)])
    assert torch.equal(outputs(model, w, x, chunk=5, workers=two), outputs(model, w, x, chunk=5))


def test_task_sizes_and_weights():
    task = laboratory(sizes=(3, 1))
    assert task.num_clients == 2 and task.sizes.tolist() == [3, 1] and task.weights.tolist() == [0.75, 0.25]
