"""Checks for chapter 3, non-IID data."""

import ctypes
import threading

import numpy as np
from scipy.integrate import quad

from fedlib.check.core import exercise
from fedlib.rng import stream

TIME_LIMIT = 2.0  # seconds for an answer that a computer gives in a few milliseconds


@exercise("Exercise 3.1, label_skew")
def label_skew(answer):
    """``label_skew(label_table [N, C]) -> float``, the size-weighted mean total variation distance."""
    rng = stream(0, "check", 301)

    def f(table):
        return answer.array(answer(table), ())

    for C in (10, 4):
        sizes, classes = rng.permutation([1, 2, 5, 9]), rng.permutation(np.arange(1, C + 1))
        proportional, one_class = np.outer(sizes, classes), 30 * np.eye(C, dtype=int)
        zero = f(proportional)
        answer.expect(
            answer.close(zero, 0.0),
            "proportional clients have skew 0, also when the classes are imbalanced",
            f"Proportional split of imbalanced classes: nothing is skewed, yet you report {zero:.4g}. "
            "Which shares is a client compared with?"
            if answer.close(zero, _distances(proportional, np.full(C, 1 / C)).mean())
            else f"Every client mirrors the whole, yet you report {zero:.4g}. Compare shares, not counts.",
        )
        alone = f(one_class)
        usual = {
            "You count every sample that is out of place twice: once in the class where it is too many and "
            "once in the class where it is missing.": 2 - 2 / C,
            "You added up the clients. The skew lies between 0 and 1, however many clients there are.": C - 1,
            "Squares and a root make another distance. Here every gap counts as it is.": np.sqrt(1 - 1 / C),
            "You report the gap of an average class. All classes make the distance.": (2 - 2 / C) / C,
        }
        hint = next(
            (text for text, wrong in usual.items() if answer.close(alone, wrong)),
            f"With {C} balanced classes and one class a client, a share of 1 − 1/{C} of each client is out "
            f"of place. You report {alone:.4g}.",
        )
        answer.expect(answer.close(alone, 1 - 1 / C), "one class a client gives 1 − 1/C", hint)
        # Two small clients beside two large ones, and a class that nobody owns.
        owned = np.arange(C) != 1
        rows = [rng.integers(20, 90, C), rng.integers(0, 40, C), *rng.multinomial(3, owned / owned.sum(), 2)]
        table = np.array(rows) * owned
        value = f(table)
        answer.expect(
            answer.close(f(table[::-1].copy()), value),
            "the order of the clients is irrelevant",
            "List the same clients in reverse: your value changed. Does one of them serve as the reference?",
        )
        sizes, pooled = table.sum(axis=1), table.sum(axis=0) / table.sum()
        shares, weights, distances = table / sizes[:, None], sizes / sizes.sum(), _distances(table, pooled)
        usual = {
            "A client with three samples counts as much as the largest.": distances.mean(),
            "The pooled shares belong to all samples together. A mean of the clients' shares gives three "
            "samples as much say as the largest client.": weights @ _distances(table, shares.mean(axis=0)),
            "You report the largest gap of a single class. The distance adds up all classes: how much of the "
            "client is out of place?": weights @ np.abs(shares - pooled).max(axis=1),
            "That is the most skewed client. Average over clients, by size.": distances.max(),
        }
        hint = next(
            (text for text, wrong in usual.items() if answer.close(value, wrong)),
            f"Clients of {sizes.tolist()} samples lie {np.round(distances, 3).tolist()} from the pooled "
            f"shares. Their mean by size is not your {value:.4g}.",
        )
        answer.expect(answer.close(value, weights @ distances), "clients count by their size", hint)


def _distances(table, reference):
    # One minus what two distributions have in common: the same number as half the sum of the gaps.
    return np.array([1 - np.minimum(row / row.sum(), reference).sum() for row in table])


@exercise("Exercise 3.3, three_party")
def three_party(answer):
    """``three_party(y [n], rng) -> three index arrays``, two specialists and the rest; CIFAR-10's order."""
    cat, dog, bird, airplane = 3, 5, 2, 0
    shuffle = stream(0, "check", 302)
    for per_class in (100, 5000):
        y = shuffle.permutation(np.repeat(np.arange(10), per_class))
        n, most = len(y), 7 * per_class // 10

        def split(seed):
            return _index_arrays(answer, answer(y, stream(seed, "check", 302, per_class)), 3)  # noqa: B023

        parts = split(1)
        held = np.concatenate(parts)
        masks = all(len(part) == n for part in parts) and set(held) <= {0.0, 1.0}
        answer.expect(
            not masks and np.array_equal(held, np.round(held)) and np.all((held >= 0) & (held < n)),
            "holds positions in y",
            "Those are masks. Return the positions where they are true."
            if masks
            else f"Your indices run from {held.min():g} to {held.max():g}; positions in y are whole numbers "
            f"from 0 to {n - 1}.",
        )
        parts = [part.astype(int) for part in parts]
        owners = np.bincount(np.concatenate(parts), minlength=n)
        answer.expect(
            owners.max() == 1,
            "no image has two owners",
            f"Some images are held twice, {np.sum(owners > 1):,} in all. What one party has drawn is no "
            "longer there for the next.",
        )
        nobody = np.flatnonzero(owners == 0)
        answer.expect(
            len(nobody) == 0,
            "every image has an owner",
            f"{len(nobody):,} images belong to nobody; their classes are {np.unique(y[nobody]).tolist()}. "
            "The third party gets all that is left, also of those four classes.",
        )
        table = np.array([np.bincount(y[part], minlength=10) for part in parts])
        classes = [np.flatnonzero(row).tolist() for row in table[:2]]
        answer.expect(
            classes == [sorted((cat, dog)), sorted((bird, airplane))],
            "the first party has cats and dogs, the second birds and airplanes",
            f"Your first party holds classes {classes[0]} and your second {classes[1]}. In CIFAR-10's order "
            "airplane is 0, automobile 1, bird 2, cat 3, deer 4, dog 5.",
        )
        exact = [table[0, [cat, dog]].tolist(), table[1, [bird, airplane]].tolist()]
        answer.expect(
            exact == [[most, most]] * 2,
            "70 % of each of the four classes, so 7,000, 7,000 and 36,000 of 50,000 images",
            f"70 % of a class of {per_class:,} are {most:,}. Your first party holds {exact[0][0]:,} cats and "
            f"{exact[0][1]:,} dogs, your second {exact[1][0]:,} birds and {exact[1][1]:,} airplanes.",
        )
        if per_class == 100:
            again, other = split(1), split(2)
            answer.expect(
                all(_same(a, b) for a, b in zip(parts, again, strict=True)),
                "equal generators give equal splits",
                "The same generator gave two different splits: nobody could repeat your experiment. Draw "
                "from rng and from nothing else.",
            )
            answer.expect(
                not any(_same(a, b) for a, b in zip(parts, other, strict=True)),
                "another generator gives another split",
                "Two different generators give the same split. Which 70 % a party gets is drawn at random, "
                "from rng.",
            )


def _same(a, b):
    return np.array_equal(np.sort(a), np.sort(b))


def _index_arrays(answer, value, count):
    """Return a result as ``count`` float arrays, whatever containers they come in."""
    try:
        parts = [list(part) if isinstance(part, (set, frozenset)) else part for part in value]
        sizes = [len(part) for part in parts]
    except TypeError:
        parts, sizes = None, []
    got = f"{len(sizes)} of them" if sizes else f"{type(value).__name__}"
    answer.expect(
        len(sizes) == count,
        f"returns {count} index arrays" if count == 3 else "returns one index array a client",
        f"Return a list of {count} index arrays, one for each owner, empty or not; got {got}.",
    )
    return [answer.array(part, (size,), "an index array") for part, size in zip(parts, sizes, strict=True)]


@exercise("Exercise 3.2, expected_entropy")
def expected_entropy(answer):
    """``expected_entropy(alpha, num_classes) -> float``, in nats, of a class mix drawn from Dir(α, …, α)."""
    for C in (10, 3):
        alphas = (0.1, 0.5, 1.0, 2.0, 4.0)

        def h(alpha):
            return answer.array(answer(alpha, C), ())  # noqa: B023

        values = np.array([h(alpha) for alpha in alphas])
        answer.expect(
            h(alphas[0]) == values[0],
            "the same alpha gives the same number",
            "Ask twice and you answer twice differently. The expectation is one number, without any chance "
            "in it.",
        )
        low = int(values.argmin())
        answer.expect(
            values[low] >= 0,
            "never negative",
            f"For α = {alphas[low]:g} you return {values[low]:.4g}. The entropy of shares is never negative: "
            "look at the order of the terms, and do not take the entropy of a density.",
        )
        answer.expect(
            values[-1] - values[0] > 1e-3,
            "grows with alpha",
            f"You return {values[0]:.4g} for every α. That is the entropy of the average mix; wanted is the "
            "average entropy of the mixes."
            if np.ptp(values) < 1e-3
            else f"Large α means nearly equal shares: the entropy must approach ln {C}. Yours falls, from "
            f"{values[0]:.4g} at α = {alphas[0]} to {values[-1]:.4g} at α = {alphas[-1]}.",
        )
        top = h(1e5)
        answer.expect(
            abs(top - np.log(C)) < 1e-3,
            "tends to ln C",
            f"The maximum should be {np.log(C):.3f}, the natural logarithm of {C}; yours is {top:.3f}.",
        )
        bottom = h(1e-5)
        answer.expect(
            abs(bottom) < 1e-3,
            "vanishes with alpha",
            "As α goes to 0 each client has a single class and no entropy. For α = 0.00001 you return "
            f"{bottom:.4g}.",
        )
        for alpha, value in zip(alphas, values, strict=True):
            exact = _mean_entropy(alpha, C)
            hint = (
                f"Draw a few thousand mixes with `rng.dirichlet([{alpha:g}] * {C}, 5000)`: their mean "
                f"entropy is about {exact:.2f}, yours is {value:.4g}."
            )
            if answer.close(value, _mean_entropy(alpha / C, C)):
                hint = f"You treat α as the sum over the classes. Here each of the {C} classes has its own α."
            elif abs(value - exact) < 0.02:
                hint = (
                    f"Near, but not exact at α = {alpha:g}: {abs(value - exact):.1e} off. A simulation only "
                    "comes near; there is a closed form."
                )
            answer.expect(answer.close(value, exact), "is the mean over all mixes", hint)


def _mean_entropy(alpha, num_classes):
    """Integrate −C ∫ p ln p over the density of a single share, Beta(α, (C − 1) α)."""
    rest = (num_classes - 1) * alpha
    exponents = (alpha, rest - 1)
    below = quad(lambda p: 1.0, 0, 1, weight="alg", wvar=(alpha - 1, rest - 1))[0]
    return -num_classes * quad(lambda p: 1.0, 0, 1, weight="alg-loga", wvar=exponents)[0] / below


@exercise("Exercise 3.4, repair")
def repair(answer):
    """``repair(parts: list of index arrays, min_size, max_tries) -> parts``, or ValueError if impossible."""
    rng = stream(0, "check", 304)
    # The first case has a single solution for the sizes, which no number of redraws will meet.
    skewed = rng.multinomial(60, rng.dirichlet(np.full(12, 0.5)))
    for sizes, min_size in ((skewed, 5), ((1, 0, 30, 12, 7), 5), ((150, 100, 148, 2), 6)):
        before, tries = _parts(rng, sizes), 2 * sum(sizes)
        after = _repaired(answer, before, min_size, tries)
        poorest = min(range(len(sizes)), key=lambda k: len(after[k]))  # noqa: B023
        answer.expect(
            len(after[poorest]) >= min_size,
            "every client reaches min_size, also when the samples just suffice",
            f"Clients of {list(map(int, sizes))} samples, min_size {min_size}: afterwards client {poorest} "
            f"has only {len(after[poorest])}. Who can still afford to give?",
        )
        old, new = _owners(before), _owners(after)
        answer.expect(
            sum(old[s] != new[s] for s in old) <= sum(sizes) // 2 or min_size * len(sizes) > sum(sizes) // 2,
            "most samples stay where they are",
            "You dealt out everything anew: the skew that was drawn is gone. Move only what is missing, and "
            "leave the clients in their order.",
        )
    fine = _parts(rng, (9, 4, 15, 6))
    answer.expect(
        _owners(_repaired(answer, fine, 4, 68)) == _owners(fine),
        "nothing moves if nobody is too small",
        "Everybody had enough samples here, yet some changed hands.",
    )
    for sizes, min_size in (((0, 2, 9, 1), 4), ((2, 1), 50)):
        before = _parts(rng, sizes)
        prepared = answer._prepare((before, min_size, 2 * sum(sizes)))
        value, error = _within_limit(answer, lambda: answer.function(*prepared))  # noqa: B023
        what = f"{len(sizes)} clients cannot have {min_size} samples each when there are {sum(sizes)} in all"
        answer.expect(
            error is not None,
            "an infeasible min_size raises ValueError",
            f"You returned something although {what}: raise a ValueError that says so.",
        )
        answer.expect(
            isinstance(error, ValueError),
            "an infeasible min_size raises ValueError",
            f"That {what} you found out by accident, with {type(error).__name__}: {error}. Raise a "
            "ValueError on purpose, which tells the caller what to change.",
        )


def _parts(rng, sizes):
    samples = rng.choice(10 * sum(sizes), sum(sizes), replace=False)
    return [np.sort(part) for part in np.split(samples, np.cumsum(sizes)[:-1])]


def _owners(parts):
    return {int(sample): k for k, part in enumerate(parts) for sample in part}


def _repaired(answer, before, min_size, max_tries):
    """Return the repaired parts, after it is clear that they hold the same samples."""
    value, error = _within_limit(answer, lambda: answer(before, min_size, max_tries))
    if error is not None:
        raise error
    after = _index_arrays(answer, value, len(before))
    had, has = np.sort(np.concatenate(before)), np.sort(np.concatenate(after))
    twice = has[1:][has[1:] == has[:-1]]
    answer.expect(
        len(twice) == 0,
        "no sample has two owners",
        f"Sample {max(twice, default=0):g} now has two owners. Whoever gives a sample no longer has it.",
    )
    lost, foreign = np.setdiff1d(had, has), np.setdiff1d(has, had)
    answer.expect(
        len(foreign) == 0,
        "no sample is invented",
        f"Sample {max(foreign, default=0):g} was in no part before. Move the entries of the arrays, not "
        "positions in them.",
    )
    answer.expect(
        len(lost) == 0,
        "no sample is lost",
        f"{len(lost)} of {len(had)} samples belong to nobody now, among them {max(lost, default=0):g}.",
    )
    return after


class _Stop(SystemExit):
    """Ends the thread of an answer that does not return; a thread ends silently with it."""


def _within_limit(answer, task):
    """Run ``task`` in a thread of its own and return (value, error); fail the check if it takes too long."""
    outcome = [None, None]

    def work():
        try:
            outcome[0] = task()
        except BaseException as error:  # handed to the caller's thread
            outcome[1] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT)
    late = thread.is_alive()
    if late:
        # Left alone, it would slow down every cell that the reader runs afterwards.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
    answer.expect(
        not late,
        "always comes to an end",
        f"Stopped after {TIME_LIMIT:g} seconds for a handful of samples. With 100 clients and α = 0.1 about "
        "86 % of all draws fail, and what is impossible never fits: a loop that runs until it fits may run "
        "for ever. Bound it with max_tries.",
    )
    return outcome
