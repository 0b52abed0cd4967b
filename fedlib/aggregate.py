"""Part 4 of a round: many deltas become one update.

Every aggregator is a function of one matrix, ``deltas`` of shape ``[K, d]`` whose row k is what the k-th
client of the round changed. Sums run in float64: their result then hardly depends on the order or number of
the clients.
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class WeightedMean:
    """FedAvg's mean, Σ p_k Δ_k / Σ p_k over the clients that are used (McMahan et al. 2017, algorithm 1).

    Renormalizing keeps the mean a mean: equal deltas give that delta, whoever takes part. The price is a
    bias when m of N clients are drawn, because the expectation of a ratio is not the ratio of the
    expectations.
    """

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        weights = normalized(ctx.weights[ctx.clients])
        return weighted_sum(weights, deltas), weights


@dataclass(frozen=True)
class UniformMean:
    """The mean that ignores sizes, Σ Δ_k / K: another objective unless all clients are equally large."""

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        weights = normalized(np.ones(len(deltas)))
        return weighted_sum(weights, deltas), weights


@dataclass(frozen=True)
class Unbiased:
    """The estimator whose expectation over uniform draws of m from N is Σ p_k Δ_k: weights (N/m) p_k.

    The weights sum to 1 on average only.  A client that drops out is *not* replaced: m counts who was drawn.
    """

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        weights = ctx.weights[ctx.clients] * (ctx.num_clients / len(ctx.drawn))
        return weighted_sum(weights, deltas), weights


@dataclass(frozen=True)
class StepNormalized:
    """FedNova's mean: every delta is divided by its client's local steps (Wang et al. 2020).

    Σ p_k Δ_k / H_k is the weighted mean of one step each, so that nobody is heard more for having stepped more
    often; times the mean number of steps Σ p_k H_k it is as long as a round of FedAvg. For plain local SGD.
    """

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``.

        The weights sum to 1 only if all steps are equal, and to more otherwise.
        """
        p, H = ctx.weights[ctx.clients], ctx.steps
        p = normalized(p)
        weights = p / H * np.sum(p * H)
        return weighted_sum(weights, deltas), weights


@dataclass(frozen=True)
class FixedMean:
    """Σ Δ_k / (qN): divided by the number of clients that is *expected*, whoever takes part (McMahan et al. 2018).

    All clients count alike, and none changes another's weight, neither by coming nor by staying away.  In a
    round without anybody the update is zero.
    """

    rate: float
    takes_nobody = True

    def __post_init__(self):
        if not 0 < self.rate <= 1:
            raise ValueError(f"the rate is a probability in (0, 1], got {self.rate!r}")

    def check(self, method):
        """Refuse to divide by another number of clients than is expected."""
        if getattr(method.select, "rate", self.rate) != self.rate:
            raise ValueError(f"{self} divides by another number of clients than {method.select} draws: use one rate")

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        weights = np.full(len(deltas), 1 / (self.rate * ctx.num_clients))
        return weighted_sum(weights, deltas), weights


def normalized(weights):
    """Scale nonnegative ``weights`` (shape ``[K]``) to sum 1.

    Raises
    ------
    ValueError
        If a weight is negative or not finite, or if all are zero.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise ValueError(f"weights must be finite, nonnegative and not all zero, got {weights}")
    return weights / weights.sum()


def weighted_sum(weights, deltas):
    """Return Σ_k weights[k] · deltas[k], shape ``[d]``, accumulated in float64 row after row."""
    if len(weights) != len(deltas):
        raise ValueError(f"{len(weights)} weights do not fit {len(deltas)} deltas")
    total = torch.zeros(deltas.shape[1], dtype=torch.float64, device=deltas.device)
    for weight, delta in zip(weights, deltas):
        total.add_(delta, alpha=float(weight))
    return total.float()
