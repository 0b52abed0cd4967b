"""Checks for chapter 5, client drift."""

import numpy as np

from fedlib.check.core import exercise
from fedlib.rng import stream

A, B = np.array([1.0, 4.0]), np.array([0.0, 1.0])  # the laboratory
HALF = np.array([0.5, 0.5])


@exercise("Exercise 5.1, fedavg_fixed_point")
def fedavg_fixed_point(answer):
    """``fedavg_fixed_point(a [K], b [K], lr, H) -> float``, where FedAvg with equal weights comes to rest."""
    rng = stream(0, "check", 501)
    answer.undefined = "With one step and a learning rate of 0.1 nothing divides by zero: what does your denominator hold?"

    def rest(a, b, lr, H):
        return answer.array(answer(a.copy(), b.copy(), lr, H), (), "the fixed point", "One number is wanted.")

    got = rest(A, np.array([2.0, 2.0]), 0.1, 5)
    answer.expect(
        answer.close(got, 2.0),
        "clients with the same minimizer stay there",
        f"Both minimizers are at 2, so FedAvg rests at 2. You say {got:.4g}: divide by the sum of the very weights "
        "that multiply the b_k.",
    )
    cases = [(A, B, 0.1, 5), (A, B, 0.1, 20), (A, B, 0.3, 5)]
    cases += [(rng.uniform(0.5, 4, K), rng.normal(0, 2, K), lr, H) for K, lr, H in ((3, 0.2, 3), (4, 0.05, 9))]
    for a, b, lr, H in cases:
        got, r = rest(a, b, lr, H), (1 - lr * a) ** H
        wanted = _rest(a, b, np.ones(len(a)) / len(a), lr, np.full(len(a), H))
        usual = {
            "You return the optimum Σab/Σa. Simulate: with a = (1, 4), b = (0, 1), lr 0.1 and H = 5 it stops at 0.6925. "
            "If you have r = 1 − H·lr·a in there: steps multiply. Try H = 20.": (a, b),
            "That is the plain mean of the minimizers, where each client would walk to its end. With lr 0.1 and H = 5 "
            "none of them arrives: who comes closer to its own?": (np.ones(len(a)), b),
            "r is what is left of a client's distance to its minimizer. What it pulls with is the part that it walked, "
            "1 − r.": (r, b),
            "With the learning rate forgotten, steps would be 1/lr times as long.": (1 - (1 - a) ** H, b),
            "You count one step too few: (1 − lr·a) appears once for each of the H steps.": (1 - r / (1 - lr * a), b),
            "One step too many: (1 − lr·a) appears once for each of the H steps.": (1 - r * (1 - lr * a), b),
            "exp(−lr·a·H) is what infinitely many infinitely short steps leave. These are H steps of length lr.": (
                1 - np.exp(-lr * a * H),
                b,
            ),
            "The curvature enters twice: it is in r already.": (a * (1 - r), b),
            "A client's distance shrinks by 1 − lr·a in a step, not by lr·a.": (1 - (lr * a) ** H, b),
        }
        hint = _first(answer, {text: _mean(*parts) for text, parts in usual.items()}, got) or (
            f"Simulation of a = {_list(a)}, b = {_list(b)}, lr = {lr}, H = {H} comes to rest at {wanted:.6f}, you say "
            f"{got:.6f}. After a round the mean of the clients' models must be where the round began."
        )
        answer.expect(answer.close(got, wanted), "agrees with simulation", hint)
    got = rest(A, B, 0.2, 1)
    answer.expect(
        answer.close(got, 0.8),
        "one local step leads to the optimum",
        f"H = 1 is gradient descent on the objective, which ends at its optimum 0.8, not at {got:.4g}.",
    )
    got = rest(A, B, 0.2, 400)
    answer.expect(
        answer.close(got, 0.5),
        "endless local training leads to the mean of the minimizers",
        f"After 400 steps every client sits in its own minimizer, so their mean is at 0.5, not at {got:.4g}.",
    )


def _rest(a, b, p, lr, H):
    """Return where FedAvg comes to rest, from a simulated round: it is a straight line w ↦ slope · w + shift."""
    shift, after_one = (_round(a, b, p, lr, H, w) for w in (0.0, 1.0))
    return shift / (1 - (after_one - shift))


def _round(a, b, p, lr, H, w):
    w_k = np.full(len(a), w)
    for h in range(max(H)):
        w_k = np.where(h < H, w_k - lr * a * (w_k - b), w_k)
    return np.sum(p * w_k)


def _mean(weights, b):
    with np.errstate(all="ignore"):
        return np.sum(weights * b) / np.sum(weights)


def _list(values):
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"


def _first(answer, usual, got):
    return next((text for text, wrong in usual.items() if np.all(np.isfinite(wrong)) and answer.close(got, wrong)), None)


@exercise("Exercise 5.2, schedule")
def schedule(answer):
    """``schedule(t) -> lr`` of round t, with which FedAvg in the laboratory nears 0.8 within 5,000 rounds."""
    lrs = [float(answer.array(answer(t), (), "the learning rate", "One number for one round t.")) for t in range(5000)]
    answer.tolerance = 1e-6
    answer.expect(
        min(lrs) >= 0,
        "learning rates are not negative",
        f"Round {int(np.argmin(lrs))} has the learning rate {min(lrs):.4g}: it climbs.",
    )
    answer.expect(
        lrs[0] > 0 or max(lrs) > 0,
        "somebody moves",
        "All your learning rates are zero: nobody moves.",
    )
    r = (1 - np.outer(lrs, A)) ** 5  # five steps of a round at once
    starts, ends = (20.0, 0.0, -3.0), []
    with np.errstate(all="ignore"):
        for w in starts:
            for factor in r:
                w = np.mean(B + factor * (w - B))
            ends.append(w)
    exploded = not np.isfinite(ends).all() or np.max(np.abs(ends)) > 100
    answer.expect(
        not exploded,
        "no start explodes",
        f"Your largest learning rate is {max(lrs):.3g}. A client of curvature 4 overshoots further with every step once "
        "lr · 4 exceeds 2.",
    )
    spread, constant = np.ptp(ends), np.allclose(lrs, lrs[0], rtol=1e-9, atol=0)
    if constant and spread > 5e-3:
        late = f"A learning rate of {lrs[0]:.2g} is too small to get anywhere in 5,000 rounds: started at 20, you end at {ends[0]:.3f}."
    else:
        late = (
            f"You stopped before arriving: started at 20, you end at {ends[0]:.3f}, started at −3, at {ends[2]:.3f}. The sum "
            f"of the learning rates must keep growing; yours is {sum(lrs):.3g}, of which the first hundred rounds are "
            f"{sum(lrs[:100]):.3g}."
        )
    answer.expect(spread <= 5e-3, "where it starts is forgotten", late)
    gaps = [0.8 - _mean(1 - (1 - lr * A) ** 5, B) for lr in (0.1, 0.05, 0.01)]
    if constant:
        hint = (
            "Rounds 200 and 5,000 agree to ten digits: it has converged, to the wrong place. The gap shrinks with lr ("
            + ", ".join(f"{gap:.4f}" for gap in gaps)
            + " for lr 0.1, 0.05, 0.01)."
        )
    elif lrs[-1] > max(lrs[0], 1e-12):
        hint = f"Your learning rate grows, from {lrs[0]:.2g} to {lrs[-1]:.2g}, and the gap grows with it."
    else:
        hint = (
            f"All starts end at {ends[0]:.4f}: you arrived, at the place that belongs to your last learning rate, "
            f"{lrs[-1]:.3g}. Let it fall further, but not so fast that the sum stops growing."
        )
    answer.expect(np.max(np.abs(np.array(ends) - 0.8)) <= 5e-3, "from three starts it ends within 0.005 of 0.8", hint)


@exercise("Exercise 5.3, effective_weights")
def effective_weights(answer):
    """``effective_weights(sizes [K], steps [K]) -> [K]``, the weights that FedAvg follows as lr → 0."""
    rng = stream(0, "check", 503)
    answer.undefined = "All sizes and steps are positive: what do you divide by?"
    # In the first case no two of the usual mistakes agree.
    cases = [(np.array([300, 100, 50]), np.array([4, 10, 7])), (np.array([100, 100]), np.array([10, 5]))]
    cases += [(rng.integers(10, 500, K), rng.integers(1, 40, K)) for K in (2, 5)]
    for sizes, steps in cases:
        got = answer.array(answer(sizes.copy(), steps.copy()), (len(sizes),), "the weights")
        n, H = sizes.astype(float), steps.astype(float)
        far = (
            "Simulate two clients of equal size with H = (10, 5) at lr 1e-4: it ends at "
            f"{_rest(A, B, HALF, 1e-4, np.array([10, 5])):.4f}, and the gap to 0.8 does not vanish. "
            "This is not drift: what do the steps do?"
        )
        usual = {
            far: n / n.sum(),
            "More steps mean more pull, not less.": (n / H) / (n / H).sum(),
            "Those are products. Weights sum to 1.": n * H,
            "Sizes count as well: a delta is averaged with the weight n_k/n.": H / H.sum(),
            "Neither sizes nor steps enter your weights.": np.ones(len(n)) / len(n),
            "Steps are counted, so that n_k² is at best a guess: clients may train for different numbers of epochs.": (
                n**2 / (n**2).sum()
            ),
            "Sizes and steps multiply: n_k/n is how much a delta counts, H_k how long it is.": (n + H) / (n + H).sum(),
            "Your weights sum to 1/K: a mean was taken where a sum belongs.": n * H / (n * H).sum() / len(n),
        }
        wanted = n * H / np.sum(n * H)
        hint = _first(answer, usual, got) or (
            f"With small steps a delta is −lr · H_k · ∇f_k, and it is averaged with n_k/n. For sizes {_list(n)} and steps "
            f"{_list(H)} your weights are {_list(got)}."
        )
        answer.expect(answer.close(got, wanted), "the weights are in proportion to n_k H_k", hint)
        answer.expect(answer.close(got.sum(), 1.0), "the weights sum to 1", f"They sum to {got.sum():.6g}.")
    sizes, H = np.array([30, 10]), np.array([4, 10])
    q = answer.array(answer(sizes, H), (2,), "the weights")
    ends = _rest(A, B, sizes / 40, 1e-4, H)
    answer.expect(
        abs(_mean(q * A, B) - ends) < 1e-3,
        "a simulation with small steps ends where they say",
        f"Sizes (30, 10) and steps (4, 10) end at {ends:.4f} in simulation; your weights predict {_mean(q * A, B):.4f}.",
    )


@exercise("Exercise 5.4, drift_cosine")
def drift_cosine(answer):
    """``drift_cosine(w [d], w_k [K, d]) -> [K]``, cosine of each client's update to the mean update."""
    rng = stream(0, "check", 504)

    def cosines(w, deltas, undefined=""):
        answer.undefined = undefined
        return answer.array(answer(w.copy(), w + deltas), (len(deltas),), "the cosines", "One cosine for each client.")

    # Multiples of 1/256 stay exact in single precision, also beside 1,000.
    deltas = rng.integers(-100, 101, (4, 12)) / 64
    deltas[3] = (deltas[3] - deltas[:3].sum(axis=0)) / 4  # one client pulls against the others
    w = rng.integers(-100, 101, 12) / 64
    wanted = _cosines(deltas, deltas.mean(axis=0))
    got, shifted = cosines(w, deltas), cosines(w + 1000, deltas)
    answer.expect(
        np.allclose(got, shifted, atol=10 * answer.tolerance),
        "independent of w",
        "Shift every parameter by 1,000: all clients now agree perfectly. Compare what they changed."
        if shifted.min() > 0.99
        else "Shift every parameter by 1,000 while the clients change the same: your cosines moved. Compare what they "
        "changed, w_k − w, with the mean of what they changed.",
    )
    apart = np.eye(4, 12)
    got_apart = cosines(w, apart)
    usual = {
        "Four clients that pull at right angles score 0: you compare each with the mean of the *others*. The mean "
        "delta includes its own.": np.zeros(4),
        "Four clients that pull at right angles each make a quarter of the mean, and yet their cosine is 1/√4, not 1/4: "
        "divide by both lengths.": np.full(4, 0.25),
        "That is a distance, 1 − cos: a client that agrees should score 1.": np.full(4, 1 - 0.5),
    }
    hint = (
        "That is a distance, 1 − cos: a client that agrees should score 1."
        if answer.close(got, 1 - wanted)
        else _first(answer, usual, got_apart)
        or f"Four clients that pull at right angles with equal strength have the cosine 1/√4 with their mean. You say {_list(got_apart)}."
    )
    answer.expect(answer.close(got_apart, 0.5) and not answer.close(got, 1 - wanted), "K orthonormal rows score 1/√K", hint)
    usual = {
        "A client that pulls against the mean has a negative cosine; yours has lost its sign.": np.abs(wanted),
        "You compare the lengths. Multiply the entries, sum, and divide by the lengths.": (
            np.linalg.norm(deltas, axis=1) / np.linalg.norm(deltas.mean(axis=0))
        ),
        "Compare with the mean delta, not with the mean of the deltas' directions: a long delta counts for more.": (
            _cosines(deltas, (deltas / np.linalg.norm(deltas, axis=1)[:, None]).mean(axis=0))
        ),
        "You compare every client with the first one.": _cosines(deltas, deltas[0]),
        "The median of the deltas is another summary. Compare with their mean.": (
            _cosines(deltas, np.median(deltas, axis=0))
        ),
        "A cosine and a correlation differ: do not subtract the mean over the entries.": np.array(
            [np.corrcoef(delta, deltas.mean(axis=0))[0, 1] for delta in deltas]
        ),
        "Your clients' cosines are squared.": wanted**2,
        "Everything points the wrong way.": -wanted,
    }
    hint = _first(answer, usual, got) or (
        f"For random rows your cosines are {_list(got)}, and NumPy's are {_list(wanted)}: x·m divided by ‖x‖ ‖m‖, with m "
        "the mean of the rows."
    )
    answer.expect(answer.close(got, wanted), "the cosine with the mean delta", hint)
    small = cosines(w / 1024, deltas / 1024)
    answer.expect(
        np.allclose(small, got, atol=max(1e-4, answer.tolerance)),
        "scaling everything changes nothing",
        "Divide the model and all deltas by 1,024: your cosines changed. A small constant in the denominator is not small "
        "beside small deltas; ask whether a length is zero instead.",
    )
    still = np.vstack([deltas[:3], np.zeros(12)])
    got = cosines(w, still, "A client that did not move returned NaN: its length is zero, and you divide by it.")
    answer.expect(
        got[3] == 0 and answer.close(got[:3], _cosines(still[:3], still.mean(axis=0))),
        "a client that did not move scores 0",
        f"A client that did not move agrees with nobody and contradicts nobody: 0, not {got[3]:.3g}. The others keep the "
        f"cosines {_list(_cosines(still[:3], still.mean(axis=0)))}; yours are {_list(got[:3])}.",
    )
    got = cosines(
        w,
        np.vstack([deltas[:1], -deltas[:1]]),
        "Two clients that want the opposite have the mean delta 0, and you divide by its length.",
    )
    answer.expect(
        not got.any(),
        "opposite clients score 0",
        f"Two clients that want the opposite have the mean delta 0, which has no direction: 0 for both, not {_list(got)}.",
    )


def _cosines(rows, direction):
    return rows @ direction / np.linalg.norm(rows, axis=1) / np.linalg.norm(direction)
