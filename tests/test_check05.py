"""The checks of chapter 5 accept every right answer and tell wrong ones apart."""

import math

import numpy as np
import torch
from checking import every_exercise
from scipy.spatial.distance import cdist

from fedlib import drift
from fedlib.check import chapter05 as check
from fedlib.objective import shares

# 5.1 fedavg_fixed_point ------------------------------------------------------------------------------------


def fixed_with_numpy(a, b, lr, H):
    r = (1 - lr * a) ** H
    return np.sum(b * (1 - r)) / np.sum(1 - r)


def fixed_with_lists(a, b, lr, H):
    pulls = [1 - (1 - lr * a_k) ** H for a_k in a + []]
    return sum(b_k * pull for b_k, pull in zip(b, pulls, strict=True)) / sum(pulls)


def fixed_with_tensors(a, b, lr, H):
    pull = 1 - a.mul(-lr).add(1).pow(H)
    return (pull @ b) / pull.sum()


def fixed_by_simulation(a, b, lr, H):
    w = 0.0
    for _ in range(400):
        w_k = np.full(len(a), w)
        for _ in range(H):
            w_k = w_k - lr * a * (w_k - b)
        w = w_k.mean()
    return w


def fixed_as_a_geometric_sum(a, b, lr, H):
    """A round is affine in w: its slope and its value at 0 give the point it leaves in place."""
    r = (1 - lr * a) ** H
    walked = lr * a * sum((1 - lr * a) ** h for h in range(H))
    return np.mean(walked * b) / (1 - r.mean())


def fixed_in_single_precision(a, b, lr, H):
    return np.float32(fixed_with_numpy(a, b, lr, H))


def fixed_from_the_library(a, b, lr, H):
    return drift.fixed_point(a, b, np.ones(len(a)) / len(a), lr, H)


FIXED = [
    fixed_with_numpy, fixed_with_lists, fixed_with_tensors, fixed_by_simulation, fixed_as_a_geometric_sum,
    fixed_in_single_precision, fixed_from_the_library,
]  # fmt: skip


def pulling(pull):
    """Return Σ b·pull / Σ pull for another pull."""

    def fixed(a, b, lr, H):
        weights = pull(a, lr, H)
        return np.sum(weights * b) / np.sum(weights)

    return fixed


FIXED_WRONG = {
    "steps multiply. Try H = 20": pulling(lambda a, lr, H: 1 - (1 - H * lr * a)),
    "the plain mean of the minimizers": lambda a, b, lr, H: b.mean(),
    "What it pulls with is the part that it walked": pulling(lambda a, lr, H: (1 - lr * a) ** H),
    "With the learning rate forgotten": pulling(lambda a, lr, H: 1 - (1 - a) ** H),
    "one step too few": pulling(lambda a, lr, H: 1 - (1 - lr * a) ** (H - 1)),
    "One step too many": pulling(lambda a, lr, H: 1 - (1 - lr * a) ** (H + 1)),
    "infinitely short steps": pulling(lambda a, lr, H: 1 - np.exp(-lr * a * H)),
    "The curvature enters twice": pulling(lambda a, lr, H: a * (1 - (1 - lr * a) ** H)),
    "not by lr·a": pulling(lambda a, lr, H: 1 - (lr * a) ** H),
    "divide by the sum of the very weights": lambda a, b, lr, H: np.mean(b * (1 - (1 - lr * a) ** H)),
    "comes to rest at": pulling(lambda a, lr, H: (1 - (1 - lr * a) ** H) / a),
}

FIXED_ALSO_WRONG = {
    "the optimum": lambda a, b, lr, H: np.sum(a * b) / np.sum(a),
    "a constant": lambda a, b, lr, H: 0.6925023465,
    "rounded": lambda a, b, lr, H: round(fixed_with_numpy(a, b, lr, H), 4),
    "one round": lambda a, b, lr, H: np.mean(b * (1 - (1 - lr * a) ** H)),
    "a simulation that stops early": lambda a, b, lr, H: drift.simulate(
        a, b, np.ones(len(a)) / len(a), lr, H, rounds=8, start=3.0
    )[-1],
    "one number a client": lambda a, b, lr, H: b * (1 - (1 - lr * a) ** H),
    "weights for two": lambda a, b, lr, H: fixed_with_numpy(a[:2], b[:2], lr, H),
    "right for the laboratory only": lambda a, b, lr, H: (
        fixed_with_numpy(a, b, lr, H) if len(a) == 2 else np.sum(a * b) / np.sum(a)
    ),
}

# 5.2 schedule ----------------------------------------------------------------------------------------------


def schedule_with_a_hyperbola(t):
    return 0.1 / (1 + t / 50)


def schedule_with_a_root(t):
    return 0.2 / math.sqrt(t + 1)


def schedule_in_stairs(t):
    return [0.1, 0.03, 0.01, 0.003, 0.001][t // 1000]


def schedule_with_a_cosine(t):
    return np.float64(0.05) * (1 + np.cos(np.pi * t / 5000))


def schedule_that_is_small_throughout(t):
    return 0.004


def schedule_with_a_slow_exponential(t):
    return 0.1 * 0.999**t


def schedule_with_a_tensor(t):
    return torch.tensor([0.1 / (1 + t / 100)])


SCHEDULE = [
    schedule_with_a_hyperbola, schedule_in_stairs, schedule_with_a_cosine,
    schedule_that_is_small_throughout, schedule_with_a_slow_exponential, schedule_with_a_tensor,
    schedule_with_a_root,
]  # fmt: skip

SCHEDULE_WRONG = {
    "Rounds 200 and 5,000 agree to ten digits": lambda t: 0.1,
    "You stopped before arriving": lambda t: 0.1 * 0.5**t,
    "too small to get anywhere": lambda t: 1e-6,
    "the place that belongs to your last learning rate": lambda t: 0.1 / (1 + t) ** 0.1,
    "overshoots further with every step": lambda t: 0.6,
    "Your learning rate grows": lambda t: 0.02 + t * 1e-5,
    "it climbs": lambda t: 0.1 - t * 1e-4,
    "All your learning rates are zero": lambda t: 0.0 * t,
    "raised ZeroDivisionError": lambda t: 0.1 / t,
    "One number for one round t": lambda t: "0.1",
}

SCHEDULE_ALSO_WRONG = {
    "decays to nothing within fifty rounds": lambda t: 0.1 * 0.8**t,
    "quadratic decay": lambda t: 0.1 / (1 + t) ** 2,
    "all rounds at once": lambda t: 0.1 / (1 + np.arange(5000)),
    "half the way": lambda t: 0.05,
    "stops": lambda t: 0.02 if t < 10 else 0.0,
    "back up at the end": lambda t: 0.1 / (1 + t / 50) if t < 4900 else 0.1,
    "integer division": lambda t: 1 // (1 + t),
}

# 5.3 effective_weights -------------------------------------------------------------------------------------


def weights_with_numpy(sizes, steps):
    return sizes * steps / (sizes * steps).sum()


def weights_with_lists(sizes, steps):
    products = [n * h for n, h in zip(sizes + [], steps, strict=True)]
    return [product / sum(products) for product in products]


def weights_with_tensors(sizes, steps):
    products = sizes.mul(steps).double()
    return products / products.sum()


def weights_in_single_precision(sizes, steps):
    return weights_with_numpy(sizes, steps).astype(np.float32)


def weights_from_shares(sizes, steps):
    p = sizes / np.sum(sizes)
    return p * steps / np.dot(p, steps)


def weights_from_a_tiny_round(sizes, steps):
    """Measured: how far a client of slope 1 gets in a round of tiny steps, times its weight."""
    pull = np.array([-np.expm1(h * np.log1p(-1e-9)) for h in steps]) * sizes
    return pull / pull.sum()


def weights_from_the_library(sizes, steps):
    return shares(np.multiply(sizes, steps))


WEIGHTS = [
    weights_with_numpy, weights_with_lists, weights_with_tensors, weights_in_single_precision, weights_from_shares,
    weights_from_a_tiny_round, weights_from_the_library,
]  # fmt: skip

WEIGHTS_WRONG = {
    "This is not drift": lambda n, H: n / n.sum(),
    "More steps mean more pull": lambda n, H: n / H / (n / H).sum(),
    "Weights sum to 1": lambda n, H: n * H,
    "Sizes count as well": lambda n, H: H / H.sum(),
    "Neither sizes nor steps": lambda n, H: np.ones(len(n)) / len(n),
    "n_k² is at best a guess": lambda n, H: n**2 / (n**2).sum(),
    "Sizes and steps multiply": lambda n, H: (n + H) / (n + H).sum(),
    "a mean was taken where a sum belongs": lambda n, H: n * H / (n * H).mean() / len(n) ** 2,
    "averaged with n_k/n": lambda n, H: n * np.sqrt(H) / (n * np.sqrt(H)).sum(),
}

WEIGHTS_ALSO_WRONG = {
    "softmax": lambda n, H: np.exp(n * H / (n * H).max()) / np.exp(n * H / (n * H).max()).sum(),
    "steps squared": lambda n, H: n * H**2 / (n * H**2).sum(),
    "sorted": lambda n, H: np.sort(n * H / (n * H).sum()),
    "one number": lambda n, H: (n * H).sum(),
    "rounded": lambda n, H: np.round(n * H / (n * H).sum(), 2),
    "the normalized rule": lambda n, H: n / H * (n * H).sum() / n.sum() ** 2,
    "relative to the first": lambda n, H: n * H / (n * H)[0],
}

# 5.4 drift_cosine ------------------------------------------------------------------------------------------


def cosine_with_numpy(w, w_k):
    deltas = w_k - w
    mean = deltas.mean(axis=0)
    lengths = np.linalg.norm(deltas, axis=1) * np.linalg.norm(mean)
    return np.divide(deltas @ mean, lengths, out=np.zeros(len(deltas)), where=lengths > 0)


def cosine_with_lists(w, w_k):
    deltas = [[y - x for x, y in zip(w + [], row, strict=True)] for row in w_k]
    mean = [sum(column) / len(deltas) for column in zip(*deltas, strict=True)]
    found = []
    for delta in deltas:
        lengths = math.hypot(*delta) * math.hypot(*mean)
        found.append(sum(x * m for x, m in zip(delta, mean, strict=True)) / lengths if lengths else 0.0)
    return found


def cosine_with_torch(w, w_k):
    deltas = w_k - w.unsqueeze(0)
    return torch.nn.functional.cosine_similarity(deltas, deltas.mean(dim=0, keepdim=True), dim=1)


def cosine_with_nan_to_num(w, w_k):
    deltas = w_k - w
    mean = deltas.mean(axis=0)
    return np.nan_to_num(deltas @ mean / np.linalg.norm(deltas, axis=1) / np.linalg.norm(mean), nan=0.0)


def cosine_with_scipy(w, w_k):
    deltas = np.asarray(w_k) - np.asarray(w)
    with np.errstate(all="ignore"):
        found = 1 - cdist(deltas, deltas.mean(axis=0, keepdims=True), "cosine")[:, 0]
    return np.where(np.isfinite(found), found, 0)


def cosine_with_the_sum(w, w_k):
    deltas = w_k - w
    total = deltas.sum(0)
    return np.array([d @ total / max(np.sqrt(d @ d * (total @ total)), 1e-300) for d in deltas])


def cosine_in_single_precision(w, w_k):
    return cosine_with_numpy(w, w_k).astype(np.float32)


def cosine_from_the_library(w, w_k):
    deltas = w_k - w
    return drift.cosines(deltas, deltas.mean(0))


COSINE = [
    cosine_with_numpy, cosine_with_lists, cosine_with_torch, cosine_with_nan_to_num, cosine_with_scipy,
    cosine_with_the_sum, cosine_in_single_precision, cosine_from_the_library,
]  # fmt: skip


def safe(rows, direction):
    """Cosines of the rows, 0 where they are not defined."""
    return np.nan_to_num(rows @ direction / np.linalg.norm(rows, axis=1) / np.linalg.norm(direction))


def of_deltas(cosine):
    return lambda w, w_k: cosine(w_k - w)


def unsafe(rows, zero_rows=False, zero_mean=False):
    """Cosines to the mean that guard one division by zero and not the other."""
    mean = rows.mean(0)
    lengths = np.linalg.norm(rows, axis=1)
    length = np.linalg.norm(mean)
    lengths = np.where(lengths == 0, 1, lengths) if zero_rows else lengths
    length = length or 1.0 if zero_mean else length
    return rows @ mean / lengths / length


def leave_one_out(d):
    return np.nan_to_num(
        np.array([safe(row[None], (d.sum(0) - row) / (len(d) - 1))[0] for row in d]), posinf=0, neginf=0
    )


COSINE_WRONG = {
    "all clients now agree perfectly": lambda w, w_k: safe(w_k, w_k.mean(0)),
    "while the clients change the same": lambda w, w_k: (w_k - w) @ w_k.mean(0) / 100,
    "A client that did not move returned NaN": of_deltas(lambda d: unsafe(d, zero_mean=True)),
    "Two clients that want the opposite": of_deltas(lambda d: unsafe(d, zero_rows=True)),
    "the mean of the *others*": of_deltas(leave_one_out),
    "divide by both lengths": of_deltas(lambda d: d @ d.mean(0)),
    "That is a distance": of_deltas(lambda d: 1 - safe(d, d.mean(0))),
    "has lost its sign": of_deltas(lambda d: np.abs(safe(d, d.mean(0)))),
    "the mean of the deltas' directions": of_deltas(
        lambda d: safe(d, (d / np.maximum(np.linalg.norm(d, axis=1), 1e-300)[:, None]).mean(0))
    ),
    "is not small beside small deltas": of_deltas(
        lambda d: d @ d.mean(0) / (np.linalg.norm(d, axis=1) * np.linalg.norm(d.mean(0)) + 1e-6)
    ),
    "Four clients that pull at right angles with equal strength": of_deltas(lambda d: safe(d, d.mean(0)) * 2),
    "agrees with nobody and contradicts nobody": of_deltas(
        lambda d: np.where(np.linalg.norm(d, axis=1) == 0, 1.0, safe(d, d.mean(0)))
    ),
    "One cosine for each client": of_deltas(lambda d: safe(d, d.mean(0)).mean()),
}

COSINE_ALSO_WRONG = {
    "pairwise": of_deltas(lambda d: np.mean([safe(d, row) for row in d], axis=0)),
    "with the first": of_deltas(lambda d: safe(d, d[0])),
    "with the median": of_deltas(lambda d: safe(d, np.median(d, axis=0))),
    "with w": lambda w, w_k: safe(w_k - w, w),
    "squared": of_deltas(lambda d: safe(d, d.mean(0)) ** 2),
    "the wrong way": of_deltas(lambda d: -safe(d, d.mean(0))),
    "correlation": of_deltas(lambda d: np.nan_to_num([np.corrcoef(row, d.mean(0))[0, 1] for row in d])),
    "angles": of_deltas(lambda d: np.arccos(np.clip(safe(d, d.mean(0)), -1, 1))),
    "divided by one length": of_deltas(lambda d: d @ d.mean(0) / np.maximum(np.linalg.norm(d, axis=1), 1e-300)),
    "models with the mean delta": lambda w, w_k: safe(w_k, (w_k - w).mean(0)),
    "a zero row is dropped": of_deltas(lambda d: safe(d[np.any(d != 0, axis=1)], d.mean(0))),
    "a matrix": of_deltas(lambda d: safe(d, d.mean(0))[:, None] * np.ones(3)),
    "opposite rows score 1 and -1": of_deltas(
        lambda d: safe(d, d.mean(0)) if d.mean(0).any() else np.sign(d[:, 0])
    ),
}

# All four --------------------------------------------------------------------------------------------------

EXERCISES = {
    "fedavg_fixed_point": (FIXED, FIXED_WRONG, FIXED_ALSO_WRONG),
    "schedule": (SCHEDULE, SCHEDULE_WRONG, SCHEDULE_ALSO_WRONG),
    "effective_weights": (WEIGHTS, WEIGHTS_WRONG, WEIGHTS_ALSO_WRONG),
    "drift_cosine": (COSINE, COSINE_WRONG, COSINE_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES, inputs=["fedavg_fixed_point", "effective_weights", "drift_cosine"])


def test_the_hint_for_a_constant_learning_rate_holds_the_gaps():
    assert "0.1075, 0.0518, 0.0098 for lr 0.1, 0.05, 0.01" in check.schedule(lambda t: 0.1).hint


def test_the_hint_for_sample_shares_holds_what_simulation_gives():
    assert "it ends at 0.6666" in check.effective_weights(lambda n, H: n / n.sum()).hint
