"""Checks for chapter 10, differential privacy."""

import math
from functools import cache

import numpy as np

from fedlib.accounting import epsilon_by_hand
from fedlib.check.core import exercise
from fedlib.rng import stream


def _hint(answer, usual, got, otherwise):
    return next((text for text, wrong in usual.items() if answer.close(got, wrong)), otherwise)


@exercise("Exercise 10.1, clip_rows")
def clip_rows(answer):
    """``clip_rows(deltas [K, d], S) -> [K, d]``, every row at most S long."""
    rng = stream(0, "check", 1001)
    answer.undefined = "The length of a row of zeros is 0: what do you divide by?"
    for S, K, d in ((2.0, 6, 5), (0.3, 4, 9)):
        lengths = S * np.concatenate([[3.0, 0.5, 0.2], 0.9 + 2 * rng.random(K - 3)])
        rows = rng.normal(size=(K, d))
        rows *= (lengths / np.linalg.norm(rows, axis=1))[:, None]
        got = answer.array(answer(rows, S), (K, d), "the clipped matrix")
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            usual = {
                "The norm of your row is up to √d·S: you clip its entries one by one. The length of the whole "
                "row counts.": np.clip(rows, -S, S),
                "A client with almost nothing to say now shouts: you bring every row to length S, also the short "
                "ones.": rows * S / norms,
                "A long row is not thrown away. It keeps its direction and gets length S.": rows * (norms <= S),
                "You cut the matrix as a whole. Each client is bounded by itself.": (
                    rows * min(1, S / np.linalg.norm(rows))
                ),
                "You divide by the squared length: take the root.": rows * np.minimum(1, S / norms**2),
                "You measure lengths with absolute values. The noise is made for the Euclidean length.": (
                    rows * np.minimum(1, S / np.abs(rows).sum(axis=1, keepdims=True))
                ),
                "Your rows are S times too long or too short: rows inside are left alone, others get length S.": (
                    rows / np.maximum(norms, S)
                ),
                "Those are the deltas as they came.": rows,
                "You lengthen short rows and leave long ones: minimum and maximum are exchanged.": (
                    rows * np.maximum(1, S / norms)
                ),
                "That is a mean length for all. Each row has its own.": rows * min(1, S / norms.mean()),
                "You measure columns. A row is a client.": (
                    rows * np.minimum(1, S / np.linalg.norm(rows, axis=0, keepdims=True))
                ),
            }
        longest = np.linalg.norm(got, axis=1).max()
        hint = _hint(answer, usual, got, f"Your longest row has length {longest:.4g}, and S is {S:g}.")
        answer.expect(longest <= S * (1 + 10 * answer.tolerance), "no row is longer than S", hint)
        short = norms[:, 0] <= S
        hint = _hint(answer, usual, got, "A row that is short enough was changed. There is nothing to clip.")
        answer.expect(answer.close(got[short], rows[short]), "rows already inside are unchanged", hint)
        wanted = rows * np.minimum(1, S / norms)
        hint = _hint(answer, usual, got, "A clipped row points where the row pointed, and has length S exactly.")
        answer.expect(answer.close(got, wanted), "long rows keep their direction", hint)
    zeros = answer.array(answer(np.zeros((2, 4)), 1.0), (2, 4), "the clipped matrix")
    answer.expect(answer.close(zeros, 0), "zero stays zero", "A client that changed nothing sends nothing.")


@exercise("Exercise 10.2, private_mean")
def private_mean(answer):
    """``private_mean(deltas [m, d], S, z, q, N, rng) -> [d]``, clipped, with noise, over a fixed denominator."""
    make = stream(0, "check", 1002)
    d = 4_000
    wanted = "One update for the server, with d entries."

    def mean(deltas, S, z, q, N, seed=0):
        result = answer(deltas, S, z, q, N, np.random.default_rng(seed))
        return answer.array(result, (deltas.shape[1],), "the update", wanted)

    # Without noise: who is divided by what.
    S, q, N = 2.0, 0.1, 54  # 5.4 clients are expected: not a whole number
    rows = make.normal(size=(8, d))
    rows[:, :2] *= 1_000  # most of a row's length is in two entries, or clipping entries would change nothing
    rows *= (S * np.array([4, 0.5, 3, 0.7, 2, 0.3, 5, 0.9]) / np.linalg.norm(rows, axis=1))[:, None]
    clipped = rows * np.minimum(1, S / np.linalg.norm(rows, axis=1, keepdims=True))
    total = clipped.sum(axis=0)
    answer.tolerance = 1e-4  # the noise is off, but may be off by a tiny amount
    got = mean(rows, S, 0.0, q, N) * 1e2  # the entries are small: compare them at a scale of 1
    usual = {
        "When a client joins, everyone's share changes: you divide by the number drawn, and the sensitivity is no "
        "longer S/(qN).": total / len(rows),
        "Nothing bounds your clients: one of them moves the sum by 5 S. Clip the rows first.": (
            rows.sum(axis=0) / (q * N)
        ),
        "You clip the sum. Then all clients together count as one; each row has to be clipped by itself.": (
            rows.sum(axis=0) * min(1, S / np.linalg.norm(rows.sum(axis=0))) / (q * N)
        ),
        "That is the sum. Divide by the number of clients that is expected.": total,
        "You divide by all N registered clients. In a round q N of them are expected.": total / N,
        "You divide by q times the number drawn. N counts who is registered.": total / (q * len(rows)),
        "You bring every row to length S, the short ones too.": (
            (S * rows / np.linalg.norm(rows, axis=1, keepdims=True)).sum(axis=0) / (q * N)
        ),
        "You clip the entries, not the rows: a row may then be √d·S long.": np.clip(rows, -S, S).sum(axis=0) / (q * N),
    }
    usual = {text: 1e2 * wrong for text, wrong in usual.items()}
    hint = _hint(answer, usual, got, "With z = 0: clip every row to S, add them up, divide by q N.")
    answer.expect(answer.close(got, 1e2 * total / (q * N)), "without noise it is the sum of clipped rows over qN", hint)
    less = mean(rows[:7], S, 0.0, q, N) * 1e2
    moved = np.linalg.norm(got - less) / 1e2
    answer.expect(
        moved <= S / (q * N) * 1.001,
        "one more client moves it by at most S/(qN)",
        f"One more client moved the update by {moved:.3g}, more than S/(qN) = {S / (q * N):.3g}.",
    )

    # With noise, and nothing else.
    for m, S, z, q, N in ((2, 3.5, 2.0, 0.1, 84), (12, 0.5, 4.0, 0.02, 1_030), (0, 3.0, 0.8, 0.1, 95)):
        nothing = np.zeros((m, d))
        noise = mean(nothing, S, z, q, N)
        right, sd = z * S / (q * N), float(noise.std())
        usual = {
            "Your noise is qN times too large. Where was the sensitivity S? In the sum: add the noise before you "
            "divide, or divide it too.": z * S,
            "There is no noise in it when nobody has anything to send. Its size must not depend on the deltas.": 0.0,
            "S is missing: z says how loud the noise is compared with the largest client.": z / (q * N),
            "Neither S nor qN enters your noise.": z,
            "You divide the noise by the square root of qN: it is one noise for the sum, not one for each client.": (
                z * S / math.sqrt(q * N)
            ),
            "You add noise to every row. The sum needs it once.": z * S * math.sqrt(m) / (q * N),
            "You divide the noise by the number drawn; it has to be the same whoever comes.": z * S / max(m, 1),
            "You divide by N: noise and sum are both divided by q N.": z * S / N,
            "You take (z S)² for the standard deviation, which is z S.": (z * S) ** 2 / (q * N),
            "The noise has variance z S here; its standard deviation should be z S.": math.sqrt(z * S) / (q * N),
        }
        # The standard deviation of 4,000 numbers is known to about one percent.
        near = [text for text, wrong in usual.items() if abs(sd - wrong) <= 0.06 * wrong]
        if sd == 0 and m == 2 and abs(float(noise[0])) > 0:
            near = ["All entries got the same number. Noise is drawn for each entry by itself."]
        hint = (near or [f"The standard deviation of your noise is {sd:.3g}, wanted is zS/(qN) = {right:.3g}."])[0]
        who = "nobody is" if not m else f"{m} clients are"
        answer.expect(
            abs(sd - right) <= 0.06 * right and abs(float(noise.mean())) < 5 * right / math.sqrt(d),
            "the noise has standard deviation zS/(qN), however many are drawn, also none",
            f"{hint} (Here {who} drawn.)",
        )
        answer.expect(
            np.abs(noise - noise.mean()).max() > 2.5 * sd,
            "the noise is Gaussian",
            "No entry of your noise is far out. The promise was computed for a Gaussian: use `rng.normal`.",
        )
        again, other = mean(nothing, S, z, q, N), mean(nothing, S, z, q, N, seed=1)
        answer.expect(
            np.array_equal(noise, again) and not np.array_equal(noise, other),
            "the noise comes from rng",
            "The same generator has to give the same noise, another one other noise: draw from `rng`.",
        )

    # The same noise with and without deltas: its difference is what there is without noise.
    got = (mean(rows, 2.0, 1.0, 0.1, 54) - mean(0 * rows, 2.0, 1.0, 0.1, 54)) * 1e2
    hint = "What you do to the deltas depends on z, or the noise depends on the deltas. Neither may be so: clip always."
    answer.expect(answer.close(got, 1e2 * total / 5.4), "rows are clipped and noise is added independently", hint)


# (q, z, T, δ) → ε by integer orders with the improved conversion; what privacy loss distributions give, which is less.
EPSILONS = {
    (0.1, 1.0, 1, 1e-5): (2.133006, 1.684544),
    (0.1, 1.0, 100, 1e-5): (7.972922, 7.046603),
    (1.0, 1.0, 1, 1e-5): (4.752728, 4.377178),
    (0.05, 1.5, 40, 1e-6): (epsilon_by_hand(0.05, 1.5, 40, 1e-6), 0.0),
}


@exercise("Exercise 10.3, epsilon")
def epsilon(answer):
    """``epsilon(q, z, T, delta) -> ε``, from the integer-order Rényi divergence."""
    answer.undefined = (
        "With q = 1 look at (1 − q)^(ν−j), which is 0 unless j = ν; with large orders use logarithms or stay at ν ≤ 64."
    )

    def eps(*setting):
        return float(answer.array(answer(*setting), ()))

    for (q, z, T, delta), (wanted, tightest) in EPSILONS.items():
        got = eps(q, z, T, delta)
        what = "without sampling it is the Gaussian's" if q == 1 else "equals the reference values, also over many rounds"
        # To four digits: orders beyond 64, or between the integers, make a tiny difference.
        right = abs(got - wanted) <= 2e-4 * max(1, wanted)
        answer.expect(right, what, "" if right else _epsilon_hint(got, q, z, T, delta, wanted, tightest))
    base = eps(0.1, 1.0, 10, 1e-5)
    answer.expect(
        eps(0.2, 1.0, 10, 1e-5) > base and eps(0.1, 1.0, 20, 1e-5) > base > eps(0.1, 1.5, 10, 1e-5),
        "increases with q and T and decreases with z",
        "More participation or more rounds must cost more, more noise less.",
    )


def _epsilon_hint(got, q, z, T, delta, wanted, tightest):
    usual = {
        "That is T times the ε of one round: 100 rounds give 213 instead of 7.97. Divergences add up, ε does "
        "not: convert once, at the end.": T * _variant(q, z, 1, delta) if T > 1 else None,
        "That is √T times the ε of one round. Add up the divergences, then convert.": (
            math.sqrt(T) * _variant(q, z, 1, delta) if T > 1 else None
        ),
        "That is q times the ε of a mechanism without sampling. At T = 1 you claim 0.48; the tightest known bound "
        "is 1.68.": q * _variant(1, z, T, delta) if q < 1 else None,
        "q does not enter: that is the ε of a mechanism in which everybody takes part in every round.": (
            _variant(1, z, T, delta) if q < 1 else None
        ),
        "T does not enter: that is the ε of one round.": _variant(q, z, 1, delta) if T > 1 else None,
        "That is a bound, with the older conversion ε = T R + log(1/δ)/(ν−1). The improved one has two terms "
        "more.": epsilon_by_hand(q, z, T, delta, "classic"),
        "You count the noise as variance: z enters squared.": _variant(q, math.sqrt(z), T, delta) if z != 1 else None,
        "In the exponent stands j(j − 1)/(2z²), not j²/(2z²).": _variant(q, z, T, delta, square=True),
        "The best order is searched among all; you take ν = 2.": _variant(q, z, T, delta, orders=range(2, 3)),
        "You take the largest bound. Every order gives a true one; the smallest is the best.": (
            _variant(q, z, T, delta, orders=range(2, 65), choose=max)
        ),
        "δ enters with a logarithm to base e; yours is base 10.": _variant(q, z, T, delta, base=10),
    }
    for text, wrong in usual.items():
        if wrong is not None and abs(got - wrong) <= 1e-4 * max(1, wrong):
            return text
    if got < tightest - 1e-4:
        return f"You claim {got:.3f}. No valid bound can be below {tightest:.3f}: that ε would not be true."
    return f"For q = {q:g}, z = {z:g}, T = {T}, δ = {delta:g} the formula gives {wanted:.4f}, yours {got:.4f}."


@cache
def _variant(q, z, T, delta, orders=range(2, 257), square=False, base=math.e, choose=min):
    bounds = []
    for a in orders:
        j = np.arange(a + 1)
        exponent = (j * j if square else j * (j - 1)) / (2 * z**2)
        binomial = np.array([math.log(math.comb(a, i)) for i in j])
        with np.errstate(divide="ignore", invalid="ignore"):
            mix = (a - j) * np.log1p(-q) if q < 1 else np.where(j == a, 0.0, -np.inf)
        terms = binomial + mix + j * math.log(q) + exponent
        top = terms.max()
        divergence = (top + math.log(np.exp(terms - top).sum())) / (a - 1)
        bounds.append(T * divergence + math.log1p(-1 / a) - (math.log(delta, base) + math.log(a)) / (a - 1))
    return choose(bounds)


@exercise("Exercise 10.4, joint_multiplier")
def joint_multiplier(answer):
    """``joint_multiplier(z_delta, z_control) -> z`` of two releases about the same drawn clients."""
    pairs = ((1.0, 1.0), (3.0, 4.0), (0.7, 2.5), (5.0, 0.5))
    got = [float(answer.array(answer(*pair), ())) for pair in pairs]
    usual = {
        "Whoever reads both learns more than from one: the second release is ignored.": lambda a, b: a,
        "The first release is ignored. Whoever reads both learns more than from one.": lambda a, b: b,
        "You return the smaller z. The other release tells something too.": min,
        "You return the larger z: the louder noise does not hide what the quieter one lets through.": max,
        "Variances add up where *noises* are added. Here two are seen one beside the other, and z has to become "
        "smaller.": math.hypot,
        "A mean of two multipliers is as good as one release. There are two.": lambda a, b: (a + b) / 2,
        "Squares are missing: the two releases move at right angles, so that lengths add as √(a² + b²).": (
            lambda a, b: 1 / (1 / a + 1 / b)
        ),
        "Take the root: that is z squared.": lambda a, b: 1 / (a**-2 + b**-2),
        "That is 1/z. The multiplier is its inverse.": lambda a, b: math.sqrt(a**-2 + b**-2),
    }
    near = [
        text for text, rule in usual.items()
        if all(abs(value - rule(*pair)) <= 2e-3 * rule(*pair) for value, pair in zip(got, pairs, strict=True))
    ]  # fmt: skip
    if abs(got[0] - 0.838126) < 2e-3:
        near = [
            "Both releases share one draw: when the client is in, it is in both. Counting 2T independent rounds gives "
            "9.97, and that is too little."
        ]
    for value, (first, second) in zip(got, pairs, strict=True):
        otherwise = (
            f"A client moves one release by 1/{first:g} and the other by 1/{second:g} of their noise. How long is that "
            f"step in the plane, and what z has the same? Not {value:.4g}."
        )
        wanted = 1 / math.sqrt(first**-2 + second**-2)
        answer.expect(answer.close(value, wanted), "1/z² = 1/z₁² + 1/z₂²", (near or [otherwise])[0])
    swapped = float(answer.array(answer(2.5, 0.7), ()))
    answer.expect(
        answer.close(swapped, 1 / math.sqrt(2.5**-2 + 0.7**-2)),
        "the order does not matter",
        "Exchange the two and the privacy is the same; your multiplier changed.",
    )


# design → (who can read one client's update without noise, whether what the others see is differentially private)
SEEN = {
    "central noise": ({"server"}, True),
    "client-side noise": (set(), True),
    "central noise and secure aggregation": (set(), True),
    "secure aggregation alone": (set(), False),
}


@exercise("Exercise 10.5, who_sees_what")
def who_sees_what(answer):
    """``who_sees_what(design) -> (readers, private)``: who reads one exact update, and is the model private?"""
    form = "Return a set of readers and True or False, for example `return {\"server\"}, True`."
    for design, (readers, private) in SEEN.items():
        got, kept = answer.pair(answer(design), "returns a pair (readers, private)", form)
        names = _names(got)
        answer.expect(names is not None and isinstance(kept, (bool, np.bool_)), "names readers and says yes or no", form)
        answer.expect(
            names <= {"server", "clients"},
            "readers are the server and the other clients",
            f"Readers are among \"server\" and \"clients\", got {sorted(names)}.",
        )
        if names != readers:
            answer.expect(False, "who can read one client's update", _reader_hint(design, names))
        if bool(kept) != private:
            answer.expect(False, "whether the released model is private", _private_hint(design))
    answer.expect(True, "who can read one client's update, in all four designs", "")
    answer.expect(True, "whether the released model is private, in all four designs", "")


def _reader_hint(design, names):
    if "clients" in names:
        return "Clients get the new model and nothing else; none of these designs shows them one update."
    if design == "central noise":
        return "You say that central noise hides updates from the server. Who adds the noise, and what did it hold just before?"
    if design == "client-side noise":
        return "The noise is there before the message leaves the client: what the server reads is never the exact update."
    return "Secure aggregation hands the server a sum, and no single term of it."


def _private_hint(design):
    if design == "secure aggregation alone":
        return (
            "Secure aggregation alone is not differential privacy. An exact sum over everybody but you, and an exact sum over everybody: subtract."
        )
    return f"With {design}, what leaves the server has noise in it, made for the clip norm: the model is private."


def _names(readers):
    if isinstance(readers, str):
        return {readers}
    try:
        names = set(readers)
    except TypeError:
        return None
    return names if all(isinstance(name, str) for name in names) else None
