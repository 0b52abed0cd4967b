"""Batched local training equals the serial one, client by client, or is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from fedlib import batched, local, models, partition
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.ema import EMAControl, MatchedRate
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD, local_sgd, make_batches
from fedlib.prox import FedProx
from fedlib.rng import stream
from fedlib.selection import Uniform
from fedlib.task import Task


def task(model=models.mlp, alpha=0.3, num_clients=9, n=300, **kwargs):
    rng = np.random.default_rng(1)
    y = torch.from_numpy(np.arange(n) % 3)
    x = torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)) + y[:, None]
    return Task(model, Dataset("blobs", x, y, x[:30], y[:30], 3), partition.dirichlet(alpha=alpha, num_clients=num_clients, **kwargs))


def deep(input_shape, num_classes):
    """Four layers, one of them without a bias."""
    layers = [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5, bias=False), nn.GELU(), nn.Linear(5, num_classes)]
    return nn.Sequential(*layers)


RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "full batches": {"batch_size": None},
    "prox": {"correction": FedProx(0.5)},
    "SCAFFOLD": {"correction": Scaffold(start="own")},
    "SCAFFOLD, option 1": {"correction": Scaffold(option=1)},
    "EMA": {"correction": EMAControl(0.1, kept=True)},
    "EMA now and then": {"correction": EMAControl(0.1, reading="raw", refresh_every=3)},
    "global EMA": {"correction": EMAControl(0.1, reading="global")},
    "matched rate": {"correction": MatchedRate(0.1)},
}


@pytest.mark.parametrize("model", [models.mlp, models.logistic, deep])
@pytest.mark.parametrize("rule", RULES)
def test_a_batched_run_equals_the_serial_one(rule, model):
    settings = LocalSGD(**{"lr": 0.1, "epochs": 3, "batch_size": 8, **RULES[rule]})
    plain = task(model)
    assert len(set(plain.sizes)) > 5  # clients differ in their sizes and steps
    serial, together = (
        run(plain, Federation(dataclasses.replace(settings, batched=value), select=Uniform(6)), 4)
        for value in (False, True)
    )
    distance = (serial.w - plain.new_model(0).theta).norm()
    assert (serial.w - together.w).norm() < 1e-6 * distance + 1e-6
    for a, b in zip(serial.rounds, together.rounds):
        assert a["clients"] == b["clients"] and a["steps"] == b["steps"] and a["weights"] == b["weights"]
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-5)


def test_one_round_agrees_row_by_row_within_a_millionth():
    plain, settings = task(alpha=0.3), LocalSGD(lr=0.1, epochs=2, batch_size=8, correction=EMAControl(0.1, kept=True))
    model, w = plain.new_model(1), plain.new_model(0).theta.clone()
    starts = [w + 0.01 * k for k in range(9)]
    batches = [make_batches(plain.clients[k], settings, stream(0, "batches", 0, k)) for k in range(9)]
    carries, others = ([{"c": torch.full_like(w, 0.01 * k), "step": 0} for k in range(9)] for _ in range(2))
    rows = batched.local_sgd_rows(settings, plain, model, starts, batches, carries)
    for k in range(9):
        alone = local_sgd(settings, plain, model, starts[k], batches[k], others[k])
        assert (rows[k].delta - alone.delta).norm() <= 1e-6 * alone.delta.norm()
        assert (rows[k].steps, rows[k].samples, rows[k].lr) == (alone.steps, alone.samples, alone.lr)
        assert rows[k].loss == pytest.approx(alone.loss, rel=1e-6)
        torch.testing.assert_close(carries[k]["c"], others[k]["c"], rtol=1e-5, atol=1e-7)


def test_a_counter_in_the_carry_stops_with_its_client():
    class Counts(Correction):
        rowwise = True

        def correct(self, grad, theta, carry):
            carry["count"] = carry.get("count", 0) + 1
            return grad

    plain, settings = task(), LocalSGD(lr=0.1, batch_size=8, correction=Counts())
    model, carries = plain.new_model(0), [{"count": 0} for _ in range(9)]
    batches = [make_batches(plain.clients[k], settings, stream(0, "batches", 0, k)) for k in range(9)]
    batched.local_sgd_rows(settings, plain, model, [model.theta.clone()] * 9, batches, carries)
    assert [carry["count"] for carry in carries] == [len(own) for own in batches]


def test_what_differs_between_clients_stays_with_them():
    plain, settings = task(), LocalSGD(lr=0.1, batch_size=8, correction=FedProx(0.1))
    model = plain.new_model(0)
    carries = [{"w": model.theta.clone(), "own": k} for k in range(9)]
    batches = [make_batches(plain.clients[k], settings, stream(0, "batches", 0, k)) for k in range(9)]
    batched.local_sgd_rows(settings, plain, model, [model.theta.clone()] * 9, batches, carries)
    assert [carry["own"] for carry in carries] == list(range(9))


def test_a_client_without_samples_is_dropped_by_name():
    plain = task(num_clients=12, n=15, alpha=0.05, min_size=0)
    empty = [k for k in range(12) if not plain.sizes[k]]
    assert empty
    history = run(plain, Federation(LocalSGD(lr=0.1, batched=True)), 1)
    assert history.rounds[0]["dropped"] == {str(k): "no samples" for k in empty}


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class Unknown(Correction):
    def correct(self, grad, theta, carry):
        return grad / grad.norm()


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        ({"model": lambda s, c: Custom()}, {}, "a layer of type Custom has no batched form"),
        ({"model": lambda s, c: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))}, {}, "LayerNorm"),
        ({}, {"correction": Unknown()}, "Unknown.correct does not say that it works on rows"),
        ({}, {"precision": "bf16"}, "precision='bf16' is not float32"),
    ],
)
def test_what_cannot_be_batched_is_refused_with_the_reason(changes, settings, reason, monkeypatch):
    monkeypatch.setattr(local, "cpu_has_bf16", lambda: True)
    with pytest.raises(ValueError, match=f"batched=True does not go with this task: .*{reason}"):
        run(task(**changes), Federation(LocalSGD(lr=0.1, batched=True, **settings)), 1)


def test_a_loss_without_a_batched_form_is_refused():
    def squares(outputs, targets):
        return outputs.square().mean()

    plain = dataclasses.replace(task(), loss=squares)
    with pytest.raises(ValueError, match="the loss squares is not"):
        run(plain, Federation(LocalSGD(lr=0.1, batched=True)), 1)
