"""The checks of chapter 10 accept every right answer and tell wrong ones apart."""

import math

import numpy as np
import pytest
import torch
from checking import every_exercise, stub
from scipy.special import comb, logsumexp

from fedlib import accounting, privacy
from fedlib.check import chapter10 as check

# 10.1 clip_rows --------------------------------------------------------------------------------------------


def clip_with_numpy(deltas, S):
    lengths = np.linalg.norm(deltas, axis=1, keepdims=True)
    return deltas * np.minimum(1, S / np.maximum(lengths, 1e-12))


def clip_in_a_loop(deltas, S):
    rows = []
    for row in deltas:
        length = math.sqrt(sum(x * x for x in row))
        rows.append([x * S / length for x in row] if length > S else list(row))
    return rows


def clip_where(deltas, S):
    lengths = np.sqrt((np.asarray(deltas) ** 2).sum(axis=1))
    scale = np.ones(len(lengths))
    scale[lengths > S] = S / lengths[lengths > S]
    return np.einsum("kd,k->kd", deltas, scale)


def clip_with_torch(deltas, S):
    return deltas / deltas.norm(dim=1, keepdim=True).div(S).clamp(min=1)


def clip_renorm(deltas, S):
    return torch.renorm(deltas, p=2, dim=0, maxnorm=S)


def clip_in_single_precision(deltas, S):
    return clip_with_numpy(np.float32(deltas), np.float32(S))


CLIP = [clip_with_numpy, clip_in_a_loop, clip_where, clip_with_torch, clip_renorm, clip_in_single_precision, privacy.clip_rows]


def norms(deltas, axis=1):
    return np.linalg.norm(deltas, axis=axis, keepdims=True)


CLIP_WRONG = {
    "is up to √d·S": lambda deltas, S: np.clip(deltas, -S, S),
    "now shouts": lambda deltas, S: deltas * S / norms(deltas),
    "not thrown away": lambda deltas, S: deltas * (norms(deltas) <= S),
    "the matrix as a whole": lambda deltas, S: deltas * min(1, S / np.linalg.norm(deltas)),
    "squared length": lambda deltas, S: deltas * np.minimum(1, S / norms(deltas) ** 2),
    "absolute values": lambda deltas, S: deltas * np.minimum(1, S / np.abs(deltas).sum(axis=1, keepdims=True)),
    "S times too long or too short": lambda deltas, S: deltas / np.maximum(norms(deltas), S),
    "as they came": lambda deltas, S: deltas * 1.0,
    "minimum and maximum are exchanged": lambda deltas, S: deltas * np.maximum(1, S / norms(deltas)),
    "a mean length for all": lambda deltas, S: deltas * min(1, S / norms(deltas).mean()),
    "You measure columns": lambda deltas, S: deltas * np.minimum(1, S / norms(deltas, 0)),
    "what do you divide by": lambda deltas, S: deltas * np.minimum(S, norms(deltas)) / norms(deltas),
}
CLIP_ALSO_WRONG = {
    "too short": lambda deltas, S: clip_with_numpy(deltas, 0.9 * S),
    "too long": lambda deltas, S: clip_with_numpy(deltas, 1.01 * S),
    "shrunk by the tail": lambda deltas, S: deltas / (1 + norms(deltas) / S),
    "turned round": lambda deltas, S: -clip_with_numpy(deltas, S),
    "one row": lambda deltas, S: clip_with_numpy(deltas, S)[0],
    "the transpose": lambda deltas, S: clip_with_numpy(deltas, S).T,
}

# 10.2 private_mean -----------------------------------------------------------------------------------------


def mean_with_numpy(deltas, S, z, q, N, rng):
    total = clip_with_numpy(deltas, S).sum(axis=0)
    return (total + rng.normal(0, z * S, deltas.shape[1])) / (q * N)


def mean_with_noise_afterwards(deltas, S, z, q, N, rng):
    update = np.zeros(deltas.shape[1])
    for row in deltas:
        update += row * min(1, S / max(np.linalg.norm(row), 1e-30)) / (q * N)
    return update + z * S / (q * N) * rng.standard_normal(len(update))


def mean_with_torch(deltas, S, z, q, N, rng):
    total = clip_with_torch(deltas, S).sum(dim=0)
    return (total + z * S * torch.from_numpy(rng.normal(size=len(total)))) / (q * N)


def mean_in_single_precision(deltas, S, z, q, N, rng):
    return np.float32(mean_with_numpy(deltas, S, z, q, N, rng))


MEAN = [mean_with_numpy, mean_with_noise_afterwards, mean_with_torch, mean_in_single_precision]


def sums(total=None, divide=None, noise=None):
    """Return an answer in which one thing is done differently."""

    def mean(deltas, S, z, q, N, rng):
        m, d = deltas.shape
        value = (total or (lambda rows, S: clip_with_numpy(rows, S).sum(axis=0)))(deltas, S)
        value = value / (divide(m, q, N) if divide else q * N)
        std = noise(m, S, z, q, N) if noise else z * S / (q * N)
        return value + rng.normal(0, std, d)

    return mean


def unclipped(rows, S):
    return rows.sum(axis=0)


def clipped_sum(rows, S):
    return clip_with_numpy(rows.sum(axis=0)[None], S)[0]


def row_noise(deltas, S, z, q, N, rng):
    rows = clip_with_numpy(deltas, S)
    return (rows + rng.normal(0, z * S, rows.shape)).sum(axis=0) / (q * N)


def one_number(deltas, S, z, q, N, rng):
    return clip_with_numpy(deltas, S).sum(axis=0) / (q * N) + rng.normal(0, z * S / (q * N))


def own_generator(deltas, S, z, q, N, rng):
    return mean_with_numpy(deltas, S, z, q, N, np.random.default_rng())


MEAN_WRONG = {
    "everyone's share changes": sums(divide=lambda m, q, N: max(m, 1)),
    "Your noise is qN times too large": sums(noise=lambda m, S, z, q, N: z * S),
    "Nothing bounds your clients": sums(total=unclipped),
    "You clip the sum": sums(total=clipped_sum),
    "That is the sum": sums(divide=lambda m, q, N: 1),
    "all N registered": sums(divide=lambda m, q, N: N),
    "q times the number drawn": sums(divide=lambda m, q, N: q * max(m, 1)),
    "the short ones too": sums(total=lambda rows, S: (S * rows / np.maximum(norms(rows), 1e-9)).sum(axis=0)),
    "You clip the entries": sums(total=lambda rows, S: np.clip(rows, -S, S).sum(axis=0)),
    "There is no noise": sums(noise=lambda m, S, z, q, N: 0),
    "S is missing": sums(noise=lambda m, S, z, q, N: z / (q * N)),
    "Neither S nor qN": sums(noise=lambda m, S, z, q, N: z),
    "the square root of qN": sums(noise=lambda m, S, z, q, N: z * S / math.sqrt(q * N)),
    "noise to every row": row_noise,
    "the noise by the number drawn": sums(noise=lambda m, S, z, q, N: z * S / max(m, 1)),
    "You divide by N:": sums(noise=lambda m, S, z, q, N: z * S / N),
    "You take (z S)²": sums(noise=lambda m, S, z, q, N: (z * S) ** 2 / (q * N)),
    "use `rng.normal`": lambda deltas, S, z, q, N, rng: (
        clip_with_numpy(deltas, S).sum(axis=0) / (q * N) + 3**0.5 * z * S / (q * N) * rng.uniform(-1, 1, deltas.shape[1])
    ),
    "clip always": lambda deltas, S, z, q, N, rng: (
        (deltas if z else clip_with_numpy(deltas, S)).sum(axis=0) / (q * N) + rng.normal(0, z * S / (q * N), deltas.shape[1])
    ),
    "has variance z S": sums(noise=lambda m, S, z, q, N: math.sqrt(z * S) / (q * N)),
    "All entries got the same number": one_number,
    "draw from `rng`": own_generator,
}
MEAN_ALSO_WRONG = {
    "uniform noise shifted": lambda deltas, S, z, q, N, rng: (
        mean_with_numpy(deltas, S, z, q, N, rng) + 0.5 * z * S / (q * N)
    ),
    "no noise for nobody": lambda deltas, S, z, q, N, rng: (
        mean_with_numpy(deltas, S, z, q, N, rng) if len(deltas) else np.zeros(deltas.shape[1])
    ),
    "a whole number is expected": sums(divide=lambda m, q, N: max(1, round(q * N))),
    "as loud as the longest": lambda deltas, S, z, q, N, rng: (
        clip_with_numpy(deltas, S).sum(axis=0)
        + rng.normal(0, z * norms(clip_with_numpy(deltas, S)).max(initial=0), deltas.shape[1])
    ) / (q * N),
    "twice": sums(noise=lambda m, S, z, q, N: 2 * z * S / (q * N)),
    "fixed seed": lambda deltas, S, z, q, N, rng: mean_with_numpy(deltas, S, z, q, N, np.random.default_rng(0)),
    "a matrix": lambda deltas, S, z, q, N, rng: deltas,
    "subtracted": lambda deltas, S, z, q, N, rng: -mean_with_numpy(deltas, S, z, q, N, rng),
}

# 10.3 epsilon ----------------------------------------------------------------------------------------------


def epsilon_ten_lines(q, z, T, delta):
    best = math.inf
    for a in range(2, 65):
        terms = [math.comb(a, j) * (1 - q) ** (a - j) * q**j * math.exp(min(700, j * (j - 1) / (2 * z**2)))
                 for j in range(a + 1)]  # fmt: skip
        rho = math.log(sum(terms)) / (a - 1)
        best = min(best, T * rho + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1))
    return best


def epsilon_with_logarithms(q, z, T, delta):
    found = []
    for a in np.arange(2, 200):
        j = np.arange(a + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            stay = np.where(a == j, 0.0, (a - j) * np.log1p(-q))
        rho = logsumexp(np.log(comb(a, j)) + stay + j * np.log(q) + j * (j - 1) / (2 * z**2)) / (a - 1)
        found.append(T * rho + np.log1p(-1 / a) - np.log(delta * a) / (a - 1))
    return np.min(found)


EPSILON = [epsilon_ten_lines, epsilon_with_logarithms, accounting.epsilon_by_hand]


def epsilon_from_the_package(q, z, T, delta):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(range(2, 257)).compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), T).get_epsilon(delta)


EPSILON.append(epsilon_from_the_package)
by_hand = accounting.epsilon_by_hand

EPSILON_WRONG = {
    "That is T times": lambda q, z, T, delta: T * by_hand(q, z, 1, delta),
    "That is √T times": lambda q, z, T, delta: T**0.5 * by_hand(q, z, 1, delta),
    "At T = 1 you claim 0.48": lambda q, z, T, delta: q * by_hand(1, z, T, delta),
    "q does not enter": lambda q, z, T, delta: by_hand(1, z, T, delta),
    "T does not enter": lambda q, z, T, delta: by_hand(q, z, 1, delta),
    "the older conversion": lambda q, z, T, delta: by_hand(q, z, T, delta, "classic"),
    "z enters squared": lambda q, z, T, delta: by_hand(q, math.sqrt(z), T, delta),
    "not j²/(2z²)": lambda q, z, T, delta: check._variant(q, z, T, delta, square=True),
    "you take ν = 2": lambda q, z, T, delta: check._variant(q, z, T, delta, orders=range(2, 3)),
    "You take the largest bound": lambda q, z, T, delta: check._variant(q, z, T, delta, orders=range(2, 65), choose=max),
    "base 10": lambda q, z, T, delta: check._variant(q, z, T, delta, base=10),
    "that ε would not be true": lambda q, z, T, delta: 0.5 * by_hand(q, z, T, delta),
    "the formula gives": lambda q, z, T, delta: 1.1 * by_hand(q, z, T, delta),
}
EPSILON_ALSO_WRONG = {
    "privacy loss distributions": lambda q, z, T, delta: accounting.epsilon(q, z, T, delta),
    "a constant": lambda q, z, T, delta: 2.133006,
    "all orders": lambda q, z, T, delta: [by_hand(q, z, T, delta)] * 3,
    "the strong composition of textbooks": lambda q, z, T, delta: (
        by_hand(q, z, 1, delta) * math.sqrt(2 * T * math.log(1 / delta))
    ),
    "fewer orders": lambda q, z, T, delta: check._variant(q, z, T, delta, orders=range(2, 4)),
}

# 10.4 joint_multiplier -------------------------------------------------------------------------------------


def joint_by_formula(z_delta, z_control):
    return 1 / math.sqrt(1 / z_delta**2 + 1 / z_control**2)


def joint_as_a_ratio(z_delta, z_control):
    return z_delta * z_control / np.hypot(z_delta, z_control)


def joint_with_norms(z_delta, z_control):
    return [1 / np.linalg.norm([1 / z_delta, 1 / z_control])]


def joint_with_torch(z_delta, z_control):
    return torch.tensor([z_delta, z_control]).pow(-2).sum().rsqrt()


JOINT = [joint_by_formula, joint_as_a_ratio, joint_with_norms, joint_with_torch, privacy.joint_multiplier]

JOINT_WRONG = {
    "the second release is ignored": lambda a, b: a,
    "The first release is ignored": lambda a, b: b,
    "You return the smaller z": min,
    "You return the larger z": max,
    "it is in both": lambda a, b: 0.8381 * min(a, b),
    "z has to become smaller": math.hypot,
    "as good as one release": lambda a, b: (a + b) / 2,
    "Squares are missing": lambda a, b: 1 / (1 / a + 1 / b),
    "that is z squared": lambda a, b: 1 / (a**-2 + b**-2),
    "That is 1/z": lambda a, b: math.sqrt(a**-2 + b**-2),
    "How long is that": lambda a, b: 0.5 * joint_by_formula(a, b) ** 1.3,
}
JOINT_ALSO_WRONG = {
    "half": lambda a, b: a / 2,
    "always the same": lambda a, b: 0.70710678,
    "the product": lambda a, b: a * b,
    "the first matters more": lambda a, b: 1 / math.sqrt(a**-2 + b**-2 + (a > 2 > b and b > 0.6)),
    "over √2": lambda a, b: a / math.sqrt(2),
    "two numbers": lambda a, b: (a, b),
}

# 10.5 who_sees_what ----------------------------------------------------------------------------------------


def who_by_table(design):
    return {
        "central noise": ({"server"}, True),
        "client-side noise": (set(), True),
        "central noise and secure aggregation": (set(), True),
        "secure aggregation alone": (set(), False),
    }[design]


def who_by_words(design):
    hidden = "client-side" in design or "secure" in design
    return ([] if hidden else ["server"]), "noise" in design


def who_with_a_tuple(design):
    return (() if design != "central noise" else ("server",)), np.bool_(design != "secure aggregation alone")


def who_with_a_name(design):
    return ("server" if design == "central noise" else []), "noise" in design


WHO = [who_by_table, who_by_words, who_with_a_tuple, who_with_a_name]


def instead(design, answer):
    return lambda asked: answer if asked == design else who_by_table(asked)


WHO_WRONG = {
    "what did it hold just before?": instead("central noise", (set(), True)),
    "subtract": instead("secure aggregation alone", (set(), True)),
    "before the message leaves": instead("client-side noise", ({"server"}, True)),
    "no single term": instead("central noise and secure aggregation", ({"server"}, True)),
    "Clients get the new model": instead("central noise", ({"server", "clients"}, True)),
    "made for the clip norm": instead("client-side noise", (set(), False)),
    'are among "server"': instead("central noise", ({"the server"}, True)),
    "Return a set of readers": lambda design: {"server"},
}
WHO_ALSO_WRONG = {
    "nobody, everything private": lambda design: (set(), True),
    "the server always": lambda design: ({"server"}, True),
    "words": lambda design: (who_by_table(design)[0], "yes"),
    "numbers": lambda design: ({1}, True),
    "a number": lambda design: (3, True),
    "nothing is private": lambda design: (who_by_table(design)[0], False),
    "turned round": lambda design: who_by_table(design)[::-1],
}

# All five --------------------------------------------------------------------------------------------------

EXERCISES = {
    "clip_rows": (CLIP, CLIP_WRONG, CLIP_ALSO_WRONG),
    "private_mean": (MEAN, MEAN_WRONG, MEAN_ALSO_WRONG),
    "epsilon": (EPSILON, EPSILON_WRONG, EPSILON_ALSO_WRONG),
    "joint_multiplier": (JOINT, JOINT_WRONG, JOINT_ALSO_WRONG),
    "who_sees_what": (WHO, WHO_WRONG, WHO_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES, inputs=["clip_rows", "private_mean"])


def test_the_property_that_broke_is_the_one_that_matters():
    for phrase, broken in {"is up to √d·S": "no row is longer than S", "now shouts": "rows already inside are unchanged"}.items():
        assert check.clip_rows(CLIP_WRONG[phrase]).broken == broken


def test_checks_do_not_touch_the_global_generators():
    np.random.seed(5)
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    for name, (right, _, _) in EXERCISES.items():
        getattr(check, name)(right[0])
        assert getattr(check, name)(stub).status == "not done"
    assert np.array_equal(np.random.get_state()[1], state) and torch.equal(torch.get_rng_state(), torch_state)


def test_the_variant_without_a_fault_is_the_library_s_formula():
    for setting in ((0.1, 1, 100, 1e-5), (1, 2, 3, 1e-6), (0.02, 0.8, 10, 1e-5)):
        assert check._variant(*setting) == pytest.approx(accounting.epsilon_by_hand(*setting), rel=1e-9)
