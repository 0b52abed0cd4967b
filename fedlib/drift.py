"""Client drift: where FedAvg ends when clients differ, computed exactly and measured on deltas (chapter 5).

The laboratory's clients have the losses f_k(w) = a_k/2 (w − b_k)², on which everything has a formula. One step
multiplies the distance to the client's own minimizer by 1 − η a_k, so H_k steps multiply it by r_k = (1 −
η a_k)^{H_k}, and the client's delta is (1 − r_k)(b_k − w). FedAvg rests where the weighted deltas cancel,

    w = Σ p_k (1 − r_k) b_k / Σ p_k (1 − r_k)

(Charles and Konečný 2021 study such fixed points in general), which is not where the objective is lowest.
"""

import numpy as np
import torch

from fedlib.objective import shares


def fixed_point(a, b, p, lr, H, normalized=False):
    """Return the point at which FedAvg's rounds leave the laboratory's model where it is.

    Parameters
    ----------
    a, b : array_like of shape [K]
        Curvatures (positive) and minimizers of the clients' losses.
    p : array_like of shape [K]
        Weights that sum to 1.
    lr : float
        Local learning rate η, with η a_k < 2: beyond that a client's own steps diverge.
    H : int or array_like of shape [K]
        Local steps in one round, for all clients or for each.
    normalized : bool
        Divide each delta by the client's number of steps, as FedNova does (Wang et al. 2020).

    Returns
    -------
    float

    Examples
    --------
    >>> round(fixed_point([1, 4], [0, 1], [0.5, 0.5], lr=0.1, H=5), 10)
    0.6925023465
    """
    a, b, p, H = _laboratory(a, b, p, H)
    r = (1 - _stable(lr, a) * a) ** H
    pull = p * (1 - r) / (H if normalized else 1)
    return float(np.sum(pull * b) / np.sum(pull))


def simulate(a, b, p, lr, H, rounds, start=0.0, normalized=False):
    """Play FedAvg in the laboratory, step by step, and return the server's model after each round.

    Parameters
    ----------
    a, b, p, H, normalized
        As for ``fixed_point``.
    lr : float or callable
        The learning rate, or ``lr(t)``, that of round t = 0, 1, …
    rounds : int
    start : float
        The model before round 0.

    Returns
    -------
    ndarray of shape [rounds + 1]
    """
    a, b, p, H = _laboratory(a, b, p, H)
    path = [float(start)]
    for t in range(rounds):
        eta = lr(t) if callable(lr) else _stable(lr, a)
        eta = _stable(eta, a) if eta else 0.0  # a schedule may decay until it rounds to nothing
        w_k = np.full(len(a), path[-1])
        for h in range(H.max()):
            w_k -= np.where(h < H, eta * a * (w_k - b), 0)
        deltas = w_k - path[-1]
        if normalized:
            deltas = deltas / H * np.sum(p * H)
        path.append(path[-1] + float(np.sum(p * deltas)))
    return np.array(path)


def local_paths(a, b, lr, H, w):
    """Return every point that the laboratory's clients pass on their way from ``w``, shape ``[H + 1, K]``."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return b + (1 - lr * a) ** np.arange(H + 1)[:, None] * (w - b)


def effective_weights(sizes, steps):
    """Return the weights of the objective that FedAvg follows for small lr: shares of n_k H_k.

    For small η a delta is −η H_k ∇f_k, so a client that takes more steps is heard more: objective inconsistency
    (Wang et al. 2020). The weights are those of the objective only if all clients take equally many steps.

    Parameters
    ----------
    sizes : array_like of shape [K]
        Samples n_k of each client.
    steps : array_like of shape [K]
        Local steps H_k of each client in one round, at least 1.

    Returns
    -------
    ndarray of shape [K]
        Sums to 1.

    Examples
    --------
    >>> effective_weights([100, 100], [10, 5]).round(3)
    array([0.667, 0.333])
    """
    sizes, steps = np.asarray(sizes, dtype=float), np.asarray(steps, dtype=float)
    if sizes.shape != steps.shape:
        raise ValueError(f"sizes and steps must have one entry a client, got shapes {sizes.shape}, {steps.shape}")
    if not (np.isfinite(steps).all() and (steps >= 1).all()):
        raise ValueError(f"every client takes at least one step, got {steps}: leave out those that did not train")
    return shares(sizes * steps)


def cosines(deltas, direction):
    """Return the cosine of each row with ``direction``; 0 where either does not move.

    Parameters
    ----------
    deltas : tensor of shape [K, d]
    direction : tensor of shape [d]
        The mean delta, for example: then a cosine of 1 is a client that wants what the round does.

    Returns
    -------
    ndarray of shape [K], in [−1, 1]
    """
    if deltas.ndim != 2 or direction.shape != deltas.shape[1:]:
        raise ValueError(
            f"need rows [K, d] and a direction [d], got {tuple(deltas.shape)} and {tuple(direction.shape)}"
        )
    # Row by row, as a copy of the whole matrix in double precision may not fit into memory.
    return np.array([_cosine(delta, direction) for delta in deltas])


def norms(deltas):
    """Return the length of each row of ``deltas`` (``[K, d]``), shape ``[K]``."""
    return np.array([float(_norm(delta)) for delta in deltas])


def by_layer(layout, deltas, direction):
    """Return ``{parameter name: cosines [K]}``, those of each named slice of the vectors alone.

    Parameters
    ----------
    layout : Layout
        Names and places of the parameters in the vectors.
    deltas : tensor of shape [K, d]
    direction : tensor of shape [d]
    """
    if deltas.shape[1] != layout.size:
        raise ValueError(f"the layout has {layout.size} entries, but the rows have {deltas.shape[1]}")
    return {name: cosines(deltas[:, layout[name]], direction[layout[name]]) for name in layout.names}


def parameter_cosines(deltas, w):
    """Return the cosine of each client's *parameters* w + Δ_k with those it started from, shape ``[K]``.

    It measures how long the deltas are compared with w and hardly where they point: with ‖Δ_k‖ = u ‖w‖ it is at
    least √(1 − u²), whatever the direction.
    """
    return np.array([_cosine(w.double() + delta, w) for delta in deltas])


def _cosine(x, y):
    x, y = x.double(), y.double()
    lengths = _norm(x) * _norm(y)
    return float(torch.clamp(x @ y / lengths, -1, 1)) if lengths > 0 else 0.0


def _norm(x):
    return torch.linalg.vector_norm(x, dtype=torch.float64)


def _laboratory(a, b, p, H):
    a, b, p = (np.asarray(values, dtype=float) for values in (a, b, p))
    if not a.ndim == 1 or not a.shape == b.shape == p.shape:
        raise ValueError(f"a, b and p must have one entry a client, got shapes {a.shape}, {b.shape}, {p.shape}")
    if not (a > 0).all():
        raise ValueError(f"curvatures must be positive, got {a}: a flat or concave loss has no minimum")
    if (p < 0).any() or abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"weights must be >= 0 and sum to 1, got {p}: divide by their sum first")
    H = np.asarray(H)
    if H.dtype.kind not in "iu" or H.shape not in ((), a.shape) or (H < 1).any():
        raise ValueError(f"H must be a whole number of at least 1, or one for each of {len(a)} clients, got {H}")
    return a, b, p, np.broadcast_to(H, a.shape)


def _stable(lr, a):
    if not 0 < lr < 2 / a.max():
        raise ValueError(
            f"lr must lie in (0, {2 / a.max():.4g}), got {lr}: steps on a parabola of curvature {a.max():g} diverge "
            "for anything larger"
        )
    return lr
