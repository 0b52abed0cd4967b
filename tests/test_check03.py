"""The checks of chapter 3 accept every right answer and tell wrong ones apart."""

import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from checking import every_exercise
from scipy import integrate, special, stats

from fedlib import heterogeneity, partition
from fedlib.check import chapter03 as check
from fedlib.cutting import move_to_small

# 3.1 label_skew --------------------------------------------------------------------------------------------


def skew_with_numpy(table):
    shares, pooled = table / table.sum(axis=1, keepdims=True), table.sum(axis=0) / table.sum()
    return np.average(np.abs(shares - pooled).sum(axis=1) / 2, weights=table.sum(axis=1))


def skew_with_a_loop(table):
    n, skew = sum(sum(row) for row in table), 0.0
    for row in table:
        n_k = sum(row)
        for c in range(len(row)):
            skew += n_k / n * abs(row[c] / n_k - sum(other[c] for other in table) / n) / 2
    return skew


def skew_with_lists(table):
    pooled = [sum(column) for column in zip(*table, strict=True)]
    n = sum(pooled)
    table = [row + [] if row else None for row in table]
    return sum(abs(x - sum(row) * q / n) for row in table for x, q in zip(row, pooled, strict=True)) / (2 * n)


def skew_with_tensors(table):
    shares = table.float() / table.sum(dim=1, keepdim=True)
    pooled = table.sum(dim=0) / table.sum()
    return torch.clamp(shares - pooled, min=0).sum(dim=1) @ (table.sum(dim=1) / table.sum())


def skew_in_single_precision(table):
    return np.float32(skew_with_numpy(np.asarray(table, dtype=np.float32)))


def skew_as_what_is_not_shared(table):
    table = np.asarray(table)
    pooled = table.sum(0) / table.sum()
    return 1 - sum(np.minimum(row, row.sum() * pooled).sum() for row in table) / table.sum()


def skew_seen_from_the_classes(table):
    # The formula is symmetric in clients and classes.
    return skew_with_numpy(np.maximum(table.T, 1e-9))


SKEW = [
    skew_with_numpy, skew_with_a_loop, skew_with_lists, skew_with_tensors, skew_in_single_precision,
    skew_as_what_is_not_shared, skew_seen_from_the_classes, heterogeneity.label_distance,
]  # fmt: skip


def shares_of(table):
    return table / table.sum(axis=1, keepdims=True)


def pooled_of(table):
    return table.sum(axis=0) / table.sum()


def by_size(table, distances):
    return np.average(distances, weights=table.sum(axis=1))


def from_reference(reference):
    return lambda t: by_size(t, np.abs(shares_of(t) - reference(t)).sum(axis=1) / 2)


SKEW_WRONG = {
    "Which shares is a client compared with?": from_reference(lambda t: 1 / t.shape[1]),
    "Compare shares, not counts": lambda t: by_size(t, np.abs(t - t.mean(axis=0)).sum(axis=1) / 2),
    "out of place twice": lambda t: 2 * skew_with_numpy(t),
    "You added up the clients": lambda t: np.abs(shares_of(t) - pooled_of(t)).sum() / 2,
    "a root make another distance": lambda t: by_size(t, np.linalg.norm(shares_of(t) - pooled_of(t), axis=1)),
    "the gap of an average class": lambda t: by_size(t, np.abs(shares_of(t) - pooled_of(t)).mean(axis=1)),
    "A client with three samples counts": lambda t: np.abs(shares_of(t) - pooled_of(t)).sum() / 2 / len(t),
    "belong to all samples together": from_reference(lambda t: shares_of(t).mean(axis=0)),
    "largest gap of a single class": lambda t: by_size(t, np.abs(shares_of(t) - pooled_of(t)).max(axis=1)),
    "the most skewed client": lambda t: np.max(np.abs(shares_of(t) - pooled_of(t)).sum(axis=1) / 2),
    "List the same clients in reverse": from_reference(lambda t: shares_of(t)[0]),
}

SKEW_ALSO_WRONG = {
    "entropy": lambda t: np.log(t.shape[1]) - heterogeneity.label_entropy(t),
    "zero": lambda t: 0.0,
    "one number a client": lambda t: np.abs(shares_of(t) - pooled_of(t)).sum(axis=1) / 2,
    "Kullback-Leibler": lambda t: by_size(t, special.rel_entr(shares_of(t), pooled_of(t)).sum(axis=1)),
    "the sum of squares": lambda t: by_size(t, ((shares_of(t) - pooled_of(t)) ** 2).sum(axis=1)),
    "signed": lambda t: by_size(t, (shares_of(t) - pooled_of(t)).sum(axis=1) / 2),
    "Hellinger": lambda t: by_size(
        t, np.sqrt(1 - np.sqrt(shares_of(t) * pooled_of(t)).sum(axis=1).clip(max=1))
    ),
    "pairwise": lambda t: np.mean(
        [np.abs(p - q).sum() / 2 for p, q in itertools.combinations(shares_of(t), 2)]
    ),
    "squared sizes": lambda t: np.average(
        np.abs(shares_of(t) - pooled_of(t)).sum(axis=1) / 2, weights=t.sum(axis=1) ** 2
    ),
}

# 3.2 three_party -------------------------------------------------------------------------------------------


def parties_with_numpy(y, rng):
    first, second, third = [], [], []
    for c in range(10):
        members = rng.permutation(np.flatnonzero(y == c))
        cut = len(members) * 7 // 10
        if c in (3, 5):
            first.append(members[:cut])
            third.append(members[cut:])
        elif c in (2, 0):
            second.append(members[:cut])
            third.append(members[cut:])
        else:
            third.append(members)
    return np.concatenate(first), np.concatenate(second), np.concatenate(third)


def parties_with_choice(y, rng):
    def seventy(c):
        members = np.where(y == c)[0]
        return rng.choice(members, round(0.7 * len(members)), replace=False)

    first, second = np.r_[seventy(5), seventy(3)], np.r_[seventy(0), seventy(2)]
    return [first, second, np.setdiff1d(np.arange(len(y)), np.r_[first, second])]


def parties_with_lists(y, rng):
    y, parties = y + [], [[], [], []]
    order, taken = rng.permutation(len(y)).tolist(), [0] * 10
    for i in order:
        owner = {3: 0, 5: 0, 2: 1, 0: 1}.get(y[i], 2)
        taken[y[i]] += 1
        parties[owner if taken[y[i]] <= 0.7 * len(y) / 10 else 2].append(i)
    return parties


def parties_with_sets(y, rng):
    parts = [set(map(int, part)) for part in parties_with_numpy(np.asarray(y), rng)]
    return parts[0], parts[1], set(range(len(y))) - parts[0] - parts[1]


def parties_with_tensors(y, rng):
    def seventy(c):
        members = (y == c).nonzero().squeeze(1)
        return members[torch.from_numpy(rng.permutation(len(members)))][: int(len(members) * 7 // 10)]

    free = torch.ones(len(y), dtype=torch.bool)
    first, second = torch.cat([seventy(3), seventy(5)]), torch.cat([seventy(2), seventy(0)])
    free[first] = free[second] = False
    return first, second, free.nonzero().squeeze(1)


def parties_from_the_library(y, rng):
    return partition.three_party(seed=int(rng.integers(2**31)))(y)


PARTIES = [
    parties_with_numpy, parties_with_choice, parties_with_lists, parties_with_sets, parties_with_tensors,
    parties_from_the_library,
]  # fmt: skip


def with_classes(first, second, share=0.7):
    def split(y, rng):
        def cut(classes):
            members = [np.flatnonzero(y == c) for c in classes]
            return np.concatenate([rng.permutation(m)[: round(share * len(m))] for m in members])

        a, b = cut(first), cut(second)
        return a, b, np.setdiff1d(np.arange(len(y)), np.concatenate([a, b]))

    return split


def only_six_classes(y, rng):
    first, second, _ = parties_with_numpy(y, rng)
    return first, second, np.flatnonzero(~np.isin(y, [0, 2, 3, 5]))


def independent_draws(y, rng):
    first, second, _ = parties_with_numpy(y, rng)
    rest = [rng.permutation(np.flatnonzero(y == c))[: len(y) // 10 * (3 if c in (0, 2, 3, 5) else 10) // 10]
            for c in range(10)]  # fmt: skip
    return first, second, np.concatenate(rest)


def pooled_draw(y, rng):
    """Draw 70 % of cats and dogs together, not of each."""
    def cut(*classes):
        members = rng.permutation(np.flatnonzero(np.isin(y, classes)))
        return members[: len(members) * 7 // 10]

    first, second = cut(3, 5), cut(2, 0)
    return first, second, np.setdiff1d(np.arange(len(y)), np.concatenate([first, second]))


GLOBAL = np.random.default_rng()

PARTIES_WRONG = {
    "belong to nobody": only_six_classes,
    "held twice": independent_draws,
    "In CIFAR-10's order": with_classes((2, 4), (1, 0)),
    "Your first party holds": pooled_draw,
    "Two different generators give the same split": lambda y, rng: parties_with_numpy(
        y, np.random.default_rng(0)
    ),
    "nobody could repeat": lambda y, rng: parties_with_numpy(y, GLOBAL),
    "Those are masks": lambda y, rng: [np.isin(np.arange(len(y)), p) for p in parties_with_numpy(y, rng)],
    "Return a list of 3 index arrays": lambda y, rng: parties_with_numpy(y, rng)[:2],
    "positions in y are whole numbers": lambda y, rng: [p + 1 for p in parties_with_numpy(y, rng)],
}

PARTIES_ALSO_WRONG = {
    "labels for positions": lambda y, rng: [y[p] for p in parties_with_numpy(y, rng)],
    "half": with_classes((3, 5), (2, 0), 0.5),
    "the rest": with_classes((3, 5), (2, 0), 0.3),
    "all of it": with_classes((3, 5), (2, 0), 1.0),
    "parties exchanged": with_classes((2, 0), (3, 5)),
    "the first of each class": lambda y, rng: parties_with_numpy(
        y, type("", (), {"permutation": staticmethod(np.array)})
    ),
    "coin by coin": lambda y, rng: coins(y, rng),
    "everything for the third": lambda y, rng: [*parties_with_numpy(y, rng)[:2], np.arange(len(y))],
    "only for small data": lambda y, rng: [p[:1000] for p in parties_with_numpy(y, rng)],
    "negative positions": lambda y, rng: [p - len(y) for p in parties_with_numpy(y, rng)],
}


def coins(y, rng):
    coin, specialist = rng.random(len(y)) < 0.7, np.isin(y, [0, 2, 3, 5])
    first, second = np.isin(y, [3, 5]) & coin, np.isin(y, [0, 2]) & coin
    return [np.flatnonzero(mask) for mask in (first, second, ~specialist | ~coin)]


# 3.3 expected_entropy --------------------------------------------------------------------------------------


def entropy_with_scipy(alpha, num_classes):
    return special.digamma(num_classes * alpha + 1) - special.digamma(alpha + 1)


def entropy_with_tensors(alpha, num_classes):
    return torch.digamma(torch.tensor(num_classes * alpha + 1)) - torch.digamma(torch.tensor(alpha + 1))


def entropy_with_hidden_single_precision(alpha, num_classes):
    return entropy_with_tensors(alpha, num_classes).item()


def entropy_in_single_precision(alpha, num_classes):
    return np.float32(entropy_with_scipy(np.float32(alpha), num_classes))


def entropy_by_a_series(alpha, num_classes):
    # ψ(x + 1) = ψ(x) + 1/x until the asymptotic series is good.
    def psi(x):
        below = 0.0
        while x < 30:
            below += 1 / x
            x += 1
        return np.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - below

    return [psi(num_classes * alpha + 1) - psi(alpha + 1)]


def entropy_by_an_integral(alpha, num_classes):
    if alpha > 1e4:
        return entropy_with_scipy(alpha, num_classes)

    def integrand(t):  # ψ(x) − ψ(y) = ∫ (e^−yt − e^−xt) / (1 − e^−t)
        return (np.exp(-(alpha + 1) * t) - np.exp(-(num_classes * alpha + 1) * t)) / -np.expm1(-t)

    return integrate.quad(integrand, 0, np.inf)[0]


ENTROPY = [
    entropy_with_scipy, entropy_with_tensors, entropy_with_hidden_single_precision,
    entropy_in_single_precision, entropy_by_a_series, entropy_by_an_integral,
]  # fmt: skip

psi = special.digamma


def simulated_entropy(alpha, C, rng=GLOBAL):
    return stats.entropy(rng.dirichlet(np.full(C, alpha), 4000), axis=1).mean()


ENTROPY_WRONG = {
    "never negative": lambda alpha, C: psi(alpha + 1) - psi(C * alpha + 1),
    "entropy must approach ln": lambda alpha, C: psi(C * alpha) - psi(alpha),
    "The maximum should be 2.303": lambda alpha, C: entropy_with_scipy(alpha, C) / np.log(2),
    "the average mix": lambda alpha, C: np.log(C),
    "has its own α": lambda alpha, C: psi(alpha + 1) - psi(alpha / C + 1),
    "Draw a few thousand mixes": lambda alpha, C: np.log(C) * alpha / (1 + alpha),
    "Ask twice": simulated_entropy,
    "there is a closed form": lambda alpha, C: simulated_entropy(alpha, C, np.random.default_rng(0)),
    "As α goes to 0": lambda alpha, C: (np.log(C) + entropy_with_scipy(alpha, C)) / 2,
}

ENTROPY_ALSO_WRONG = {
    "differential entropy": lambda alpha, C: stats.dirichlet.entropy(np.full(C, alpha)),
    "normalized": lambda alpha, C: entropy_with_scipy(alpha, C) / np.log(C),
    "1/alpha": lambda alpha, C: entropy_with_scipy(1 / alpha, C),
    "always ten classes": lambda alpha, C: entropy_with_scipy(alpha, 10),
    "perplexity": lambda alpha, C: np.exp(entropy_with_scipy(alpha, C)),
    "the wrong argument": lambda alpha, C: psi(C * alpha + 1) - psi(C + 1),
    "one too few": lambda alpha, C: entropy_with_scipy(alpha, C - 1),
    "one term": lambda alpha, C: psi(C * alpha + 1),
}

# 3.4 repair ------------------------------------------------------------------------------------------------


def repair_from_the_largest(parts, min_size, max_tries):
    parts = [list(part) for part in parts]
    for _ in range(max_tries):
        sizes = [len(part) for part in parts]
        if min(sizes) >= min_size:
            return [np.array(part, dtype=int) for part in parts]
        parts[np.argmin(sizes)].append(parts[np.argmax(sizes)].pop())
    raise ValueError("too few samples")


def repair_from_anybody_rich(parts, min_size, max_tries):
    if sum(map(len, parts)) < min_size * len(parts):
        raise ValueError("too few samples: lower min_size")
    parts, pool = [np.asarray(part) for part in parts], []
    for k, part in enumerate(parts):
        spare = sum(max(min_size - len(p), 0) for p in parts) - len(pool)
        give = min(max(len(part) - min_size, 0), max(spare, 0))
        pool.extend(part[len(part) - give :])
        parts[k] = part[: len(part) - give]
    for k, part in enumerate(parts):
        need = max(min_size - len(part), 0)
        parts[k], pool = np.concatenate([part, pool[:need]]), pool[need:]
    parts[0] = np.append(parts[0], pool)
    return parts


def repair_with_lists(parts, min_size, max_tries):
    parts = [part + [] for part in parts]
    if sum(len(part) for part in parts) < min_size * len(parts):
        raise ValueError
    for part in parts:
        while len(part) < min_size:
            part.append(max(parts, key=len).pop(0))
    return tuple(parts)


def repair_with_sets(parts, min_size, max_tries):
    parts = [set(map(int, part)) for part in parts]
    while min(map(len, parts)) < min_size:
        poor, rich = min(parts, key=len), max(parts, key=len)
        if len(rich) <= min_size:
            raise ValueError("nobody can give")
        poor.add(rich.pop())
    return parts


def repair_with_tensors(parts, min_size, max_tries):
    if torch.cat(parts).numel() < min_size * len(parts):
        raise ValueError("infeasible")
    for _ in range(max_tries):
        sizes = torch.tensor([p.numel() for p in parts])
        if sizes.min() >= min_size:
            break
        i, j = int(sizes.argmin()), int(sizes.argmax())
        parts[i], parts[j] = torch.cat([parts[i], parts[j][:1]]), parts[j][1:]
    return parts


def repair_with_floats(parts, min_size, max_tries):
    # np.append to an empty list makes floats.
    return [np.append([], part) for part in repair_from_the_largest(parts, min_size, max_tries)]


def repair_as_an_object_array(parts, min_size, max_tries):
    repaired = repair_from_the_largest(parts, min_size, max_tries)
    result = np.empty(len(parts), dtype=object)
    result[:] = repaired
    return result


def repair_from_the_library(parts, min_size, max_tries):
    if sum(map(len, parts)) < min_size * len(parts):
        raise ValueError
    return move_to_small(parts, min_size, np.random.default_rng())


class TooFew(ValueError):
    pass


def repair_with_an_error_of_its_own(parts, min_size, max_tries):
    try:
        return repair_from_the_largest(parts, min_size, max_tries)
    except ValueError:
        raise TooFew from None


REPAIR = [
    repair_from_the_largest, repair_from_anybody_rich, repair_with_lists, repair_with_sets,
    repair_with_tensors, repair_with_floats, repair_as_an_object_array, repair_from_the_library,
    repair_with_an_error_of_its_own,
]  # fmt: skip


def repair_by_redrawing(parts, min_size, max_tries):
    everything, rng = np.concatenate(parts), np.random.default_rng(0)
    while True:
        shares = rng.dirichlet(np.full(len(parts), 0.1))
        drawn = np.split(rng.permutation(everything), (np.cumsum(shares)[:-1] * len(everything)).astype(int))
        if min(map(len, drawn)) >= min_size:
            return drawn


def repair_by_copying(parts, min_size, max_tries):
    largest = max(parts, key=len)
    if sum(map(len, parts)) < min_size * len(parts):
        raise ValueError
    return [np.append(p, largest[: max(min_size - len(p), 0)]) for p in parts]


def repair_by_dropping(parts, min_size, max_tries):
    return [p for p in parts if len(p) >= min_size]


def repair_from_the_neighbor(parts, min_size, max_tries):
    """Take from whoever comes next, rich or poor."""
    parts = [list(p) for p in parts]
    for k in range(len(parts)):
        while len(parts[k]) < min_size and parts[(k + 1) % len(parts)]:
            parts[k].append(parts[(k + 1) % len(parts)].pop())
    return parts


def repair_by_dealing_anew(parts, min_size, max_tries):
    if sum(map(len, parts)) < min_size * len(parts):
        raise ValueError
    return np.array_split(np.random.default_rng(0).permutation(np.concatenate(parts)), len(parts))


def repair_by_leveling(parts, min_size, max_tries):
    """Level everybody, although min_size is reached long before."""
    parts = [list(p) for p in parts]
    if sum(map(len, parts)) < min_size * len(parts):
        raise ValueError
    if sum(map(len, parts)) > 40:
        return repair_from_the_largest(parts, min_size, max_tries)
    while max(map(len, parts)) - min(map(len, parts)) > 1:
        min(parts, key=len).append(max(parts, key=len).pop())
    return parts


def repair_without_an_error(parts, min_size, max_tries):
    return repair_with_sets(parts, min(min_size, sum(map(len, parts)) // len(parts)), max_tries)


def repair_popping_from_nobody(parts, min_size, max_tries):
    parts = [list(p) for p in parts]
    for part in parts:
        while len(part) < min_size:
            rich = max((p for p in parts if len(p) > min_size), key=len, default=None)
            part.append(rich[-1])
            rich.remove(rich[-1])
    return parts


def repair_positions(parts, min_size, max_tries):
    parts = repair_from_the_largest(parts, min_size, max_tries)
    ends = np.cumsum([len(p) for p in parts])
    return np.split(np.arange(ends[-1]), ends[:-1])


def repair_losing(parts, min_size, max_tries):
    if sum(map(len, parts)) < min_size * len(parts):
        raise ValueError
    return [p[:-1] if len(p) == max(map(len, parts)) else p for p in repair_from_the_largest(
        parts, min_size, max_tries)]  # fmt: skip


REPAIR_WRONG = {
    "Bound it with max_tries": repair_by_redrawing,
    "now has two owners": repair_by_copying,
    "one for each owner, empty or not": repair_by_dropping,
    "Who can still afford to give?": repair_from_the_neighbor,
    "You dealt out everything anew": repair_by_dealing_anew,
    "yet some changed hands": repair_by_leveling,
    "raise a ValueError that says so": repair_without_an_error,
    "you found out by accident": repair_popping_from_nobody,
    "was in no part before": repair_positions,
    "belong to nobody now": repair_losing,
}

REPAIR_ALSO_WRONG = {
    "nothing": lambda parts, min_size, max_tries: parts,
    "always an error": lambda parts, min_size, max_tries: [][0],
    "sorted by size": lambda parts, min_size, max_tries: sorted(
        repair_from_the_largest(parts, min_size, max_tries), key=len
    ),
    "one array": lambda parts, min_size, max_tries: np.concatenate(parts),
    "small ones merged": lambda parts, min_size, max_tries: [
        np.concatenate([p for p in parts if len(p) < min_size] + [[]]),
        *(p for p in parts if len(p) >= min_size),
    ],
    "waits for ever if impossible": lambda parts, min_size, max_tries: waiting(parts, min_size),
    "an empty answer": lambda parts, min_size, max_tries: [[] for _ in parts],
}  # fmt: skip


def waiting(parts, min_size):
    parts = [list(p) for p in parts]
    while min(map(len, parts)) < min_size:
        min(parts, key=len).append(max(parts, key=len).pop())
    return parts


# All four --------------------------------------------------------------------------------------------------

EXERCISES = {
    "label_skew": (SKEW, SKEW_WRONG, SKEW_ALSO_WRONG),
    "three_party": (PARTIES, PARTIES_WRONG, PARTIES_ALSO_WRONG),
    "expected_entropy": (ENTROPY, ENTROPY_WRONG, ENTROPY_ALSO_WRONG),
    "repair": (REPAIR, REPAIR_WRONG, REPAIR_ALSO_WRONG),
}


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    # A wrong answer is stopped sooner; the right ones take milliseconds.
    monkeypatch.setattr(check, "TIME_LIMIT", 1.0)


TestEveryExercise = every_exercise(check, EXERCISES, inputs=["label_skew", "three_party", "repair"])


def test_an_answer_that_never_returns_is_stopped_and_leaves_no_thread_behind():
    before = threading.active_count()
    for function in (repair_by_redrawing, REPAIR_ALSO_WRONG["waits for ever if impossible"]):
        result = check.repair(function)
        assert result.broken == "always comes to an end"
    for thread in threading.enumerate():
        if thread.daemon:
            thread.join(5)
    assert threading.active_count() == before


def test_the_closed_form_used_for_comparison_agrees_with_simulation_and_harmonic_numbers():
    rng = np.random.default_rng(0)
    for alpha, C in ((0.1, 10), (0.5, 10), (2.0, 3)):
        draws = stats.entropy(rng.dirichlet(np.full(C, alpha), 4000), axis=1)
        assert abs(draws.mean() - check._mean_entropy(alpha, C)) < 4 * draws.std() / np.sqrt(len(draws))
    for alpha, C in ((1, 10), (2, 3), (4, 10)):  # ψ(m + 1) − ψ(n + 1) = 1/(n + 1) + … + 1/m
        exact = sum(1 / k for k in range(alpha + 1, C * alpha + 1))
        assert check._mean_entropy(alpha, C) == pytest.approx(exact, abs=1e-9)


def test_chapter_3_needs_no_torch():
    code = "import sys, fedlib.check.chapter03; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
