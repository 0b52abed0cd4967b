"""Does a private program keep its promise? Attack it, and turn the attack into a lower bound on ε (chapter 10).

A promise (ε, δ) says: whatever an attacker looks at, TPR ≤ e^ε FPR + δ, where he says "the client was there" with
probability TPR if it was and with FPR if it was not. An attack that does better refutes the promise.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedlib.correction import Correction


@dataclass(frozen=True)
class Canaries(Correction):
    """The first clients send vectors that nobody else could: ``length`` in entries of their own, if ``present``.

    ``entries[k]`` are the places of client k in the flat vector, which no other client's training moves: for example
    the weights of a feature that is zero for everybody. A canary that is not present sends zeros, which under a fixed
    denominator is the same as not being registered. As the places do not overlap and clients are drawn by themselves,
    each canary of a run is a trial of its own.
    """

    entries: tuple
    length: float
    present: tuple
    private = True  # it changes deltas, before the clip, and tells the server nothing else

    def end(self, ctx, carry, result):
        if ctx.client >= len(self.entries):
            return {"delta": result.delta}
        delta, places = result.delta.new_zeros(len(result.delta)), list(self.entries[ctx.client])
        if self.present[ctx.client]:
            delta[places] = self.length / len(places) ** 0.5
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
    if not (0 < rate <= 1 and np.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ValueError(f"need a rate in (0, 1] and positive noise, got {rate} and {noise_multiplier}")
    drawn = np.log(rate) + (np.asarray(moves) - 0.5) / noise_multiplier**2
    with np.errstate(divide="ignore"):  # at rate 1 nobody is left out
        return np.logaddexp(np.log1p(-rate), drawn).sum(axis=-1)


def scores(steps, entries, rate):
    """Return each canary's ``evidence``, with the noise measured where there is nothing but noise.

    Parameters
    ----------
    steps : array, shape [T, d]
        What each round changed in the model, times qN and in units of the clip norm: the noisy sum.
    entries : sequence of M equally long tuples
        As in ``Canaries``; across its own direction a canary's entries hold noise only.
    rate : float

    Returns
    -------
    array, shape [M]
    """
    own = steps[:, np.array(entries)]
    moves = own.sum(axis=-1) / own.shape[-1] ** 0.5
    across = own - own.mean(axis=-1, keepdims=True)
    noise = np.sqrt(np.sum(across**2) / (own.size - moves.size))
    return evidence(moves.T, rate, noise)


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
    attacks = [(first, second, third, fourth), (-third, -fourth, -first, -second)]
    chosen = []
    for yes, yes_again, no, no_again in attacks:
        cuts = np.unique(np.concatenate([yes, no]))
        promising = _bounds(yes, no, cuts, delta, level)
        best = int(np.argmax(promising))
        chosen.append((promising[best], yes_again, no_again, cuts[best : best + 1]))
    _, yes, no, cut = max(chosen, key=lambda attack: attack[0])
    return max(0.0, float(_bounds(yes, no, cut, delta, level)[0]))


def _bounds(yes, no, cuts, delta, level):
    """Return log((TPR − δ) / FPR) at each of the ``cuts``, with the less favorable ends of both intervals."""
    hits, alarms = (len(scores) - np.searchsorted(np.sort(scores), cuts, side="right") for scores in (yes, no))
    tpr, fpr = share_bounds(hits, len(yes), level)[0], share_bounds(alarms, len(no), level)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(tpr > delta, np.log((tpr - delta) / fpr), -np.inf)


def share_bounds(hits, trials, level=0.95):
    """Return the Clopper–Pearson interval of a share, each end with error probability (1 − level) / 2.

    ``hits`` may be an array; the two ends then are arrays, too.

    Examples
    --------
    >>> [round(float(end), 4) for end in share_bounds(0, 10)]
    [0.0, 0.3085]
    """
    hits, tail = np.asarray(hits), (1 - level) / 2
    if not (0 < level < 1 and np.all((0 <= hits) & (hits <= trials))):
        raise ValueError(f"need 0 ≤ hits ≤ trials and a level in (0, 1), got {hits}, {trials} and {level}")
    low = np.where(hits > 0, stats.beta.ppf(tail, np.maximum(hits, 1), trials - hits + 1), 0.0)
    high = np.where(hits < trials, stats.beta.ppf(1 - tail, hits + 1, np.maximum(trials - hits, 1)), 1.0)
    return low, high
