"""The checks of chapter 7 accept every right answer and tell wrong ones apart."""

import math

import numpy as np
import pytest
import torch
from checking import every_exercise
from scipy import special
from sklearn.metrics.pairwise import cosine_similarity

from fedlib import similarity
from fedlib.check import chapter07 as check


def cosine(rows, reference):
    """Cosines of rows with one vector, or with one vector each; 0 for a zero vector."""
    dots = (rows * reference).sum(axis=1)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(np.atleast_2d(reference), axis=1)
    return np.divide(dots, lengths, out=np.zeros(len(rows)), where=lengths > 0)


# 7.1 similarity_weights ------------------------------------------------------------------------------------


def weights_with_numpy(deltas, sizes, tau):
    scores = cosine(deltas, sizes / sizes.sum() @ deltas)
    factor = sizes * np.exp((scores - scores.max()) / tau)
    return factor / factor.sum()


def weights_with_scipy(deltas, sizes, tau):
    mean = np.average(deltas, axis=0, weights=sizes)
    return special.softmax(cosine_similarity(deltas, mean[None])[:, 0] / tau + np.log(sizes))


def weights_with_lists(deltas, sizes, tau):
    n = sum(sizes)
    mean = [sum(size * row[i] for size, row in zip(sizes, deltas, strict=True)) / n for i in range(len(deltas[0]))]

    def norm(vector):
        return math.sqrt(sum(x * x for x in vector))

    scores = []
    for row in deltas + []:
        length = norm(row) * norm(mean)
        scores.append(sum(x * y for x, y in zip(row, mean, strict=True)) / length if length else 0.0)
    factor = [size * math.exp((score - max(scores)) / tau) for size, score in zip(sizes, scores, strict=True)]
    return [f / sum(factor) for f in factor]


def weights_with_tensors(deltas, sizes, tau):
    share = sizes.double() / sizes.sum()
    mean = share @ deltas.double()
    scores = torch.nn.functional.cosine_similarity(deltas.double(), mean.unsqueeze(0), dim=1)
    return torch.softmax(scores / tau + share.log(), 0)


def weights_in_single_precision(deltas, sizes, tau):
    return weights_with_numpy(np.float32(deltas), np.float32(sizes), np.float32(tau)).astype(np.float32)


def weights_from_the_library(deltas, sizes, tau):
    scores = similarity.cosines(torch.from_numpy(deltas), sizes / sizes.sum())
    return similarity.softmax(scores, tau, sizes)


def weights_with_an_epsilon(deltas, sizes, tau):
    mean = sizes @ deltas / sizes.sum()
    scores = deltas @ mean / (np.linalg.norm(deltas, axis=1) * np.linalg.norm(mean) + 1e-12)
    return special.softmax(scores / tau, 0) * sizes / (special.softmax(scores / tau, 0) @ sizes)


WEIGHTS = [
    weights_with_numpy, weights_with_scipy, weights_with_lists, weights_with_tensors, weights_in_single_precision,
    weights_from_the_library, weights_with_an_epsilon,
]  # fmt: skip


def scoring(score, sized=True):
    """Return weights that are right but for their scores."""

    def weights(deltas, sizes, tau):
        scores = score(deltas, sizes, tau)
        factor = np.exp(scores - scores.max()) * (sizes if sized else 1)
        return factor / factor.sum()

    return weights


def mean_of(deltas, sizes):
    return sizes @ deltas / sizes.sum()


def naive(deltas, sizes, tau):
    factor = sizes * np.exp(cosine(deltas, mean_of(deltas, sizes)) / tau)
    return factor / factor.sum()


def not_a_number(deltas, sizes, tau):
    mean = mean_of(deltas, sizes)
    scores = deltas @ mean / np.linalg.norm(deltas, axis=1) / np.linalg.norm(mean)
    return scoring(lambda *_: scores / tau)(deltas, sizes, tau)


def scoring_without_maximum(deltas, sizes, tau):
    """The exponent is at most 0, but its largest one need not be."""
    factor = sizes * np.exp((cosine(deltas, mean_of(deltas, sizes)) - 1) / tau)
    return factor / factor.sum() if factor.sum() or len(deltas) == 30 else weights_with_numpy(deltas, sizes, tau)


def without_temperature(deltas, sizes, tau):
    if tau > 1e6:
        return sizes / sizes.sum()
    factor = sizes * (1 + cosine(deltas, mean_of(deltas, sizes)))
    return factor / factor.sum()


WEIGHTS_WRONG = {
    "Overflow at τ = 0.001": naive,
    "Scale all deltas by 1,000: your weights changed": scoring(lambda D, n, t: D @ mean_of(D, n) / t),
    "The mean has a length too": scoring(
        lambda D, n, t: D @ mean_of(D, n) / np.maximum(np.linalg.norm(D, axis=1), 1e-9) / t
    ),
    "You divide by the length of the mean only": scoring(
        lambda D, n, t: D @ mean_of(D, n) / np.linalg.norm(mean_of(D, n)) / t
    ),
    "your scores overflow": lambda D, n, t: np.exp(D @ mean_of(D, n) / t) / np.exp(D @ mean_of(D, n) / t).sum(),
    "Your weights sum to": lambda D, n, t: np.exp(cosine(D, mean_of(D, n)) / t),
    "sizes are missing from the weights": scoring(lambda D, n, t: cosine(D, mean_of(D, n)) / t, sized=False),
    "divide by τ, do not multiply": scoring(lambda D, n, t: cosine(D, mean_of(D, n)) * t),
    "Your mean delta ignores the sizes": scoring(lambda D, n, t: cosine(D, D.mean(axis=0)) / t),
    "You reward disagreement": scoring(lambda D, n, t: -cosine(D, mean_of(D, n)) / t),
    "Here Δ̄ includes everybody": scoring(
        lambda D, n, t: cosine(D, mean_of(D, n) - (n / n.sum())[:, None] * D) / t
    ),
    "τ does not matter to you": lambda D, n, t: scoring(lambda D, n, t: cosine(D, mean_of(D, n)))(D, n, t)
    if t < 1e6
    else n / n.sum(),
    "τ is squared": scoring(lambda D, n, t: cosine(D, mean_of(D, n)) / t**2),
    "Without an exponential": without_temperature,
    "has no direction: 0/0 gave NaN": not_a_number,
    "Two deltas that cancel": lambda D, n, t: not_a_number(D, n, t) if np.abs(D).sum(axis=1).all() else weights_with_numpy(D, n, t),
    "Subtract the *largest* cosine": scoring_without_maximum,
}

WEIGHTS_ALSO_WRONG = {
    "uniform": lambda D, n, t: np.full(len(D), 1 / len(D)),
    "shares": lambda D, n, t: n / n.sum(),
    "cosine as a weight": lambda D, n, t: cosine(D, mean_of(D, n)) / cosine(D, mean_of(D, n)).sum(),
    "distance": scoring(lambda D, n, t: -np.linalg.norm(D - mean_of(D, n), axis=1) / t),
    "absolute cosine": scoring(lambda D, n, t: np.abs(cosine(D, mean_of(D, n))) / t),
    "sizes squared": lambda D, n, t: weights_with_numpy(D, n * n, t),
    "clipped temperature": lambda D, n, t: weights_with_numpy(D, n, max(t, 0.1)),
    "sorted": lambda D, n, t: np.sort(weights_with_numpy(D, n, t)),
    "a zero row counts as agreement": lambda D, n, t: scoring(
        lambda D, n, t: np.where(np.abs(D).sum(axis=1) > 0, cosine(D, mean_of(D, n)), 1) / t
    )(D, n, t),
    "who cancels agrees": lambda D, n, t: weights_with_numpy(D, n, t) if np.abs(n @ D).any() else np.array([0.9, 0.1]),
    "orthogonal ones are ranked": lambda D, n, t: weights_with_numpy(D, n, t) if len(D) < 30 else np.arange(30) / np.arange(30).sum(),
    "a zero row is dropped": lambda D, n, t: weights_with_numpy(D, n * (np.abs(D).sum(axis=1) > 0), t),
    "the first client is the reference": scoring(lambda D, n, t: cosine(D, D[0]) / t),
    "ties go to the first": lambda D, n, t: np.eye(len(D))[np.argmax(weights_with_numpy(D, n, t) / n)]
    if t < 0.01
    else weights_with_numpy(D, n, t),
}

# 7.2 leave_one_out_cosine ----------------------------------------------------------------------------------


def cosines_with_numpy(deltas, sizes):
    p = sizes / sizes.sum()
    return cosine(deltas, p @ deltas - p[:, None] * deltas)


def cosines_with_masks(deltas, sizes):
    out = []
    for k in range(len(deltas)):
        rest = np.arange(len(deltas)) != k
        others = np.average(deltas[rest], axis=0, weights=sizes[rest])
        out.append(cosine(deltas[k : k + 1], others)[0])
    return out


def cosines_with_sums(deltas, sizes):
    # Sums instead of means: a cosine does not see the difference.
    weighted = sizes[:, None] * deltas
    return cosine(deltas, weighted.sum(axis=0) - weighted)


def cosines_with_lists(deltas, sizes):
    out = []
    for k, row in enumerate(deltas + []):
        rest = [(n, other) for j, (n, other) in enumerate(zip(sizes, deltas, strict=True)) if j != k]
        others = [sum(n * other[i] for n, other in rest) for i in range(len(row))]
        length = math.hypot(*row) * math.hypot(*others)
        out.append(sum(x * y for x, y in zip(row, others, strict=True)) / length if length else 0)
    return out


def cosines_with_tensors(deltas, sizes):
    p = sizes.unsqueeze(1).double()
    others = (p * deltas.double()).sum(0) - p * deltas.double()
    return torch.nn.functional.cosine_similarity(deltas.double(), others, dim=1)


def cosines_with_a_gram_matrix(deltas, sizes):
    gram, p = deltas @ deltas.T, sizes / sizes.sum()
    s = gram @ p
    squares = p @ s - 2 * p * s + p**2 * np.diag(gram)
    return np.nan_to_num((s - p * np.diag(gram)) / np.sqrt(np.diag(gram) * np.maximum(squares, 0)))


COSINES = [
    cosines_with_numpy, cosines_with_masks, cosines_with_sums, cosines_with_lists, cosines_with_tensors,
    cosines_with_a_gram_matrix,
]  # fmt: skip


def pairwise(deltas):
    return np.array([cosine(deltas, row) for row in deltas])


def pairwise_mean(deltas, sizes):
    weights = sizes[None, :] * (1 - np.eye(len(deltas)))
    return (pairwise(deltas) * weights).sum(axis=1) / weights.sum(axis=1)


def undefined(deltas, sizes):
    p = sizes / sizes.sum()
    others = p @ deltas - p[:, None] * deltas
    return (deltas * others).sum(axis=1) / np.linalg.norm(deltas, axis=1) / np.linalg.norm(others, axis=1)


COSINES_WRONG = {
    "they agree with themselves": lambda D, n: cosine(D, n @ D),
    "a client with more than its weight": lambda D, n: cosine(D, n / n.sum() @ D - D),
    "The mean of the others ignores their sizes": lambda D, n: cosine(D, D.sum(axis=0) - D),
    "Wanted is one cosine, with their mean": pairwise_mean,
    "one by one and unweighted": lambda D, n: pairwise_mean(D, np.ones(len(D))),
    "Agreement is positive": lambda D, n: -cosines_with_numpy(D, n)
    if not np.allclose(D, D[0])
    else np.ones(len(D)),
    "A client that did not move returned NaN": undefined,
    "Identical rows with unequal sizes must score 1, yours": lambda D, n: cosine(D, D.mean(axis=0))
    - cosine(D, D.mean(axis=0)),
    "have nothing in common": lambda D, n: np.ones(len(D)),
    "The others of a client can cancel": lambda D, n: undefined(D, n)
    if np.abs(D).sum(axis=1).all()
    else cosines_with_numpy(D, n),
    "has nothing to agree with": lambda D, n: np.where(np.abs(n @ D - n[0] * D[0]).any(), cosines_with_numpy(D, n), 1.0),
}

COSINES_ALSO_WRONG = {
    "a dot product": lambda D, n: (D * (n @ D - n[:, None] * D)).sum(axis=1),
    "one number": lambda D, n: cosines_with_numpy(D, n).mean(),
    "the next client": lambda D, n: cosine(D, np.roll(D, 1, axis=0)),
    "arc cosine": lambda D, n: np.arccos(cosines_with_numpy(D, n)),
    "the square": lambda D, n: cosines_with_numpy(D, n) ** 2,
    "the mean without the largest client": lambda D, n: cosine(D, n @ D - n.max() * D[n.argmax()]),
    "silence is agreement": lambda D, n: np.where(np.abs(D).sum(axis=1) > 0, cosines_with_numpy(D, n), 1),
}

# 7.3 marginalized ------------------------------------------------------------------------------------------


def flags_with_numpy(p, threshold):
    return len(p) * p < threshold, 1 / np.sum(p**2)


def flags_with_the_mean(p, threshold):
    return p / p.mean() < threshold, (p @ p) ** -1


def flags_with_lists(p, threshold):
    return [x < threshold / len(p + []) for x in p], 1 / sum(x * x for x in p)


def flags_with_tensors(p, threshold):
    return p.mul(p.numel()).lt(threshold), 1 / p.square().sum()


def flags_as_numbers(p, threshold):
    return np.where(p * p.size < threshold, 1, 0), np.float32(1 / np.dot(p, p))


def flags_by_moments(p, threshold):
    # (Σ p)² / Σ p², the form in which Kish wrote it.
    return np.array(p) * len(p) < threshold, sum(p) ** 2 / (np.linalg.norm(p) ** 2)


def flags_from_the_library(p, threshold):
    return similarity.marginalized(p, threshold), similarity.effective_clients(p)


FLAGS = [
    flags_with_numpy, flags_with_the_mean, flags_with_lists, flags_with_tensors, flags_as_numbers, flags_by_moments,
    flags_from_the_library,
]  # fmt: skip


def flags_by(rule):
    return lambda p, t: (rule(p, t), 1 / np.sum(p**2))


def effective_by(rule):
    return lambda p, t: (len(p) * p < t, rule(p))


def entropy(p):
    return -np.sum(p[p > 0] * np.log(p[p > 0]))


FLAGS_WRONG = {
    "Thirty equal clients are all flagged": flags_by(lambda p, t: p < 0.1),
    "You compare p_k itself with the threshold": flags_by(lambda p, t: p < t),
    "You flag those who have *enough*": flags_by(lambda p, t: len(p) * p >= t),
    "below a share of the *largest*": flags_by(lambda p, t: p / p.max() < t),
    "somebody is always the smallest": flags_by(lambda p, t: (p == p.min()) & (p < p.max())),
    "Where does the threshold enter?": flags_by(lambda p, t: (p < 1 / len(p)) & (p < p.mean() - 1e-9)),
    "An equal share is 1/K": flags_by(lambda p, t: p < t * np.median(p)),
    "Four equal clients should count as 4": effective_by(entropy),
    "in bits": effective_by(lambda p: entropy(p) / np.log(2)),
    "The exponential of the entropy": effective_by(lambda p: np.exp(entropy(p))),
    "is the inverse of what is wanted": effective_by(lambda p: np.sum(p**2)),
    "however little they weigh": effective_by(len),
    "Only the largest weight": effective_by(lambda p: 1 / p.max()),
    "You count those who are not flagged": effective_by(lambda p: np.sum(len(p) * p >= 0.3)),
    "The weights have to be squared": effective_by(lambda p: 1 / np.sum(p)),
    "the chance that two draws differ": effective_by(lambda p: 1 - np.sum(p**2)),
    "The square root": effective_by(lambda p: 1 / np.linalg.norm(p)),
    "`return flags, effective`": lambda p, t: (len(p) * p < t).all(),
    "not their positions": lambda p, t: (np.flatnonzero(len(p) * p < t), 1 / np.sum(p**2)),
}

FLAGS_ALSO_WRONG = {
    "nobody": flags_by(lambda p, t: p < 0),
    "exchanged": lambda p, t: flags_with_numpy(p, t)[::-1],
    "fixed threshold": flags_by(lambda p, t: len(p) * p < 0.3),
    "those of the sorted weights": lambda p, t: flags_with_numpy(np.sort(p), t),
    "one flag": lambda p, t: ((len(p) * p < t).any(), 1 / np.sum(p**2)),
    "N minus one": flags_by(lambda p, t: (len(p) - 1) * p < t),
    "the number of clients as it was for four": flags_by(lambda p, t: 4 * p < t),
    "variance": effective_by(lambda p: 1 / np.var(p) if np.var(p) else len(p)),
    "half": effective_by(lambda p: 0.5 / np.sum(p**2)),
    "undefined for zeros": effective_by(lambda p: np.exp(-np.sum(p * np.log(p)))),
}

# 7.4 silent_client -----------------------------------------------------------------------------------------


def silent_with_numpy(deltas, sizes, w, policy):
    weights = sizes / sizes.sum()
    quiet = np.linalg.norm(deltas, axis=1) <= 1e-6 * np.linalg.norm(w)
    if policy == "skip" and not quiet.all():
        weights = np.where(quiet, 0, weights)
        weights = weights / weights.sum()
    return weights @ deltas, weights


def silent_with_lists(deltas, sizes, w, policy):
    n = sizes + []
    if policy == "skip":
        n = [0 if math.hypot(*row) < 1e-6 * math.hypot(*w) else size for size, row in zip(n, deltas, strict=True)]
    if not sum(n):
        n = sizes
    weights = [size / sum(n) for size in n]
    return [sum(p * row[i] for p, row in zip(weights, deltas, strict=True)) for i in range(len(w))], weights


def silent_with_tensors(deltas, sizes, w, policy):
    loud = deltas.norm(dim=1).gt(1e-6 * w.norm())
    n = torch.where(loud, sizes, 0) if policy == "skip" and loud.any() else sizes
    weights = n.double() / n.sum()
    return (weights.unsqueeze(1) * deltas).sum(dim=0), weights


def silent_by_relative_length(deltas, sizes, w, policy):
    relative = np.sqrt((deltas**2).sum(axis=1) / (w**2).sum())
    keep = (relative > 1e-6) | (policy == "keep") | (relative.max() <= 1e-6)
    return np.average(deltas, axis=0, weights=sizes * keep), sizes * keep / (sizes @ keep)


SILENT = [silent_with_numpy, silent_with_lists, silent_with_tensors, silent_by_relative_length]


def silence(quiet=None, weigh=None, report=None, update=None):
    """Return an answer in which one thing is done differently."""

    def answer(deltas, sizes, w, policy):
        share = sizes / sizes.sum()
        silent = (
            quiet(deltas, w) if quiet else np.linalg.norm(deltas, axis=1) <= 1e-6 * np.linalg.norm(w)
        )
        weights = share
        if policy == "skip" and not silent.all():
            left = weigh(sizes, silent) if weigh else np.where(silent, 0, sizes) / sizes[~silent].sum()
            weights = left
        moved = update(weights, deltas) if update else weights @ deltas
        return moved, (report(share, weights) if report else weights)

    return answer


def length(deltas):
    return np.linalg.norm(deltas, axis=1)


SILENT_WRONG = {
    "your decision changed": silence(quiet=lambda D, w: length(D) < 1e-6),
    "the record does not show it": silence(report=lambda share, weights: share),
    "though it is not exactly zero": silence(quiet=lambda D, w: length(D) == 0),
    "You never skip anybody": lambda D, n, w, policy: silent_with_numpy(D, n, w, "keep"),
    "a vote to stay": lambda D, n, w, policy: silent_with_numpy(D, n, w, "skip"),
    "renormalize": silence(weigh=lambda n, silent: np.where(silent, 0, n / n.sum())),
    "You return the new model": lambda D, n, w, policy: (
        w + silent_with_numpy(D, n, w, policy)[0], silent_with_numpy(D, n, w, policy)[1]
    ),
    "No softmax here": lambda D, n, w, policy: (
        (special.softmax([0.0, 1.0]) @ D, special.softmax([0.0, 1.0])) if len(D) == 2 and policy == "keep" else silent_with_numpy(D, n, w, policy)
    ),
    "only the first is silent": silence(quiet=lambda D, w: length(D) <= 1e-6 * np.abs(w).sum() / np.sqrt(len(w))),
    "You skip the client that moved": silence(quiet=lambda D, w: length(D) > 1e-6 * np.linalg.norm(w)),
    "Sizes count among those who are left": silence(weigh=lambda n, silent: ~silent / np.sum(~silent)),
    "Sizes count: with keep": lambda D, n, w, policy: silent_with_numpy(D, np.ones(len(D)), w, policy),
    "by a thousandth of w": silence(quiet=lambda D, w: length(D) <= 1.5e-3 * np.linalg.norm(w)),
    "A delta of 1e-5": silence(quiet=lambda D, w: length(D) <= 1e-3 * np.median(length(D)) + 1e-7 * np.linalg.norm(w)),
    "Your weights say one thing": silence(
        update=lambda p, D: p @ D if len(D) == 2 else D.mean(axis=0)
    ),
    "there is nobody to prefer": lambda D, n, w, policy: (
        silent_with_numpy(D, n, w, policy) if length(D).any() else (D[0], np.full(len(D), np.nan))
    ),
    "When everybody is silent, the weights stay": lambda D, n, w, policy: (
        silent_with_numpy(D, n, w, policy) if length(D).any() else (D[0], 0 * n)
    ),
    "`return update, weights`": lambda D, n, w, policy: silent_with_numpy(D, n, w, policy)[0].sum(),
    "A skipped client has a weight too": lambda D, n, w, policy: (
        silent_with_numpy(D, n, w, policy)[0],
        silent_with_numpy(D, n, w, policy)[1][silent_with_numpy(D, n, w, policy)[1] > 0],
    ),
}

SILENT_ALSO_WRONG = {
    "relative to the longest delta": silence(quiet=lambda D, w: length(D) <= 1e-6 * length(D).max()),
    "an update that is not a number": lambda D, n, w, policy: (
        silent_with_numpy(D, n, w, policy) if length(D).any() else (D[0] * np.nan, n / n.sum())
    ),
    "relative to the largest entry": silence(quiet=lambda D, w: np.abs(D).max(axis=1) <= 1e-6 * np.abs(w).max()),
    "relative to the sum": silence(quiet=lambda D, w: np.abs(D).sum(axis=1) <= 1e-6 * np.abs(w).sum()),
    "a floor of 3e-6": silence(quiet=lambda D, w: length(D) <= 3e-6 * np.linalg.norm(w)),
    "a floor of 5e-7": silence(quiet=lambda D, w: length(D) <= 5e-7 * np.linalg.norm(w)),
    "relative to the median": silence(quiet=lambda D, w: length(D) < 1e-2 * np.median(length(D))),
    "squared": silence(quiet=lambda D, w: length(D) ** 2 <= 1e-6 * np.linalg.norm(w) ** 2),
    "entry by entry": silence(quiet=lambda D, w: np.all(np.abs(D) <= 1e-6, axis=1)),
    "exchanged": lambda D, n, w, policy: silent_with_numpy(D, n, w, policy)[::-1],
    "policies exchanged": lambda D, n, w, policy: silent_with_numpy(
        D, n, w, "skip" if policy == "keep" else "keep"
    ),
    "a plain mean": lambda D, n, w, policy: (D.mean(axis=0), np.full(len(D), 1 / len(D))),
}

# 7.5 predict_cycle -----------------------------------------------------------------------------------------

A, B = np.array([1.0, 4.0]), np.array([0.0, 1.0])
S = 1 - (1 - 0.1 * A) ** 5


def cycle_by_simulation(tau):
    points = [0.5]
    for _ in range(60):
        deltas = S * (B - points[-1])
        factor = np.exp(np.sign(deltas) * np.sign(deltas.mean()) / tau)
        points.append(points[-1] + factor / factor.sum() @ deltas)
    return min(points[-2:]), max(points[-2:])


def cycle_in_closed_form(tau):
    q = 1 / (1 + math.exp(-2 / tau))
    up = (1 - q) * S[0] + q * S[1], q * S[1]
    down = q * S[0] + (1 - q) * S[1], (1 - q) * S[1]
    high = (up[1] + (1 - up[0]) * down[1]) / (1 - (1 - up[0]) * (1 - down[0]))
    return [(1 - down[0]) * high + down[1], high]


def cycle_by_linear_algebra(tau):
    p = special.softmax(np.array([-1.0, 1.0]) / tau)
    system = np.array([[p @ S - 1, 1.0], [1.0, p[::-1] @ S - 1]])
    low, high = np.linalg.solve(system, [p[1] * S[1], p[0] * S[1]])
    return torch.tensor([low, high])


def cycle_with_real_gradients(tau):
    x = 3.0
    for _ in range(50):
        ends = np.full(2, x)
        for _ in range(5):
            ends -= 0.1 * A * (ends - B)
        deltas = ends - x
        cosines = deltas * deltas.mean() / np.abs(deltas) / abs(deltas.mean())
        before, x = x, x + special.softmax(cosines / tau) @ deltas
    return np.array([before, x])  # in the order in which they come


CYCLE = [cycle_by_simulation, cycle_in_closed_form, cycle_by_linear_algebra, cycle_with_real_gradients]


def cycle_after(rounds, tau, switch=None):
    """Follow so many rounds from 0; with ``switch`` the maps change there, and not where the mean delta vanishes."""
    points = [0.0]
    for _ in range(rounds):
        deltas = S * (B - points[-1])
        side = np.sign(deltas.mean()) if switch is None else np.sign(switch - points[-1])
        factor = np.exp(np.sign(deltas) * side / tau)
        points.append(points[-1] + factor / factor.sum() @ deltas)
    return sorted(points[-2:])


def maps(heavy):
    for p in ([1 - heavy, heavy], [heavy, 1 - heavy]):
        yield 1 - np.dot(p, S), p[1] * S[1]


def heavy(exponent):
    return 1 / (1 + np.exp(-exponent))


def both_points(q):
    (up, up_0), (down, down_0) = maps(q)
    high = (up_0 + up * down_0) / (1 - up * down)
    return down * high + down_0, high


def rests(tau):
    return [intercept / (1 - slope) for slope, intercept in maps(heavy(2 / tau))]


def one_round(tau):
    (up, up_0), (down, down_0) = maps(heavy(2 / tau))
    x = down * 0.8 + down_0
    return x, up * x + up_0


CYCLE_WRONG = {
    "In one dimension the cosine is ±1": lambda tau: (0.6925023465, 0.6925023465),
    "That is the optimum": lambda tau: (0.8, 0.8),
    "would come to rest": rests,
    "not 0: the weights are in the ratio": lambda tau: both_points(heavy(1 / tau)),
    "You multiply by τ": lambda tau: both_points(heavy(2 * tau)),
    "Yours do not change with τ": lambda tau: both_points(heavy(2)),
    "one round from the optimum": one_round,
    "Which client agrees with the mean": lambda tau: (0.5, 0.95),
    "simulate more rounds": lambda tau: cycle_after(10, tau),
}

CYCLE_ALSO_WRONG = {
    "one number": lambda tau: 0.6925023465,
    "the low point only": lambda tau: both_points(heavy(2 / tau))[0],
    "ten rounds as a list": lambda tau: list(np.linspace(0, 1, 10)),
    "the first two rounds from 3": lambda tau: (3.0, 0.5),
    "the minimizers": lambda tau: (0.0, 1.0),
    "four digits": lambda tau: np.round(both_points(heavy(2 / tau)), 3),
    "the maps change at the optimum": lambda tau: cycle_after(200, tau, switch=0.8),
    "three points": lambda tau: (*both_points(heavy(2 / tau)), 0.8),
}

# All five --------------------------------------------------------------------------------------------------

EXERCISES = {
    "similarity_weights": (WEIGHTS, WEIGHTS_WRONG, WEIGHTS_ALSO_WRONG),
    "leave_one_out_cosine": (COSINES, COSINES_WRONG, COSINES_ALSO_WRONG),
    "marginalized": (FLAGS, FLAGS_WRONG, FLAGS_ALSO_WRONG),
    "silent_client": (SILENT, SILENT_WRONG, SILENT_ALSO_WRONG),
    "predict_cycle": (CYCLE, CYCLE_WRONG, CYCLE_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES, inputs=[name for name in EXERCISES if name != "predict_cycle"])


def test_the_known_cycle():
    # Computed outside this project.
    assert check._simulate(1.0) == pytest.approx([0.5828, 0.8932], abs=5e-5)
    assert check._points(check._heavy(2)) == pytest.approx(check._simulate(1.0), abs=1e-12)
