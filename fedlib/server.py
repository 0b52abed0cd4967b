"""Part 5 of a round: how the server applies the update.

The update Δ is a *descent* direction, where clients want the model to go: it takes the place of a negative
gradient, and is added.
"""

import math
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class ServerSGD:
    """w ← w + lr · update.  With lr = 1 this is FedAvg: the new model is the mean of the clients' models."""

    lr: float = 1.0

    def __post_init__(self):
        _positive("lr", self.lr)

    def prepare(self, w):
        """Return the state (named tensors) that the server keeps for its steps, for example a momentum."""
        return {}

    def step(self, state, w, update):
        """Return the new ``w`` (shape ``[d]``, a new tensor) and the new state."""
        return w.add(update, alpha=self.lr), state


@dataclass(frozen=True)
class ServerMomentum:
    """FedAvgM: v ← momentum · v + Δ, w ← w + lr v (Hsu et al. 2019, section 4.3).

    A constant Δ is multiplied by up to 1 / (1 − momentum): with momentum 0.9, lr = 0.1 keeps the length of FedAvg's steps.

    Parameters
    ----------
    lr : float
        Server learning rate, positive.
    momentum : float
        Share of the old velocity v that stays, in [0, 1).
    """

    lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self):
        _positive("lr", self.lr)
        _fraction("momentum", self.momentum)

    def prepare(self, w):
        """Return the velocity v = 0."""
        return {"v": torch.zeros_like(w)}

    def step(self, state, w, update):
        """Return the new ``w`` (shape ``[d]``, a new tensor) and the new state."""
        v = update.add(state["v"], alpha=self.momentum)
        return w.add(v, alpha=self.lr), {"v": v}


@dataclass(frozen=True)
class ServerAdam:
    """FedAdam: w ← w + lr m / (√v + ε) with moving averages m of Δ and v of Δ² (Reddi et al. 2021, algorithm 2).

    As in the paper there is *no* bias correction, and v starts at ε².

    Parameters
    ----------
    lr : float
        Server learning rate, positive: about how far an entry of w moves in a round.
    beta1, beta2 : float
        Shares of the old m and v that stay, in [0, 1).
    epsilon : float
        The paper's adaptivity τ, positive: entries with Δ well below it move in proportion to Δ.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self):
        _positive("lr", self.lr)
        _fraction("beta1", self.beta1)
        _fraction("beta2", self.beta2)
        _positive("epsilon", self.epsilon)

    def prepare(self, w):
        """Return the moving averages m = 0 and v = ε²."""
        return {"m": torch.zeros_like(w), "v": torch.full_like(w, self.epsilon**2)}

    def step(self, state, w, update):
        """Return the new ``w`` (shape ``[d]``, a new tensor) and the new state."""
        m = update.lerp(state["m"], self.beta1)
        v = self.second_moment(state["v"], update.square())
        return w.addcdiv(m, v.sqrt().add_(self.epsilon), value=self.lr), {"m": m, "v": v}

    def second_moment(self, v, square):
        """Return the new v, β₂ v + (1 − β₂) Δ²."""
        return square.lerp(v, self.beta2)


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """FedYogi: as FedAdam, but v moves toward Δ² by (1 − β₂) Δ², however far it is (Reddi et al. 2021)."""

    def second_moment(self, v, square):
        """Return the new v, v − (1 − β₂) Δ² sign(v − Δ²)."""
        return v.sub(square * torch.sign(v - square), alpha=1 - self.beta2)


@dataclass(frozen=True)
class Averaged:
    """A server step, and the mean of the models that it has made, which is the one to be tested and handed over.

    Clients go on from the last model w.  Handed over is Σ_s decay^s w_{t−s} / Σ_s decay^s, over all rounds so far; with
    decay = 1 all models count alike (Polyak and Juditsky 1992).

    Parameters
    ----------
    inner : server step
        Makes each new w.
    decay : float
        What a model's weight is multiplied by in each later round, in (0, 1]: about 1 / (1 − decay) models count.
    """

    inner: object = field(default_factory=ServerSGD)
    decay: float = 0.9

    def __post_init__(self):
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie in (0, 1], got {self.decay}")

    def prepare(self, w):
        """Return the inner step's state, and the sum of no models (float64) with the sum of their weights."""
        total = torch.zeros_like(w, dtype=torch.float64)
        inner = self.inner.prepare(w)
        return {"total": total, "weight": total.new_zeros(())} | {f"inner.{name}": part for name, part in inner.items()}

    def step(self, state, w, update):
        """Return the new ``w`` (shape ``[d]``, a new tensor) and the new state."""
        inner = {name.removeprefix("inner."): part for name, part in state.items() if name.startswith("inner.")}
        w, inner = self.inner.step(inner, w, update)
        new = {"total": state["total"] * self.decay + w, "weight": state["weight"] * self.decay + 1}
        return w, new | {f"inner.{name}": part for name, part in inner.items()}

    def deliver(self, state, w):
        """Return the mean model, shape ``[d]``; before the first round w itself."""
        return (state["total"] / state["weight"]).float() if state["weight"] else w


def _positive(name, value):
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def _fraction(name, value):
    if not 0 <= value < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {value}")
