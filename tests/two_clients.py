"""The two-client laboratory as a task, and the tests' own corrections to prove the round loop with.

Client i's loss is f_i(x) = a_i/2 (x - b_i)², written as least squares: the sample (sqrt(a_i), sqrt(a_i)
b_i) has the loss (sqrt(a_i) x - sqrt(a_i) b_i)²/2. A client of size n_i holds it n_i times, which gives it
the weight n_i / n.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedlib import models, partition
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.executor import Workers
from fedlib.federation import begin, play_round
from fedlib.local import LocalSGD
from fedlib.task import Task

A, B = np.array([1.0, 4.0]), np.array([0.0, 1.0])
LR, STEPS = 0.1, 5


class Line(nn.Module):
    """x ↦ weight · x, starting from weight 3."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.weight = nn.Parameter(torch.full((input_shape[0],), 3.0))

    def forward(self, x):
        return x * self.weight


def half_squares(outputs, targets):
    return (outputs - targets).square().sum(1).mean() / 2


def linear_loss(outputs, targets):
    return (outputs * targets).sum(1).mean()


@dataclass(frozen=True)
class Given:
    """The first sizes[0] samples for client 0, the next sizes[1] for client 1, and so on."""

    sizes: tuple

    def __call__(self, labels, features=None):
        return np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])


def task_from(rows_x, rows_y, sizes, loss=half_squares):
    """A task in which client i owns sizes[i] copies of the sample (rows_x[i], rows_y[i])."""
    x = torch.tensor(np.repeat(np.atleast_2d(rows_x), sizes, axis=0), dtype=torch.float32)
    y = torch.tensor(np.repeat(np.atleast_2d(rows_y), sizes, axis=0), dtype=torch.float32)
    return Task(Line, Dataset("laboratory", x, y, x[:1], y[:1], 1), Given(tuple(sizes)), loss)


def laboratory(sizes=(1, 1)):
    root = np.sqrt(A)[:, None]
    return task_from(root, root * B[:, None], sizes)


def play_rounds(task, method, rounds, seed=0):
    """Play rounds by hand, without ``run``, and return the final state and the lines."""
    model = task.new_model(seed)
    state, lines = begin(task, method, model, seed), []
    for _ in range(rounds):
        state, line = play_round(task, method, Workers([model]), seed, state)
        lines.append(line)
    return state, lines


def local(correction=None, steps=STEPS, lr=LR):
    return LocalSGD(lr=lr, epochs=steps, batch_size=None, correction=correction or Correction())


@dataclass(frozen=True)
class Scaffold(Correction):
    """SCAFFOLD, option II (Karimireddy et al. 2020, algorithm 1), with the objective's weights."""

    warm: bool = False
    plain_steps_only = True
    rowwise = True
    vectors = ("delta", "control")
    tracked = ("control",)

    def row_size(self, layout):
        return layout.size

    def prepare(self, ctx, w):
        if not self.warm:
            return {"c": torch.zeros_like(w)}, {}
        rows = {k: ctx.full_gradient(k, w) for k in range(ctx.num_clients)}
        return {"c": sum(ctx.weights[k] * row for k, row in rows.items())}, rows

    def begin(self, ctx, server, row, w):
        own = torch.zeros_like(w) if row is None else row
        return w, {"own": own, "c": server["c"], "bias": server["c"] - own}

    def correct(self, grad, theta, carry):
        return grad.add_(carry["bias"])

    def end(self, ctx, carry, result):
        return {"delta": result.delta, "control": -carry["c"] - result.delta / (result.steps * result.lr)}

    def keep(self, carry, sent):
        return carry["own"] + sent["control"]

    def commit(self, ctx, server, messages):
        p = torch.from_numpy(ctx.weights[ctx.clients]).float()
        return {"c": server["c"] + p @ messages["control"]}


@dataclass(frozen=True)
class Prox(Correction):
    """FedProx (Li et al. 2020): the gradient of μ/2 ‖θ − w‖² is added."""

    mu: float
    rowwise = True

    def begin(self, ctx, server, row, w):
        return w, {"w": w}

    def correct(self, grad, theta, carry):
        return grad + self.mu * (theta - carry["w"])


@dataclass(frozen=True)
class EMA(Correction):
    """The moving-average control: step with g − c, where c follows g (raw) or g − c."""

    beta: float
    raw: bool
    kept: bool
    rowwise = True

    def row_size(self, layout):
        return layout.size if self.kept else 0

    def begin(self, ctx, server, row, w):
        return w, {"c": torch.zeros_like(w) if row is None else row}

    def correct(self, grad, theta, carry):
        corrected = grad - carry["c"]
        carry["c"] = carry["c"] + self.beta * ((grad if self.raw else corrected) - carry["c"])
        return corrected

    def keep(self, carry, sent):
        return carry["c"] if self.kept else None


@dataclass(frozen=True)
class PersonalSlice(Correction):
    """The entries [start, stop) of the model never leave the client."""

    start: int
    stop: int

    def row_size(self, layout):
        return self.stop - self.start

    def begin(self, ctx, server, row, w):
        mine = w.clone()
        if row is not None:
            mine[self.start : self.stop] = row
        return mine, {"start": mine}

    def end(self, ctx, carry, result):
        delta = result.delta.clone()
        carry["head"] = (carry["start"] + delta)[self.start : self.stop]
        delta[self.start : self.stop] = 0
        return {"delta": delta}

    def keep(self, carry, sent):
        return carry["head"]


def random_labels():
    """Return a task for three clients with 20 samples each, whose four classes cannot be told from the features."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(60, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 4, 60))
    return Task(models.mlp, Dataset("random", x, y, x, y, 4), partition.iid(num_clients=3))
