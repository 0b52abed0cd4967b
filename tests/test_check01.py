"""The checks of chapter 1 accept every right answer and tell wrong ones apart."""

from fractions import Fraction
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pytest
import torch
from checking import every_exercise

from fedlib.check import chapter01 as check

# 1.1 weighted_objective ------------------------------------------------------------------------------------


def objective_with_numpy(losses, sizes):
    return np.sum(sizes * losses) / np.sum(sizes)


def objective_with_a_loop(losses, sizes):
    total = 0
    for i in range(len(sizes)):
        total += losses[i] * sizes[i]
    return total / sum(sizes)


def objective_with_lists(losses, sizes):
    # Needs lists: an array cannot be popped.
    n, total = sum(sizes), 0.0
    while sizes:
        total += sizes.pop() * losses.pop() / n
    return total


def objective_with_tensors(losses, sizes):
    return torch.sum(sizes * losses) / torch.sum(sizes)


def objective_with_tensor_shares(losses, sizes):
    # The quotient of integer tensors is in single precision, although the result is not.
    return (torch.true_divide(sizes, sizes.sum()) * losses).sum()


def objective_with_single_tensors(losses, sizes):
    # Works in single precision only: what torch makes of integers does not go with double precision.
    return torch.dot(sizes / sizes.sum(), losses).item()


def objective_in_single_precision(losses, sizes):
    losses, sizes = np.float32(losses), np.float32(sizes)
    return sizes @ losses / sizes.sum()


def objective_as_a_python_float(losses, sizes):
    return float(objective_in_single_precision(losses, sizes))


def objective_in_fractions(losses, sizes):
    return sum(
        Fraction(int(n), int(sum(sizes))) * Fraction(float(f)) for f, n in zip(losses, sizes, strict=True)
    )


def objective_as_an_array_of_one(losses, sizes):
    return np.average(losses, weights=sizes, keepdims=True)


OBJECTIVE = [
    objective_with_numpy,
    objective_with_a_loop,
    objective_with_lists,
    objective_with_tensors,
    objective_with_tensor_shares,
    objective_with_single_tensors,
    objective_in_single_precision,
    objective_as_a_python_float,
    objective_in_fractions,
    objective_as_an_array_of_one,
    np.vectorize(lambda losses, sizes: sizes @ losses / sizes.sum(), signature="(k),(k)->()"),
]

OBJECTIVE_WRONG = {
    "Multiply every size by 10": lambda losses, sizes: np.sum(losses * sizes),
    "weights must sum to 1": lambda losses, sizes: np.mean(losses * sizes / np.sum(sizes)),
    "a copy of its own data": lambda losses, sizes: np.mean(losses),
    "yours falls": lambda losses, sizes: np.sum(losses / sizes) / np.sum(1 / sizes),
    "neither to its square": lambda losses, sizes: np.average(losses, weights=sizes**2),
}

OBJECTIVE_ALSO_WRONG = {
    "the sum of the losses": lambda losses, sizes: np.sum(losses),
    "whole-number division": lambda losses, sizes: sum(
        n // sum(sizes) * f for f, n in zip(losses, sizes, strict=True)
    ),
    "the largest client only": lambda losses, sizes: losses[np.argmax(sizes)],
    "the worst client": lambda losses, sizes: np.max(losses),
    "the root of the size": lambda losses, sizes: np.average(losses, weights=np.sqrt(sizes)),
    "the logarithm of the size": lambda losses, sizes: np.average(losses, weights=np.log1p(sizes)),
    "divided by n and by K": lambda losses, sizes: np.sum(losses * sizes) / np.sum(sizes) / len(sizes),
    "softmax of the sizes": lambda losses, sizes: np.average(losses, weights=np.exp(sizes - np.max(sizes))),
    "one client too few": lambda losses, sizes: np.average(losses[:-1], weights=sizes[:-1]),
    "sorted sizes": lambda losses, sizes: np.average(losses, weights=np.sort(sizes)),
    "the sizes": lambda losses, sizes: sizes / sum(sizes),
    "rounded": lambda losses, sizes: round(objective_with_numpy(losses, sizes), 5),
    "text": lambda losses, sizes: str(objective_with_numpy(losses, sizes)),
    "text in an array": lambda losses, sizes: np.array(
        str(objective_with_numpy(losses, sizes)), dtype=object
    ),
    "n − 1 for n": lambda losses, sizes: np.sum(losses * sizes) / (np.sum(sizes) - 1),
}

# 1.2 optimum -----------------------------------------------------------------------------------------------


def optimum_with_numpy(a, b, p):
    return np.sum(p * a * b) / np.sum(p * a)


def optimum_with_a_loop(a, b, p):
    pull = sum(p_k * a_k * b_k for a_k, b_k, p_k in zip(a, b, p, strict=True))
    return pull / sum(p_k * a_k for a_k, p_k in zip(a, p, strict=True))


def optimum_with_lists(a, b, p):
    hold = [p[a.index(a_k)] * a_k for a_k in a]
    return [sum(h * b_k for h, b_k in zip(hold, b, strict=True)) / sum(hold)]


def optimum_with_tensors(a, b, p):
    return torch.linalg.vecdot(p * a, b) / (p * a).sum()


def optimum_in_single_precision(a, b, p):
    return float(optimum_with_numpy(np.float32(a), np.float32(b), np.float32(p)))


def optimum_by_descent(a, b, p):
    w = 0.0
    for _ in range(5000):
        w -= 0.1 * np.sum(p * a * (w - b))
    return w


def optimum_by_a_linear_system(a, b, p):
    return np.linalg.solve([[p @ a]], [[p @ (a * b)]])


OPTIMUM = [
    optimum_with_numpy,
    optimum_with_a_loop,
    optimum_with_lists,
    optimum_with_tensors,
    optimum_in_single_precision,
    optimum_by_descent,
    optimum_by_a_linear_system,
]

OPTIMUM_WRONG = {
    "the weighted mean of the minimizers": lambda a, b, p: np.sum(p * b),
    "equal weights": lambda a, b, p: np.sum(a * b) / np.sum(a),
    "Divide it by how strongly the curvatures hold": lambda a, b, p: np.sum(p * a * b),
    "Neither the curvatures nor the weights": lambda a, b, p: np.mean(b),
    "Solve for where it is 0": lambda a, b, p: np.sum(p * a * b) / np.sum(a),
}

OPTIMUM_ALSO_WRONG = {
    "the sign": lambda a, b, p: -optimum_with_numpy(a, b, p),
    "divided by K": lambda a, b, p: optimum_with_numpy(a, b, p) / len(a),
    "inverse curvature": lambda a, b, p: np.sum(p / a * b) / np.sum(p / a),
    "the steepest client": lambda a, b, p: b[np.argmax(a)],
    "the heaviest client": lambda a, b, p: b[np.argmax(p)],
    "a coarse grid": lambda a, b, p: min(np.linspace(-3, 3, 61), key=lambda w: np.sum(p * a * (w - b) ** 2)),
    "too few steps": lambda a, b, p: optimum_with_numpy(a, b, p) * (1 - 1e-3),
}

# 1.3 expected_weights --------------------------------------------------------------------------------------


def expected_with_numpy(sizes, m):
    draws = np.array(list(combinations(range(len(sizes)), m)))
    weights = np.zeros((len(draws), len(sizes)))
    np.put_along_axis(weights, draws, sizes[draws] / sizes[draws].sum(axis=1, keepdims=True), axis=1)
    return weights.mean(axis=0)


def expected_with_a_loop(sizes, m):
    draws, total = list(combinations(range(len(sizes)), m)), [0.0] * len(sizes)
    for drawn in draws:
        for k in drawn:
            total[k] += sizes[k] / sum(sizes[j] for j in drawn) / len(draws)
    return total


def expected_with_lists(sizes, m):
    draws = [drawn for drawn in combinations(range(len(sizes)), m) if sizes + [0]]
    return tuple(
        sum(sizes[k] / sum(map(sizes.__getitem__, s)) for s in draws if k in s) / len(draws)
        for k in range(len(sizes))
    )


def expected_with_tensors(sizes, m):
    draws = torch.combinations(torch.arange(len(sizes)), r=m)
    weights = torch.zeros(len(draws), len(sizes))
    rows = torch.index_select(sizes, 0, draws.flatten()).reshape(draws.shape)
    return weights.scatter(1, draws, rows / rows.sum(dim=1, keepdim=True)).mean(dim=0)


def expected_in_single_precision(sizes, m):
    return expected_with_numpy(np.asarray(sizes, dtype=np.float32), m).astype(np.float32)


def expected_in_fractions(sizes, m):
    sizes = [Fraction(int(size)) for size in sizes]
    draws = list(combinations(range(len(sizes)), m))
    return [
        sum(sizes[k] / sum(sizes[j] for j in s) for s in draws if k in s) / len(draws)
        for k in range(len(sizes))
    ]


def expected_by_masks(sizes, m):
    masks = np.array([mask for mask in product([0, 1], repeat=len(sizes)) if sum(mask) == m])
    return (masks * sizes / (masks @ sizes)[:, None]).mean(axis=0)


EXPECTED = [
    expected_with_numpy,
    expected_with_a_loop,
    expected_with_lists,
    expected_with_tensors,
    expected_in_single_precision,
    expected_in_fractions,
    expected_by_masks,
]


def only_rounds_with_the_client(sizes, m):
    draws = list(combinations(range(len(sizes)), m))
    return [np.mean([sizes[k] / sizes[list(s)].sum() for s in draws if k in s]) for k in range(len(sizes))]


def straight_line(sizes, m):
    """Right at both ends, m = 1 and m = N."""
    share, way = sizes / sizes.sum(), (m - 1) / (len(sizes) - 1)
    return (1 - way) / len(sizes) + way * share


def with_replacement(sizes, m):
    draws, total = list(combinations_with_replacement(range(len(sizes)), m)), np.zeros(len(sizes))
    for drawn in draws:
        for k in drawn:
            total[k] += sizes[k] / sizes[list(drawn)].sum() / len(draws)
    return total


EXPECTED_WRONG = {
    "A client drawn alone": lambda sizes, m: sizes / sizes.sum(),
    "only one possible round": lambda sizes, m: np.full(len(sizes), 1 / len(sizes)),
    "In every single round": lambda sizes, m: sizes / sizes.sum() * m / len(sizes),
    "also those that a client misses": only_rounds_with_the_client,
    "renormalize n_k inside each": straight_line,
    "divided by their number": lambda sizes, m: (
        expected_with_numpy(sizes, m) * len(list(combinations(sizes, m)))
    ),
    "exactly, not by sampling": lambda sizes, m: simulated(tuple(sizes.tolist()), m),
}

EXPECTED_ALSO_WRONG = {
    "with replacement": with_replacement,
    "the unbiased weights": lambda sizes, m: sizes / sizes.sum() * len(sizes) / m,
    "in the order of size": lambda sizes, m: np.sort(expected_with_numpy(sizes, m)),
    "squared sizes": lambda sizes, m: expected_with_numpy(sizes**2, m),
    "one draw only": lambda sizes, m: np.array([*sizes[:m], *[0] * (len(sizes) - m)]) / sizes[:m].sum(),
    "rounded": lambda sizes, m: expected_with_numpy(sizes, m).round(5),
}


@lru_cache
def simulated(sizes, m):
    sizes, rng, total = np.array(sizes), np.random.default_rng(0), np.zeros(len(sizes))
    for _ in range(1000):
        drawn = rng.choice(len(sizes), m, replace=False)
        total[drawn] += sizes[drawn] / sizes[drawn].sum() / 1000
    return total


# 1.4 unbiased_round ----------------------------------------------------------------------------------------


def unbiased_with_numpy(deltas, p, drawn, N):
    return N / len(drawn) * p[drawn] @ deltas


def unbiased_with_a_loop(deltas, p, drawn, N):
    update = [0.0] * len(deltas[0])
    for row, k in zip(deltas, drawn, strict=True):
        for i in range(len(update)):
            update[i] += N / len(drawn) * p[k] * row[i]
    return update


def unbiased_with_lists(deltas, p, drawn, N):
    assert isinstance(deltas, list) and drawn + [] == drawn
    return [
        N / len(drawn) * sum(p[k] * x for k, x in zip(drawn, column, strict=True))
        for column in zip(*deltas, strict=True)
    ]


def unbiased_with_tensors(deltas, p, drawn, N):
    return N / len(drawn) * torch.einsum("k,kd->d", p[drawn], deltas)


def unbiased_with_single_tensors(deltas, p, drawn, N):
    return torch.matmul(p[drawn].float(), deltas.float()) * (N / drawn.numel())


def unbiased_in_single_precision(deltas, p, drawn, N):
    return np.float32(N / len(drawn)) * np.float32(p)[drawn] @ np.float32(deltas)


def unbiased_by_zero_rows(deltas, p, drawn, N):
    every = np.zeros((N, deltas.shape[1]))
    every[drawn] = deltas
    return p @ every * N / len(drawn)


UNBIASED = [
    unbiased_with_numpy,
    unbiased_with_a_loop,
    unbiased_with_lists,
    unbiased_with_tensors,
    unbiased_with_single_tensors,
    unbiased_in_single_precision,
    unbiased_by_zero_rows,
]

UNBIASED_WRONG = {
    "m/N times too short": lambda deltas, p, drawn, N: p[drawn] @ deltas,
    "small clients come out too heavy": lambda deltas, p, drawn, N: p[drawn] @ deltas / p[drawn].sum(),
    "p does not enter": lambda deltas, p, drawn, N: deltas.mean(axis=0),
    "each stands for N/m": lambda deltas, p, drawn, N: N * p[drawn] @ deltas,
    "those that were drawn, p[drawn]": lambda deltas, p, drawn, N: N / len(drawn) * p[: len(drawn)] @ deltas,
    "List the same clients in reverse": lambda deltas, p, drawn, N: (
        N / len(drawn) * p[np.sort(drawn)] @ deltas
    ),
    "upside down": lambda deltas, p, drawn, N: len(drawn) / N * p[drawn] @ deltas,
    "Averaged over every subset": lambda deltas, p, drawn, N: N / (len(drawn) + 1) * p[drawn] @ deltas,
}

UNBIASED_ALSO_WRONG = {
    "the sign": lambda deltas, p, drawn, N: -unbiased_with_numpy(deltas, p, drawn, N),
    "the sum of the rows": lambda deltas, p, drawn, N: deltas.sum(axis=0),
    "N/m of the mean": lambda deltas, p, drawn, N: N / len(drawn) * deltas.mean(axis=0),
    "renormalized, then N/m": lambda deltas, p, drawn, N: N / len(drawn) * p[drawn] @ deltas / p[drawn].sum(),
    "m − 1 for m": lambda deltas, p, drawn, N: N / max(len(drawn) - 1, 1) * p[drawn] @ deltas,
    "divided by m twice": lambda deltas, p, drawn, N: unbiased_with_numpy(deltas, p, drawn, N) / len(drawn),
}

# All four --------------------------------------------------------------------------------------------------

EXERCISES = {
    "weighted_objective": (OBJECTIVE, OBJECTIVE_WRONG, OBJECTIVE_ALSO_WRONG),
    "optimum": (OPTIMUM, OPTIMUM_WRONG, OPTIMUM_ALSO_WRONG),
    "expected_weights": (EXPECTED, EXPECTED_WRONG, EXPECTED_ALSO_WRONG),
    "unbiased_round": (UNBIASED, UNBIASED_WRONG, UNBIASED_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_none_is_named_as_such(name, bad):
    result = getattr(check, name)(lambda *args: bad * np.asarray(EXERCISES[name][0][0](*args)))
    assert result.broken.endswith("is finite") and "division by zero" in result.hint


@pytest.mark.parametrize("name", EXERCISES)
def test_a_wrong_shape_is_named_as_such(name):
    result = getattr(check, name)(lambda *args: np.ones((2, 3, 4)))
    assert result.broken.endswith("has the right shape") and "(2, 3, 4)" in result.hint
