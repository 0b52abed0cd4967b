"""Similarity weighting: who agrees with the others gets more say (chapter 7).

    p_k ∝ n_k exp(cos(Δ_k, Δ̄) / τ),   Δ̄ = Σ_k n_k Δ_k / n

This is a family of recipes, not one published method: with or without the sizes n_k, against the mean of all
deltas or of the others, on all layers or on some.  Cosines are accumulated in float64.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedlib.aggregate import normalized, weighted_sum

AGAINST = ("mean", "others", "parameters")
SILENT = ("keep", "skip")


@dataclass(frozen=True)
class Similarity:
    """The mean whose weights grow with the cosine between a client's delta and everybody's.

    Parameters
    ----------
    tau : float
        Temperature τ > 0.  A huge τ ignores the cosines, a tiny one listens only to the largest of them.
    sizes : bool
        Whether a weight, and Δ̄, also count the client's samples.
    against : {"mean", "others", "parameters"}
        What a delta is compared with: the mean delta; the mean delta of the *other* clients; or, as it is
        often coded, the averaged parameters w + Δ̄, which is not what anybody means to say.
    layers : tuple of str, optional
        Compare only these layers, such as ``("fc1", "fc2")``.  The update has all of them.
    silent : {"keep", "skip"}
        What a client counts that hardly moved, ‖Δ_k‖ ≤ floor · ‖w‖: a vote to stay, with cosine 0, or
        nothing.  A skipped client has a recorded weight of exactly 0, and nobody else has.
    floor : float
        Relative to ‖w‖, so that the decision does not depend on units.
    """

    tau: float = 1.0
    sizes: bool = True
    against: str = "mean"
    layers: tuple | None = None
    silent: str = "keep"
    floor: float = 1e-6

    def __post_init__(self):
        check_tau(self.tau)
        for name, choices in (("against", AGAINST), ("silent", SILENT)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        if self.layers is not None and (not isinstance(self.layers, (tuple, list)) or not self.layers):
            raise TypeError(
                f'layers must be a tuple of names such as ("fc1", "fc2"), or None, got {self.layers!r}'
            )
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must lie in [0, 1), a share of the model's norm, got {self.floor}")

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        base = normalized(ctx.weights[ctx.clients] if self.sizes else np.ones(len(deltas)))
        quiet = is_silent(deltas, ctx.w, self.floor)
        if self.silent == "skip" and not quiet.all():
            base = normalized(np.where(quiet, 0.0, base))
        parts = (slice(None),) if self.layers is None else slices(ctx.layout, self.layers)
        scores = np.where(quiet, 0.0, cosines(deltas, base, self.against, ctx.w, parts))
        weights = softmax(scores, self.tau, base)
        return weighted_sum(weights, deltas), weights


def cosines(deltas, weights, against="mean", w=None, parts=(slice(None),)):
    """Return the cosine of every delta with what it is compared with.

    Parameters
    ----------
    deltas : tensor, shape [K, d]
    weights : array, shape [K]
        Weights of the mean delta, summing to 1.
    against : {"mean", "others", "parameters"}
        See ``Similarity``.
    w : tensor, shape [d]
        The model that was broadcast; needed for ``"parameters"`` only.
    parts : sequence of slices
        The entries that are compared.

    Returns
    -------
    array, shape [K], float64
        In [−1, 1]; 0 where one of the two vectors is zero.

    Raises
    ------
    ValueError
        For another ``against``, for ``"parameters"`` without ``w``, or if something is not finite.
    """
    if against not in AGAINST:
        raise ValueError(f"against must be one of {AGAINST}, got {against!r}")
    if against == "parameters" and w is None:
        raise ValueError('against="parameters" needs w, the model that was broadcast')
    dots, own, other = np.zeros((3, len(deltas)))
    for part in parts:
        rows = deltas[:, part]
        mean = torch.zeros(rows.shape[1], dtype=torch.float64, device=deltas.device)
        for weight, row in zip(weights, rows, strict=True):
            mean.add_(row, alpha=float(weight))
        if against == "parameters":
            mean.add_(w[part])
        for k, row in enumerate(rows.unbind()):
            row = row.double()
            # An explicit difference: expanding the squares would lose what is small beside the mean.
            reference = mean - float(weights[k]) * row if against == "others" else mean
            dots[k] += float(row @ reference)
            own[k] += float(row @ row)
            other[k] += float(reference @ reference)
    if broken := np.flatnonzero(~np.isfinite(own + other + dots)).tolist():
        raise ValueError(f"no cosine for rows {broken}: a delta, a weight or the model holds NaN, infinity or a number whose square is infinite")
    lengths = np.sqrt(own) * np.sqrt(other)
    return np.clip(np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0), -1, 1)


def softmax(scores, tau, base):
    """Return weights ∝ base · exp(scores / tau), which sum to 1; a weight is 0 only where ``base`` is.

    Parameters
    ----------
    scores : array_like, shape [K]
    tau : float
        Temperature, positive and finite.
    base : array_like, shape [K]
        Nonnegative, such as sizes.

    Returns
    -------
    array, shape [K], float64

    Examples
    --------
    >>> softmax([1, -1], 1.0, [1, 1]).round(3)
    array([0.881, 0.119])
    >>> softmax([1, -1, 1], 1e-9, [1, 1, 3]).round(3)
    array([0.25, 0.  , 0.75])
    """
    check_tau(tau)
    scores, base = np.asarray(scores, dtype=np.float64), normalized(base)
    if scores.shape != base.shape or not np.isfinite(scores).all():
        raise ValueError(f"scores must be {len(base)} finite numbers, got {scores}")
    # The largest exponent becomes 0, before the division: nothing overflows, however small tau is.
    with np.errstate(over="ignore", under="ignore"):
        factor = np.exp(np.minimum(scores - scores[base > 0].max(), 0) / tau)
    return normalized(base * np.maximum(factor, np.finfo(float).tiny))


def is_silent(deltas, w, floor=1e-6):
    """Return for each row of ``deltas`` ``[K, d]`` whether its norm is at most floor · ‖w‖, shape ``[K]``."""
    limit = floor * float(w.double().norm())
    return np.array([float(row.double().norm()) <= limit for row in deltas])


def slices(layout, layers):
    """Return where the parameters of the named layers lie; a layer may also be one parameter's full name.

    Raises
    ------
    ValueError
        For a layer that the model does not have, naming those that it has.
    """
    found = []
    for layer in layers:
        names = [name for name in layout.names if name == layer or name.startswith(f"{layer}.")]
        if not names:
            known = sorted({name.rpartition(".")[0] for name in layout.names})
            raise ValueError(f"no layer is called {layer!r}: the model has {known}")
        found += [layout[name] for name in names]
    return found


def effective_clients(p):
    """Return 1 / Σ p_k², the number of equal clients whose mean would be as noisy as this one.

    Examples
    --------
    >>> effective_clients([0.25, 0.25, 0.25, 0.25]), effective_clients([1, 0])
    (4.0, 1.0)
    """
    return float(1 / np.sum(normalized(p) ** 2))


def marginalized(p, threshold=0.3):
    """Return which clients have less than ``threshold`` times an equal share, K p_k < threshold; shape ``[K]``."""
    return len(p) * normalized(p) < threshold


def check_tau(tau):
    """Refuse a temperature that is not positive and finite."""
    if not 0 < tau < math.inf:
        raise ValueError(
            f"tau must be positive and finite, got {tau}: 1 is a usual start, and for a mean that ignores "
            "cosines there are WeightedMean and UniformMean"
        )
