"""Scores for models and for comparisons.

The scores themselves are scikit-learn's; what is added here is that the set of labels is always fixed, so
that a client who has seen only one class is scored and does not crash, and that comparisons are *paired*.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn import metrics as _sklearn


def log_loss(y, probability):
    """Return the mean negative log likelihood of binary labels, in nats.

    Parameters
    ----------
    y : array_like of shape [n]
        Labels 0 or 1; they may all be the same.
    probability : array_like of shape [n]
        Predicted probability of label 1.

    Returns
    -------
    float
    """
    return float(_sklearn.log_loss(y, probability, labels=[0, 1]))


def accuracy(y, predicted):
    """Return the share of labels that are predicted correctly; both of shape [n]."""
    return float(_sklearn.accuracy_score(y, predicted))


def f1(y, predicted, num_classes, absent="skip"):
    """Return the macro F1 score over a fixed label set.

    A class is absent if it occurs neither among the labels nor among the predictions.  Two conventions are
    in use, and they differ a lot on clients with few classes, so the choice is explicit.

    Parameters
    ----------
    y, predicted : array_like of shape [n]
        Integer labels in 0..num_classes-1.
    num_classes : int
        Classes C of the task, not of the client.
    absent : {"skip", "zero"}
        Average over the classes present, or count absent classes as F1 = 0.

    Returns
    -------
    float, in [0, 1]
    """
    if absent not in ("skip", "zero"):
        raise ValueError(f'absent must be "skip" or "zero", got {absent!r}')
    labels = np.arange(num_classes)
    y, predicted = np.asarray(y), np.asarray(predicted)
    for name, values in (("y", y), ("predicted", predicted)):
        if len(values) == 0 or not np.isin(values, labels).all():
            raise ValueError(f"{name} must hold labels 0..{num_classes - 1}, got {np.unique(values)}")
    scores = _sklearn.f1_score(y, predicted, labels=labels, average=None, zero_division=0)
    present = np.isin(labels, y) | np.isin(labels, predicted)
    return float(scores[present].mean() if absent == "skip" else scores.mean())


def mean_sd(values):
    """Return the mean and the sample standard deviation (divisor n − 1) of repeated runs."""
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"need at least two runs to speak of a spread, got shape {values.shape}")
    _finite("values", values)
    return float(values.mean()), float(values.std(ddof=1))


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences with a confidence interval, over n pairs."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self):
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def paired_difference(a, b, level=0.95):
    """Return the mean of a − b over shared seeds, with Student's t interval.

    Parameters
    ----------
    a, b : array_like of shape [n]
        Scores of two methods; entry i of both comes from the same seed, split and client draws.
    level : float
        Confidence level of the interval, in (0, 1).

    Returns
    -------
    Difference
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(
            f"need two equally long vectors of at least two paired runs, got {a.shape} and {b.shape}"
        )
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}: 0.95 is the usual one")
    _finite("a", a)
    _finite("b", b)
    d = a - b
    half = stats.t.ppf((1 + level) / 2, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
    return Difference(float(d.mean()), float(d.mean() - half), float(d.mean() + half), len(d))


def verdict(difference, minimum_effect):
    """Say whether "a is larger than b by at least the minimum effect" holds, fails or is undecided.

    It holds if the whole interval lies above the effect, fails if the whole interval lies below it, and is
    undecided otherwise.  The effect is stated before the runs are looked at.

    Parameters
    ----------
    difference : Difference
    minimum_effect : float
        Smallest difference that would matter, > 0.

    Returns
    -------
    {"holds", "fails", "undecided"}
    """
    if not 0 < minimum_effect < np.inf:
        raise ValueError(
            f"minimum_effect must be positive and finite, got {minimum_effect}: say which difference matters"
        )
    if np.isnan([difference.low, difference.mean, difference.high]).any():
        raise ValueError(f"the difference must not hold NaN, got {difference}: leave failed runs out")
    if difference.low >= minimum_effect:
        return "holds"
    return "fails" if difference.high < minimum_effect else "undecided"


def _finite(name, runs):
    for i in np.flatnonzero(~np.isfinite(runs))[:1]:
        raise ValueError(f"{name}[{i}] is {runs[i]}: say what a failed run counts as, or leave the pair out")
