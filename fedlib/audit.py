"""Does a private program keep its promise? Attack it, and turn the attack into a lower bound on ε (chapter 10).

A promise (ε, δ) says: whatever an attacker looks at, TPR ≤ e^ε FPR + δ, where he says "the client was there" with
probability TPR if it was and with FPR if it was not. An attack that does better refutes the promise.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedlib.correction import Correction


@dataclass(frozen=True)
class Canary(Correction):
    """Client 0 sends a vector that nobody else could: ``length`` in the given entries, if it is ``present``.

    ``entries`` are places of the flat vector that no other client's training moves, for example the weights of a
    feature that is zero for everybody. Where the canary is not present, client 0 sends zeros, which under a fixed
    denominator is the same as not being registered.
    """

    entries: tuple
    length: float
    present: bool
    private = True  # it changes a delta, before the clip, and tells the server nothing else

    def end(self, ctx, carry, result):
        if ctx.client != 0:
            return {"delta": result.delta}
        delta = result.delta.new_zeros(len(result.delta))
        if self.present:
            delta[list(self.entries)] = self.length / len(self.entries) ** 0.5
        return {"delta": delta}


def evidence(moves, rate, noise_multiplier):
    """Return log P(moves | present) / P(moves | absent), the best statistic there is (Neyman and Pearson).

    Parameters
    ----------
    moves : array, shape [..., T]
        How far the noisy sum went in the canary's direction in each round, in units of the clip norm: 0 or, with
        probability ``rate``, 1, plus noise of standard deviation ``noise_multiplier``.

    Returns
    -------
    array, shape [...]

    Examples
    --------
    >>> float(evidence(np.array([0.5, 0.5]), 1.0, 2.0))
    0.0
    """
    ratio = np.exp((np.asarray(moves) - 0.5) / noise_multiplier**2)
    return np.log1p(rate * (ratio - 1)).sum(axis=-1)


def rates(present, absent, threshold):
    """Return the shares (TPR, FPR) of scores above the threshold, with the canary and without."""
    return float(np.mean(np.asarray(present) > threshold)), float(np.mean(np.asarray(absent) > threshold))


def allowed(fpr, epsilon, delta):
    """Return the largest TPR that (ε, δ) allows at each false positive rate; the smallest is 1 − allowed(1 − FPR).

    Examples
    --------
    >>> float(allowed(0.2, 0.0, 0.1).round(3))
    0.3
    """
    fpr = np.asarray(fpr, dtype=float)
    with np.errstate(over="ignore"):
        steep = np.exp(epsilon) * fpr + delta
    return np.minimum(1.0, np.minimum(steep, 1 - np.exp(-epsilon) * (1 - fpr - delta)))


def lower_bound(present, absent, delta, level=0.95):
    """Return a number that ε is not below, with confidence ``level``, from an attack's scores.

    The first half of the trials chooses the threshold and the direction, the second half measures them, so that the
    choice does not flatter. Clopper–Pearson intervals make shares certain enough (Jagielski, Ullman and Oprea 2020).

    Parameters
    ----------
    present, absent : array_like, shape [R]
        Scores of independent trials with the canary and without; a high one speaks for "present".
    delta : float
    level : float

    Returns
    -------
    float
        0 if the attack shows nothing.
    """
    present, absent = np.asarray(present, dtype=float), np.asarray(absent, dtype=float)
    if present.ndim != 1 or absent.ndim != 1 or min(len(present), len(absent)) < 4:
        raise ValueError(f"need vectors of at least four scores each, got shapes {present.shape} and {absent.shape}")
    if not (np.isfinite(present).all() and np.isfinite(absent).all()):
        raise ValueError("scores must be finite: say what a failed trial counts as")
    if not (0 <= delta < 1 and 0 < level < 1):
        raise ValueError(f"delta must lie in [0, 1) and level in (0, 1), got {delta} and {level}")
    (first, second), (third, fourth) = np.array_split(present, 2), np.array_split(absent, 2)
    # Saying "present" above a threshold, or "absent" below it: two attacks with the roles exchanged.
    attacks = [(sign, at) for sign in (1, -1) for at in np.unique(np.concatenate([first, third]))]
    sign, at = max(attacks, key=lambda attack: _bound(first, third, *attack, delta, level))
    return max(0.0, _bound(second, fourth, sign, at, delta, level))


def _bound(present, absent, sign, at, delta, level):
    yes, no = (present, absent) if sign > 0 else (-absent, -present)
    at = at if sign > 0 else -at
    hits, alarms = int(np.sum(yes > at)), int(np.sum(no > at))
    tpr = share_bounds(hits, len(yes), level)[0]
    fpr = share_bounds(alarms, len(no), level)[1]
    return float(np.log((tpr - delta) / fpr)) if tpr > delta else -np.inf


def share_bounds(hits, trials, level=0.95):
    """Return the Clopper–Pearson interval of a share, each end with error probability (1 − level) / 2.

    Examples
    --------
    >>> [round(float(end), 4) for end in share_bounds(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - level) / 2
    low = stats.beta.ppf(tail, hits, trials - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return low, high
