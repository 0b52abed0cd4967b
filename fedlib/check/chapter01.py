"""Checks for chapter 1, the weighted objective."""

from itertools import combinations

import numpy as np

from fedlib.check.core import exercise
from fedlib.rng import stream


@exercise("Exercise 1.1, weighted_objective")
def weighted_objective(answer):
    """``weighted_objective(losses [K], sizes [K]) -> float`` from the clients' mean losses."""
    rng = stream(0, "check", 101)
    for num_clients in (2, 5, 9):
        sizes = rng.integers(1, 60, num_clients)
        samples = [rng.gamma(2.0, size=size) for size in sizes]
        losses = np.array([s.mean() for s in samples])

        def f(losses, sizes):
            return answer.array(answer(losses, sizes), ())

        value = f(losses, sizes)
        answer.expect(
            answer.close(f(losses, 10 * sizes), value),
            "multiplying every size by 10 changes nothing",
            "Multiply every size by 10. The objective is an average, so it must not change. Divide by n.",
        )
        answer.expect(
            answer.close(f(np.full(num_clients, 0.7), sizes), 0.7),
            "if every client has the same loss, that is the objective",
            f"Every client reports 0.7, but you return {f(np.full(num_clients, 0.7), sizes):.4g}. "
            "The weights must sum to 1.",
        )
        worst = int(losses.argmax())
        grown = np.where(np.arange(num_clients) == worst, 2 * sizes, sizes)
        moved = f(losses, grown) - value
        answer.expect(
            not answer.close(moved, 0.0),
            "samples count, not clients",
            "Give one client a copy of its own data: the pooled loss moves, yours does not.",
        )
        answer.expect(
            moved > 0,
            "more samples pull more",
            "Double the samples of the client with the largest loss: the pooled loss rises, yours falls.",
        )
        halves = np.append(2 * sizes, sizes[worst])
        halves[worst] = sizes[worst]
        answer.expect(
            answer.close(f(np.append(losses, losses[worst]), halves), value),
            "cutting one client in two changes nothing",
            "Cut one client in two halves with the same mean loss: nothing happened to the data, yet your value "
            "changed. Weights must be proportional to n_k, neither to its square nor to its root.",
        )
        answer.expect(
            answer.close(value, np.concatenate(samples).mean()),
            "equals the mean loss of the pooled samples",
            "Concatenate all samples and take their mean loss: you do not return that number.",
        )


@exercise("Exercise 1.2, optimum")
def optimum(answer):
    """``optimum(a [K], b [K], p [K]) -> float``, the minimizer of Σ p_k a_k/2 (w − b_k)²."""
    rng = stream(0, "check", 102)
    # Numbers for which no two of the usual mistakes agree.
    cases = [(np.array([1.0, 4.0]), np.array([1.0, 2.0]), np.array([0.7, 0.3]))]
    for num_clients in (2, 3, 6):
        p = rng.dirichlet(np.full(num_clients, 2.0))
        cases.append((rng.uniform(0.5, 5, num_clients), rng.normal(size=num_clients), p))
    for a, b, p in cases:
        w = answer.array(answer(a, b, p), ())
        usual = {
            "Client 2 is four times as curved. Evaluate the gradient at your answer, the weighted mean of the "
            "minimizers: it is not zero.": np.sum(p * b),
            "That solves the problem with equal weights. Where does p enter?": np.sum(a * b) / np.sum(a),
            "You have the pull Σ p a b. Divide it by how strongly the curvatures hold, Σ p a.": np.sum(p * a * b),
            "That is the mean of the minimizers. Neither the curvatures nor the weights are in it.": b.mean(),
        }
        slope = np.sum(p * a * (w - b))
        hint = next(
            (text for text, wrong in usual.items() if answer.close(w, wrong)),
            f"At your answer {w:.4g} the weighted gradient Σ p a (w − b) is {slope:.4g}. Solve for where it is 0.",
        )
        answer.expect(answer.close(slope, 0.0), "the weighted gradient vanishes there", hint)


@exercise("Exercise 1.3, expected_weights")
def expected_weights(answer):
    """``expected_weights(sizes [N], m) -> [N]`` under uniform draws and renormalized weights."""
    rng = stream(0, "check", 103)
    # Three clients first: with two, what is drawn alone looks like what is drawn with all others.
    for sizes in (np.array([7, 7, 36]), np.array([9, 1]), rng.integers(1, 50, 5)):
        N, p = len(sizes), sizes / sizes.sum()

        def e(m):
            return answer.array(answer(sizes, m), (N,))  # noqa: B023

        def near(got, wanted, gap):
            return np.abs(got - wanted).max() < gap or not np.array_equal(e(1), e(1))  # noqa: B023

        sampled = "Near, but not exact. Wanted is the average over every possible round, exactly, not by sampling."
        for m in (2, *range(1, N + 1)):
            exact, rounds = _every_round(sizes, m)
            got = e(m)
            usual = {
                f"Your weights sum to {got.sum():.4g} for m = {m}, because you add up {rounds} rounds. An average is "
                "divided by their number.": exact * rounds,
                "Average over all rounds, also those that a client misses: its weight there is 0.": exact * N / m,
            }
            hint = next(
                (text for text, wrong in usual.items() if answer.close(got, wrong)),
                f"In every single round the weights sum to 1. Yours sum to {got.sum():.4g} for m = {m}.",
            )
            answer.expect(answer.close(got.sum(), 1.0), "the weights sum to 1", hint)
        alone = e(1)
        answer.expect(
            answer.close(alone, 1 / N),
            "with m = 1 everybody has the same expected weight",
            sampled
            if near(alone, 1 / N, 0.1)
            else "A client drawn alone always gets weight 1, however small it is, and each is drawn equally often.",
        )
        answer.expect(
            answer.close(e(N), p),
            "with m = N the weights are n_k/n",
            "When everybody is drawn there is only one possible round, and its weights are n_k/n.",
        )
        for m in range(2, N):
            (exact, rounds), got = _every_round(sizes, m), e(m)
            answer.expect(
                answer.close(got, exact),
                "agrees with listing every possible round",
                sampled
                if near(got, exact, 0.01)
                else f"List the {rounds} subsets of {m} clients, renormalize n_k inside each, and average: you get "
                f"{np.round(exact, 3).tolist()}, not {np.round(got, 3).tolist()}.",
            )


def _every_round(sizes, m):
    """Return the mean weights over all draws of m clients, and how many draws there are."""
    draws, total = list(combinations(range(len(sizes)), m)), np.zeros(len(sizes))
    for drawn in map(list, draws):
        total[drawn] += sizes[drawn] / sizes[drawn].sum()
    return total / len(draws), len(draws)


@exercise("Exercise 1.4, unbiased_round")
def unbiased_round(answer):
    """``unbiased_round(deltas [m, d], p [N], drawn [m], N) -> [d]``, right on average over all draws."""
    rng = stream(0, "check", 104)
    for N, m, d in ((4, 2, 3), (3, 3, 2), (5, 3, 2)):
        deltas, p = rng.normal(size=(N, d)) + 1.0, rng.dirichlet(np.ones(N))
        draws = [np.array(drawn) for drawn in combinations(range(N), m)]
        rows = [answer.array(answer(deltas[drawn], p, drawn, N), (d,)) for drawn in draws]
        wanted, mean = p @ deltas, np.mean(rows, axis=0)
        renormalized = np.mean([p[s] @ deltas[s] / p[s].sum() for s in draws], axis=0)
        first = np.mean([p[:m] @ deltas[s] * N / m for s in draws], axis=0)
        usual = {
            "Your average update is m/N times too short: a client that is drawn in m of N rounds must count N/m "
            "times when it is.": wanted * m / N,
            "Your factor is upside down: drawn more rarely, a client must count more when it is drawn, not less.": (
                wanted * (m / N) ** 2
            ),
            "Average over every subset: small clients come out too heavy. Dividing by the weights of those drawn "
            "is what causes it.": renormalized,
            "That is the plain mean of the rows; p does not enter.": deltas.mean(axis=0),
            "N times as long is right only if one client is drawn. With m drawn, each stands for N/m.": wanted * m,
            "p[:m] are the weights of the first m clients. You need those that were drawn, p[drawn].": first,
        }
        hint = next(
            (text for text, wrong in usual.items() if answer.close(mean, wrong)),
            f"Averaged over every subset of {m} of {N} clients your update is {np.round(mean, 3).tolist()}; "
            f"Σ p_k Δ_k is {np.round(wanted, 3).tolist()}.",
        )
        answer.expect(answer.close(mean, wanted), "the average over all draws is Σ p_k Δ_k", hint)
        flipped = answer.array(answer(deltas[draws[0]][::-1].copy(), p, draws[0][::-1].copy(), N), (d,))
        answer.expect(
            answer.close(flipped, rows[0]),
            "the order in which clients are listed is irrelevant",
            "List the same clients in reverse: your update changed. Row i belongs to client drawn[i].",
        )
