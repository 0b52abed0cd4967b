"""Checks for chapter 7, similarity weighting."""

import numpy as np

from fedlib.check.core import exercise
from fedlib.rng import stream


def _cosine(a, b):
    length = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.sum(a * b, axis=-1) / np.where(length > 0, length, 1)


def _softmax(scores, sizes):
    factor = np.exp(scores - scores.max()) * sizes
    return factor / factor.sum()


def _hint(answer, got, usual, otherwise):
    """Return the hint of the first usual mistake that gives this result, or the other one."""
    return next((text for text, wrong in usual.items() if answer.close(got, wrong)), otherwise)


@exercise("Exercise 7.1, similarity_weights")
def similarity_weights(answer):
    """``similarity_weights(deltas [K, d], sizes [K], tau) -> [K]``, p_k ∝ n_k exp(cos(Δ_k, Δ̄) / τ)."""
    rng = stream(0, "check", 701)
    sizes = np.array([10, 40, 25, 5])
    share = sizes / sizes.sum()
    deltas = rng.normal(size=(4, 6)) * np.array([0.3, 0.9, 0.15, 0.6])[:, None]
    mean, tau = share @ deltas, 0.7

    def weights(deltas, sizes=sizes, tau=tau):
        return answer.array(answer(deltas, sizes, tau), (len(deltas),), "the weights")

    got, dots = weights(deltas), deltas @ mean
    right = _softmax(_cosine(deltas, mean) / tau, sizes)
    answer.expect(
        answer.close(got.sum(), 1),
        "the weights sum to 1",
        f"Your weights sum to {got.sum():.4g}. Divide by their sum, so that equal deltas give that very delta.",
    )
    answer.undefined = (
        "Scale all deltas by 1,000 and your scores overflow: a cosine does not grow with its vectors."
    )
    scaled, uniform = weights(1000 * deltas), _softmax(_cosine(deltas, deltas.mean(axis=0)) / tau, sizes)
    lengths = np.linalg.norm(deltas, axis=1)
    usual = {
        "You divide by the length of the delta only. The mean has a length too.": _softmax(dots / lengths / tau, sizes),
        "You divide by the length of the mean only. Long deltas then shout.": _softmax(
            dots / np.linalg.norm(mean) / tau, sizes
        ),
    }
    answer.expect(
        answer.close(scaled, got),
        "scaling all deltas changes nothing",
        _hint(answer, got, usual, "Scale all deltas by 1,000: your weights changed. A dot product has to be divided "
              "by the norms of both vectors to be a cosine."),
    )  # fmt: skip
    far = weights(deltas, tau=1e9)
    usual = {
        "With a huge τ all clients weigh the same: sizes are missing from the weights.": np.full(4, 0.25),
        "With a huge τ the cosines decide everything: divide by τ, do not multiply.": np.eye(4)[np.argmax(right / share)],
    }
    answer.expect(
        answer.close(far, share),
        "τ → ∞ gives n_k / n",
        _hint(answer, far, usual, f"With a huge τ the cosines no longer matter, and n_k / n should be left: "
              f"{share.tolist()}, yours {np.round(far, 4).tolist()}."),
    )  # fmt: skip
    usual = {
        "Your mean delta ignores the sizes: Δ̄ = Σ n_k Δ_k / n.": uniform,
        "You reward disagreement: the sign in the exponent is wrong.": _softmax(-_cosine(deltas, mean) / tau, sizes),
        "Each cosine is with the mean of the *others*. Here Δ̄ includes everybody.": _softmax(
            _others(deltas, share) / tau, sizes
        ),
        "τ does not matter to you: the cosine is divided by it before the exponential.": _softmax(
            _cosine(deltas, mean), sizes
        ),
        "τ is squared, or divides twice.": _softmax(_cosine(deltas, mean) / tau**2, sizes),
        "Without an exponential: weights n_k (1 + cos) look similar, but have no temperature.": (
            share * (1 + _cosine(deltas, mean)) / (share @ (1 + _cosine(deltas, mean)))
        ),
    }
    answer.expect(
        answer.close(got, right),
        "p_k ∝ n_k exp(cos(Δ_k, Δ̄) / τ)",
        _hint(answer, got, usual, f"For τ = {tau} the weights are {np.round(right, 4).tolist()}, yours "
              f"{np.round(got, 4).tolist()}. Check the mean delta first, then the cosines, then the weights."),
    )  # fmt: skip
    order = np.array([2, 0, 3, 1])
    answer.expect(
        answer.close(weights(deltas[order], sizes[order]), got[order]),
        "permuting the clients permutes the weights",
        "Put the clients in another order: their weights must follow them. Does one of them play a special role?",
    )
    answer.undefined = (
        "Overflow at τ = 0.001: exp(1000) is infinite. Only differences of cosines matter, so subtract the largest "
        "before the exponential."
    )
    near = weights(deltas, tau=1e-3)
    answer.expect(
        np.argmax(near) == np.argmax(right / share) and near.max() > 0.99,
        "τ → 0 leaves the largest cosine alone",
        f"At τ = 0.001 only the client with the largest cosine has a say; your weights are {np.round(near, 4).tolist()}.",
    )
    twins = np.array([[1.0, 2.0, 0.0], [-1.0, 0.5, 1.0], [1.0, 2.0, 0.0]])
    tied = weights(twins, np.array([10, 5, 30]), 1e-3)
    answer.expect(
        np.allclose(tied, [0.25, 0, 0.75], atol=1e-3),
        "ties are shared by size",
        f"Two identical clients of sizes 10 and 30 share the weight 1 : 3 at τ = 0.001, yours are {np.round(tied, 4).tolist()}.",
    )
    answer.undefined = (
        "A client that did not move has no direction: 0/0 gave NaN, and one NaN makes the model NaN. Let its cosine be 0."
    )
    still = np.r_[deltas[:3], np.zeros((1, 6))]
    wanted = _softmax(_cosine(still, share @ still) / tau, sizes)
    got = weights(still)
    answer.expect(
        answer.close(got, wanted),
        "a client that did not move has cosine 0",
        f"The last delta is zero. With cosine 0 its weight is {wanted[-1]:.4f}; yours is {got[-1]:.4f}.",
    )
    answer.undefined = (
        "Two deltas that cancel: the mean is zero and has no direction either, so every cosine is 0. You divided by its length."
    )
    opposite = weights(np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, -0.5]]), np.array([20, 20]))
    answer.expect(
        answer.close(opposite, 0.5),
        "if the deltas cancel, all cosines are 0",
        f"Two clients of equal size want the opposite: the mean is zero, and both weigh 1/2. Yours are {np.round(opposite, 4).tolist()}.",
    )
    answer.undefined = (
        "Thirty orthogonal clients at τ = 0.001: every exponential has become 0, and 0/0 is NaN. Subtract the *largest* cosine "
        "before the exponential, not 1."
    )
    orthogonal = weights(np.eye(30), np.full(30, 7), 1e-3)
    answer.expect(
        answer.close(orthogonal, 1 / 30),
        "equal cosines give equal weights at any temperature",
        f"Thirty orthogonal clients of equal size weigh 1/30 each; your first one weighs {orthogonal[0]:.4g}.",
    )


def _others(deltas, share):
    return np.array([_cosine(row, share @ deltas - p * row) for row, p in zip(deltas, share, strict=True)])


@exercise("Exercise 7.2, leave_one_out_cosine")
def leave_one_out_cosine(answer):
    """``leave_one_out_cosine(deltas [K, d], sizes [K]) -> [K]``, each with the mean delta of all other clients."""
    rng = stream(0, "check", 702)

    def cosines(deltas, sizes):
        return answer.array(answer(deltas, np.asarray(sizes)), (len(deltas),), "the cosines")

    answer.undefined = (
        "Something was divided by zero, and no two of these thirty clients are alike. What is the mean of the others?"
    )
    eye = cosines(np.eye(30), [7] * 30)
    usual = {
        "Thirty orthogonal clients score 0.18 = 1/√30 each: they agree with themselves.": np.full(30, 30**-0.5),
        "Orthogonal clients score below 0: you subtract a client with more than its weight in the mean.": (
            _cosine(np.eye(30), 1 / 30 - np.eye(30))
        ),
    }
    answer.expect(
        answer.close(eye, 0),
        "orthonormal rows score 0",
        _hint(answer, eye, usual, f"Orthogonal clients have nothing in common, but your first one scores {eye[0]:.4g}."),
    )
    sizes, share = np.array([10, 40, 25, 5]), np.array([10, 40, 25, 5]) / 80
    same = np.tile(rng.normal(size=5), (4, 1))
    answer.undefined = (
        "Identical rows with unequal sizes must score 1, and you divide zero by zero: the mean minus Δ_k leaves nothing. "
        "A client's part of the mean is p_k Δ_k."
    )
    alike = cosines(same, sizes)
    answer.expect(
        answer.close(alike, 1),
        "identical rows score 1",
        f"Identical rows with unequal sizes must score 1, yours score {np.round(alike, 3).tolist()}. What a client "
        "contributes to the mean is its weighted share, p_k Δ_k.",
    )
    answer.undefined = "Look for a division by zero: is it by the norms of a delta and of the others' mean?"
    deltas = rng.normal(size=(4, 5)) * np.array([1.0, 3.0, 0.5, 2.0])[:, None]
    got, right = cosines(deltas, sizes), _others(deltas, share)
    rest = ~np.eye(4, dtype=bool)
    pairs = np.array([[_cosine(a, b) for b in deltas] for a in deltas])
    usual = {
        "The mean of the others ignores their sizes.": _others(deltas, np.full(4, 0.25)),
        "You average cosines with each other client. Wanted is one cosine, with their mean.": (
            np.array([np.average(pairs[k][rest[k]], weights=sizes[rest[k]]) for k in range(4)])
        ),
        "You average the cosines with the other clients, one by one and unweighted.": (
            (pairs * rest).sum(axis=1) / 3
        ),
        "Not divided by both norms: that is a dot product, or a projection.": (
            np.array([row @ (share @ deltas - p * row) / (1 - p) for row, p in zip(deltas, share, strict=True)])
        ),
        "Agreement is positive: your sign is reversed.": -right,
        "You compare the others' mean with the mean of all. The client itself is missing.": (
            np.array([_cosine(share @ deltas, share @ deltas - p * row) for row, p in zip(deltas, share, strict=True)])
        ),
    }
    answer.expect(
        answer.close(got, right),
        "it is the cosine with the size-weighted mean of the others",
        _hint(answer, got, usual, f"With sizes {sizes.tolist()} the cosines are {np.round(right, 4).tolist()}, yours "
              f"{np.round(got, 4).tolist()}."),
    )  # fmt: skip
    first, second = cosines(deltas[:2], [1, 9])
    answer.expect(
        answer.close(first, second) and answer.close(first, _cosine(deltas[0], deltas[1])),
        "two clients score the same",
        f"Of two clients, each is the other's others: both score cos(Δ_1, Δ_2), yours {first:.4f} and {second:.4f}.",
    )
    answer.undefined = "A client that did not move returned NaN: 0/0. Let its cosine be 0."
    still = cosines(np.r_[deltas[:3], np.zeros((1, 5))], sizes)
    answer.expect(
        answer.close(still[-1], 0) and answer.close(still[:3], _others(np.r_[deltas[:3], np.zeros((1, 5))], share)[:3]),
        "a client that did not move scores 0",
        f"The last client did not move and should score 0; your cosines are {np.round(still, 4).tolist()}.",
    )
    answer.undefined = "The others of a client can cancel. Their mean is then zero and has no direction: let the cosine be 0."
    row, other = np.array([1.0, 2.0, -1.0]), np.array([2.0, 0.5, 4.0])
    cancel = cosines(np.array([row, other, -other]), [32, 16, 16])
    answer.expect(
        answer.close(cancel[0], 0),
        "a client whose others cancel scores 0",
        f"The deltas of clients 2 and 3 are opposite and equally large, so client 1 has nothing to agree with; you give it {cancel[0]:.4g}.",
    )


@exercise("Exercise 7.3, marginalized")
def marginalized(answer):
    """``marginalized(p [K], threshold) -> (flags [K], effective)``: K p_k < threshold, and 1 / Σ p²."""

    def ask(p, threshold=0.3):
        flags, effective = answer.pair(
            answer(np.asarray(p, dtype=float), threshold),
            "returns a pair (flags, effective)",
            "Return the flags of all clients and one number: `return flags, effective`.",
        )
        flags = answer.array(flags, (len(p),), "the flags", "Wanted is one True or False a client, not their positions.")
        return flags, answer.array(effective, (), "the effective number")

    many = np.full(30, 1 / 30)
    flags, _ = ask(many)
    below, _ = ask(many, 0.01)
    answer.expect(
        not flags.any(),
        "of equal clients none is marginalized",
        "You flag those who have *enough*: marginalized means below the threshold."
        if flags.all() and not ask(np.array([0.02, 0.98]))[0][0]
        else "You compare p_k itself with the threshold, and an equal share of many clients is small: compare K p_k."
        if flags.all() and not below.any()
        else "Thirty equal clients are all flagged; two clients at τ = 1 can never be (the least possible weight is "
        "0.119). A fixed limit such as 0.1 does not know how many clients there are.",
    )
    p = np.array([0.04, 0.05, 0.1, 0.19, 0.62])
    wrong = {
        "Not below a share of the *largest* weight: one favored client would marginalize all others.": p / p.max() < 0.3,
        "Not the smallest client, whatever its weight: somebody is always the smallest.": p == p.min(),
        "You compare with 1/K alone. Where does the threshold enter?": p < 0.2,
        "By your rule nobody is marginalized, though the first client has a fifth of an equal share. An equal share is "
        "1/K, not the median.": p < 0,
    }
    cases = ((p, 0.3), (p, 0.7), (np.array([0.11, 0.38, 0.51]), 0.3), (np.array([0.51, 0.11, 0.38]), 0.7))
    for weights, threshold in cases:
        flags, _ = ask(weights, threshold)
        wanted = len(weights) * weights < threshold
        hint = f"K p_k is {np.round(len(weights) * weights, 2).tolist()}, the threshold {threshold}: flag {wanted.tolist()}."
        if weights is p and threshold == 0.3:
            hint = next((text for text, usual in wrong.items() if np.array_equal(flags, usual)), hint)
        answer.expect(np.array_equal(flags, wanted), "K p_k decides", hint)
    twice, flags = np.repeat(p, 2) / 2, ask(p)[0]
    answer.expect(
        np.array_equal(ask(twice)[0], np.repeat(flags, 2)),
        "the flags survive duplicating every client",
        "Split every client in two with half the weight each: the flags must be the same, yours are not.",
    )
    positive = p[p > 0]
    entropy = -np.sum(positive * np.log(positive))
    effective = ask(p)[1]
    usual = {
        "Four equal clients should count as 4. An entropy has no clients as its unit.": entropy,
        "An entropy in bits: four equal clients would count as 2.": entropy / np.log(2),
        "The exponential of the entropy is another such number. Wanted is 1 / Σ p².": np.exp(entropy),
        "Σ p² is the inverse of what is wanted.": np.sum(p**2),
        "You count all clients, however little they weigh.": 5,
        "Only the largest weight enters: 1 / max p.": 1 / p.max(),
        "You count those who are not flagged. A client weighs more or less, not yes or no.": np.sum(~(5 * p < 0.3)),
        "Σ p is 1, and so is its inverse. The weights have to be squared.": 1.0,
        "1 − Σ p² is the chance that two draws differ, not a number of clients.": 1 - np.sum(p**2),
        "The square root does not belong there: 1 / Σ p².": np.sum(p**2) ** -0.5,
    }
    answer.expect(
        answer.close(effective, 1 / np.sum(p**2)),
        "the effective number is 1 / Σ p²",
        _hint(answer, effective, usual, f"For p = {p.tolist()} it is {1 / np.sum(p**2):.4f}, yours is {effective:.4f}."),
    )
    answer.expect(
        answer.close(ask(twice)[1], 2 * effective) and answer.close(ask(many)[1], 30),
        "the effective number doubles when every client is duplicated",
        "Split every client in two with half the weight each: twice as many clients count, but yours is "
        f"{ask(twice)[1]:.4g} after {effective:.4g}.",
    )
    answer.undefined = "A weight of zero is no reason for NaN: such a client does not count."
    answer.expect(
        answer.close(ask(np.array([0.0, 1.0, 0.0]))[1], 1),
        "a single client with all the weight counts as 1",
        "One client has all the weight: it counts as 1.",
    )


@exercise("Exercise 7.4, silent_client")
def silent_client(answer):
    """``silent_client(deltas [K, d], sizes [K], w [d], policy) -> (update [d], weights [K])``."""
    rng = stream(0, "check", 704)

    def ask(deltas, sizes, w, policy):
        update, weights = answer.pair(
            answer(deltas, np.asarray(sizes), w, policy),
            "returns a pair (update, weights)",
            "Return the update and the weight of every client: `return update, weights`.",
        )
        weights = answer.array(weights, (len(deltas),), "the weights", "A skipped client has a weight too: 0.")
        return answer.array(update, (deltas.shape[1],), "the update"), weights

    w, move = rng.normal(size=5), rng.normal(size=5)
    deltas = np.array([np.zeros(5), move])
    answer.undefined = "A client with the zero delta gave NaN. Nothing has to be divided by the length of a delta."
    kept, weights = ask(deltas, [20, 20], w, "keep")
    usual = {
        "You return the new model w + Δ. Wanted is the update Δ alone.": w + move / 2,
        "No softmax here: the weights are the shares n_k / n, for a client with cosine 0 as well.": _softmax(np.array([0, 1.0]), 1)[1] * move,
    }
    answer.expect(
        answer.close(kept, move / 2) and answer.close(weights, [0.5, 0.5]),
        "keep: rows (0, d) of equal size give d/2",
        _hint(answer, kept, usual, 'With "keep", the zero delta is a vote to stay: it counts as much as its size says, so rows '
              "(0, d) give d/2."),
    )  # fmt: skip
    skipped, weights = ask(deltas, [20, 20], w, "skip")
    usual = {
        "You never skip anybody: look at `policy`.": move / 2,
        "You skip the client that moved.": 0 * move,
    }
    hidden = "The client that asked to stay was overruled and the record does not show it: report its weight as 0."
    answer.expect(
        answer.close(skipped, move),
        "skip: rows (0, d) give d",
        "A skipped client leaves its weight to the others. Your remaining weights sum to 1/2: renormalize."
        if answer.close(skipped, move / 2) and answer.close(weights, [0, 0.5])
        else _hint(answer, skipped, usual, f"Only the other client is left, so the update is its delta {np.round(move, 3).tolist()}."),
    )
    answer.expect(answer.close(weights, [0, 1]), "a skipped client is visible: its weight is 0", hidden)
    sizes, length = np.array([10, 20, 70]), np.linalg.norm(w)
    unit = rng.normal(size=(3, 5))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    deltas = unit * length * np.array([3e-7, 1e-3, 2e-3])[:, None]
    share = sizes / 100
    for policy, wanted in (("keep", share), ("skip", np.array([0, 20, 70]) / 90)):
        for scale in (1.0, 1e4, 1e-4):
            update, weights = ask(scale * deltas, sizes, scale * w, policy)
            right = wanted @ deltas * scale
            factor = "1e4" if scale > 1 else "1e-4"
            usual = {
                "Sizes count among those who are left: yours all weigh the same.": np.array([0, 0.5, 0.5]),
                "Sizes count: with keep, every client has the weight n_k / n.": np.full(3, 1 / 3),
            }
            if policy == "skip" and scale == 1:
                usual["A delta of 3e-7 times the length of w is a silent one too, though it is not exactly zero."] = share
                usual["You skip a client that moved by a thousandth of w. The floor is 1e-6 · ‖w‖."] = np.array([0, 0, 1])
            hint = _hint(answer, weights, usual, f'With "{policy}" and sizes 10, 20, 70 the weights are '
                         f"{np.round(wanted, 4).tolist()}, yours {np.round(weights, 4).tolist()}.")  # fmt: skip
            if scale != 1:
                hint = f"Multiply w and all deltas by {factor}: your decision changed. The floor has to be relative to ‖w‖."
            answer.expect(
                answer.close(weights, wanted),
                "keep: the weights are n_k / n" if policy == "keep"
                else "skip: a floor of 1e-6 · ‖w‖, whatever the units",
                hint,
            )  # fmt: skip
            answer.expect(
                np.allclose(update, right, atol=1e-3 * np.abs(right).max()),
                "the update is Σ p_k Δ_k with the weights that are reported",
                "Your weights say one thing and your update does another: the update is Σ p_k Δ_k.",
            )
    small = unit * length * np.array([1e-5, 1e-2, 2e-2])[:, None]
    answer.expect(
        answer.close(ask(small, sizes, w, "skip")[1], share),
        "whoever moved by more than 1e-6 · ‖w‖ is heard",
        "A delta of 1e-5 · ‖w‖ is short beside the others, but ten times above the floor of 1e-6 · ‖w‖: it is not skipped.",
    )
    long = rng.normal(size=400)
    few = np.eye(3, 400) * np.linalg.norm(long) * np.array([0.9e-6, 1.1e-6, 1.0])[:, None]  # one entry each
    close_by = ask(few, sizes, long, "skip")[1]
    answer.expect(
        answer.close(close_by, np.array([0, 20, 70]) / 90),
        "the floor is 1e-6 times the norm of w",
        "With 400 parameters, deltas of 0.9e-6 and 1.1e-6 times the norm of w: only the first is silent. ‖·‖ is the root of the sum of "
        "squares, not the largest entry, a mean or a sum.",
    )
    answer.undefined = "Everybody is silent, and 0/0 gave NaN. Then there is nobody to prefer: keep them all."
    _, weights = ask(np.zeros((3, 5)), sizes, w, "skip")
    answer.expect(
        answer.close(weights, share),
        "when all are silent nobody is skipped",
        f"When everybody is silent, the weights stay n_k / n; yours are {np.round(weights, 4).tolist()}.",
    )


CURVATURE, MINIMIZER, LR, STEPS = np.array([1.0, 4.0]), np.array([0.0, 1.0]), 0.1, 5
PULL = 1 - (1 - LR * CURVATURE) ** STEPS  # the share of the way to its minimizer that a client goes in a round


def _simulate(tau, rounds=200):
    x = 3.0
    for _ in range(rounds):
        deltas = PULL * (MINIMIZER - x)
        before, x = x, x + _softmax(np.sign(deltas) * np.sign(deltas.sum()) / tau, np.ones(2)) @ deltas
    return np.sort([before, x])


@exercise("Exercise 7.5, predict_cycle")
def predict_cycle(answer):
    """``predict_cycle(tau) -> (low, high)``, the two points between which the server jumps."""
    single = (
        "In one dimension the cosine is ±1 and flips when the mean update changes sign. Simulate some rounds: the server "
        "does not come to rest, it jumps between two points."
    )
    for tau in (1.0, 0.7, 2.0, 0.2, 5.0):
        got = answer.array(np.stack([
            answer.array(point, (), "each point")
            for point in answer.pair(answer(tau), "returns two points", single)
        ]), (2,))  # fmt: skip
        answer.expect(
            not answer.close(got, 0.8),
            "the optimum plays no role",
            "That is the optimum, 0.8. Whoever agrees with the mean is rewarded; nothing here knows where the optimum is.",
        )
        answer.expect(not answer.close(got[0], got[1]), "there are two points", single)
        usual = {
            "Those are the points where each of the two maps alone would come to rest. The server changes maps before it gets there: "
            "follow one map, then the other.": _rest(_heavy(2 / tau)),
            "The smaller client's cosine is −1, not 0: the weights are in the ratio exp(2/τ).": _points(_heavy(1 / tau)),
            "You multiply by τ. The cosines are divided by it.": _points(_heavy(2 * tau)),
            "The weights are right for τ = 1. Yours do not change with τ.": _simulate(1.0),
            "That is one round from the optimum, not the cycle: follow the rounds until they repeat.": _first(tau),
        }
        got, right = np.sort(got), _simulate(tau)
        near = np.abs(got - right).max() < 5e-3
        otherwise = (
            f"At τ = {tau:g} you are within {np.abs(got - right).max():.0e} of the two points, but not there yet: simulate more "
            "rounds, or solve for the pair that the two maps exchange." if near else
            f"At τ = {tau:g} the simulation jumps between {right[0]:.4f} and {right[1]:.4f}; you predict {got[0]:.4f} and "
            f"{got[1]:.4f}. Which client agrees with the mean on each side?"
        )  # fmt: skip
        answer.expect(
            answer.close(got, right),
            "the two points are those of the simulation",
            _hint(answer, got, usual, otherwise),
        )


def _heavy(exponent):
    """Return the weight of the client that agrees with the mean."""
    return 1 / (1 + np.exp(-exponent))


def _maps(heavy):
    """Return slope and intercept of x ↦ x + Σ p_k Δ_k where client 1, then where client 0, has the weight ``heavy``."""
    for p in (np.array([1 - heavy, heavy]), np.array([heavy, 1 - heavy])):
        yield 1 - p @ PULL, p @ (PULL * MINIMIZER)


def _points(heavy):
    (up, up_0), (down, down_0) = _maps(heavy)
    high = (up_0 + up * down_0) / (1 - up * down)
    return np.sort([down * high + down_0, high])


def _rest(heavy):
    return np.sort([intercept / (1 - slope) for slope, intercept in _maps(heavy)])


def _first(tau):
    (slope, intercept), (back, back_0) = _maps(_heavy(2 / tau))
    x = back * 0.8 + back_0
    return np.sort([x, slope * x + intercept])
