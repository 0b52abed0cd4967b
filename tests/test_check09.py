"""The checks of chapter 9 accept every right answer and tell wrong ones apart."""

import math

import numpy as np
import torch
from checking import every_exercise, stub

from fedlib import leakage
from fedlib.check import chapter09 as check

# 9.1 invert_linear -----------------------------------------------------------------------------------------


def invert(grad_W, grad_b):
    unit = np.argmax(np.abs(grad_b))
    if grad_b[unit] == 0:
        raise ValueError("no unit reacted")
    return grad_W[unit] / grad_b[unit]


def invert_by_least_squares(grad_W, grad_b):
    if not np.any(grad_b):
        raise ValueError("no unit reacted")
    return grad_b @ grad_W / (grad_b @ grad_b)


def invert_with_lists(grad_W, grad_b):
    weight, row = max(zip(map(abs, grad_b), range(len(grad_b)), strict=True))
    if weight == 0:
        raise ValueError("no unit reacted")
    return [value / grad_b[row] for value in grad_W[row] + []]


def invert_in_single_precision(grad_W, grad_b):
    return invert(np.float32(grad_W), np.float32(grad_b))


def invert_by_svd(grad_W, grad_b):
    if not np.any(grad_b):
        raise ValueError("no unit reacted")
    return np.linalg.lstsq(grad_b[:, None], grad_W, rcond=None)[0][0]


INVERT = [
    invert, invert_by_least_squares, invert_with_lists, invert_in_single_precision, invert_by_svd, leakage.invert_linear,
]  # fmt: skip


def refusing(function):
    def with_refusal(grad_W, grad_b):
        if not np.any(grad_b):
            raise ValueError("no unit reacted")
        return function(grad_W, grad_b)

    return with_refusal


def careless(grad_W, grad_b):
    unit = np.argmax(np.abs(grad_b))
    return grad_W[unit] / grad_b[unit]


def invert_the_largest(grad_W, grad_b):
    unit = np.argmax(np.asarray(grad_b))
    if grad_b[unit] == 0:
        raise ValueError("no unit reacted")
    return grad_W[unit] / grad_b[unit]


def deaf(grad_W, grad_b):
    if np.abs(np.asarray(grad_b)).max() <= 0.01:
        raise ValueError("no unit reacted")
    return invert(grad_W, grad_b)


def by_accident(grad_W, grad_b):
    kept = [(b, row) for b, row in zip(grad_b, grad_W, strict=True) if abs(b) > 1e-9]
    return kept[0][1] / kept[0][0]


INVERT_WRONG = {
    "A silent unit gives 0/0": lambda W, b: (W / b[:, None]).mean(axis=0),
    "Right direction, wrong brightness": lambda W, b: invert(W / np.linalg.norm(W), b),
    "That is a row of grad_W": lambda W, b: W[np.argmax(np.abs(b))],
    "the sum of the rows": lambda W, b: W.sum(axis=0),
    "the mean of the rows": lambda W, b: W.mean(axis=0) if len(b) > 1 else W[0] * 0,
    "The sign is wrong": lambda W, b: -invert(W, b),
    "You multiply where": lambda W, b: W[np.argmax(np.abs(b))] * b[np.argmax(np.abs(b))],
    "they spoil your answer": refusing(
        lambda W, b: np.nan_to_num(W / np.where(b == 0, 1, b)[:, None]).mean(axis=0)
    ),
    "your sum has lost x": refusing(lambda W, b: W.sum(axis=0) / (b.sum() or 1.0)),
    "Which unit divides best?": refusing(lambda W, b: W[np.flatnonzero(b)[0]] / b[np.flatnonzero(b)[0]]),
    "there is nothing to divide by": careless,
    "came out as IndexError": by_accident,
}

INVERT_ALSO_WRONG = {
    "the largest entry, not in magnitude": invert_the_largest,
    "small gradients are refused": deaf,
    "the first unit": refusing(lambda W, b: W[0] / b[0]),
    "the third unit, if there is one": refusing(lambda W, b: W[min(2, len(b) - 1)] / b[min(2, len(b) - 1)]),
    "columns": refusing(lambda W, b: W.T[0]),
    "the pseudo-inverse of W": refusing(lambda W, b: np.linalg.pinv(W) @ b),
    "unit length": refusing(lambda W, b: check._unit(invert(W, b))),
    "another exception": lambda W, b: invert(W, b) if np.any(b) else exec("raise KeyError('b')"),
}

# 9.2 infer_label -------------------------------------------------------------------------------------------


def label_with_lists(grad):
    return (grad + []).index(min(grad))


LABEL = [
    np.argmin, lambda g: int(np.flatnonzero(np.asarray(g) < 0)[0]), label_with_lists, lambda g: g.detach().argmin(),
    lambda g: np.argsort(g)[0], leakage.infer_label,
]  # fmt: skip

LABEL_WRONG = {
    "has the largest positive entry": np.argmax,
    "Look at the sign": lambda g: np.abs(g).argmax(),
    "the model ruled out": lambda g: np.abs(g).argmin(),
    "counted from 0": lambda g: np.argmin(g) + 1,
    "That is the label's entry": np.min,
    "how many entries are negative": lambda g: np.sum(np.asarray(g) < 0),
    "the probability of the label": lambda g: 1 + np.min(g),
    "belongs to another class": lambda g: np.argsort(g)[-2],
    "The entries are p − e_y": lambda g: 0,
}

LABEL_ALSO_WRONG = {
    "one-hot": lambda g: np.asarray(g) < 0,
    "the first below 1/C": lambda g: int(np.flatnonzero(g < 1 / len(g))[0]),
    "the last": lambda g: len(g) - 1,
}

# 9.3 infer_counts ------------------------------------------------------------------------------------------


def counts(grad, mean_p, B):
    return B * (mean_p - grad)


COUNTS = [
    counts, lambda g, p, B: np.round(counts(g, p, B)), lambda g, p, B: [B * (q - a) for a, q in zip(g, p, strict=True)],
    lambda g, p, B: np.rint(np.float32(B) * (np.float32(p) - np.float32(g))).astype(int), leakage.infer_counts,
]  # fmt: skip

COUNTS_WRONG = {
    "Two pictures of the same class leave one negative entry": lambda g, p, B: (g < 0) * 1,
    "this model has learned": lambda g, p, B: B * (1 / len(g) - g),
    "Those are shares of the batch": lambda g, p, B: p - g,
    "You add where you should subtract": lambda g, p, B: B * (p + g),
    "The sign is wrong": lambda g, p, B: B * (g - p),
    "is not yet a count": lambda g, p, B: -B * g,
    "still in it": lambda g, p, B: B * g,
    "your counts sum to": lambda g, p, B: (B + 2) * (p - g),
    "You round up": lambda g, p, B: np.ceil(counts(g, p, B)),
    "You round down": lambda g, p, B: np.floor(counts(g, p, B)),
    "The gradient is p̄ minus": lambda g, p, B: counts(g, p, B)[::-1],
}

COUNTS_ALSO_WRONG = {
    "uniform and rounded": lambda g, p, B: np.round(B * (1 / len(g) - g)),
    "B equally shared": lambda g, p, B: np.full(len(g), B / len(g)),
    "a number": lambda g, p, B: B,
    "the classes that occur": lambda g, p, B: (p - g > 0.01) * 1,
    "rounded down": lambda g, p, B: np.floor(counts(g, p, B) - 1e-9),
    "clipped gradient": lambda g, p, B: B * np.maximum(-g, 0),
}

# 9.4 psnr --------------------------------------------------------------------------------------------------


def wide(values, x):
    return np.asarray(values)[:, None, None] + 0 * np.asarray(x)


def score(x, x_hat, mean, std):
    error = np.mean(((x - x_hat) * wide(std, x)) ** 2)
    return np.inf if error == 0 else -10 * np.log10(error)


def score_after_undoing(x, x_hat, mean, std):
    a, b = (wide(mean, x) + wide(std, x) * np.asarray(v) for v in (x, x_hat))
    return 20 * np.log10(1 / np.sqrt(((a - b) ** 2).mean()))


def score_with_torch(x, x_hat, mean, std):
    error = torch.nn.functional.mse_loss(x.mul(std[:, None, None]), x_hat * std[:, None, None])
    return -10 * error.log10()


def score_with_bytes(x, x_hat, mean, std):
    a, b = (255 * (wide(mean, x) + wide(std, x) * v) for v in (x, x_hat))
    error = ((a - b) ** 2).mean()
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def score_in_an_array(x, x_hat, mean, std):
    return np.array([score(x, x_hat, mean, std)])


def score_to_two_digits(x, x_hat, mean, std):
    return round(float(score(x, x_hat, mean, std)), 2)


PSNR = [score, score_after_undoing, score_with_torch, score_with_bytes, score_in_an_array, score_to_two_digits]


def scored(peak=1.0, undo=True, log=np.log10, factor=-10, reduce=np.mean, power=2):
    def wrong(x, x_hat, mean, std):
        a, b = ((wide(mean, v) + wide(std, v) * v) if undo else v for v in (x, x_hat))
        error = reduce(np.abs(a - b) ** power) / (peak(a, b) if callable(peak) else peak) ** power
        return np.inf if error == 0 else factor * log(error)

    return wrong


PSNR_WRONG = {
    "Change the normalization constants": scored(undo=False),
    "Range taken from the reconstruction": scored(peak=lambda a, b: b.max() - b.min()),
    "Peak taken from the reconstruction": scored(peak=lambda a, b: b.max()),
    "Range taken from the picture": scored(peak=lambda a, b: a.max() - a.min()),
    "Better pictures must score higher": scored(factor=10),
    "the root of the mean squared error": lambda x, z, m, s: np.sqrt(np.mean(((x - z) * wide(s, x)) ** 2)),
    "That is the mean squared error": lambda x, z, m, s: np.mean(((x - z) * wide(s, x)) ** 2),
    "this is the natural one": scored(log=np.log),
    "You multiply by 20": scored(factor=-20),
    "That is the logarithm of the error's root": scored(factor=-5),
    "You divide by the error": lambda x, z, m, s: 10 * math.log10(1 / float(np.mean(((x - z) * wide(s, x)) ** 2))),
    "Decibels are ten times the logarithm.": scored(factor=-1),
    "Sum over pixels": scored(reduce=np.sum),
    "You divide by std once more": lambda x, z, m, s: score(x / wide(s, x) ** 2, z / wide(s, x) ** 2, m, s),
    "the mean squared error is": scored(power=1),
    "Of a picture and itself": lambda x, z, m, s: min(score(x, z, m, s), 100.0),
}

PSNR_ALSO_WRONG = {
    "log of zero": lambda x, z, m, s: -10 * math.log10(float(np.mean(((x - z) * wide(s, x)) ** 2))),
    "one number a channel": lambda x, z, m, s: -10 * np.log10(np.mean(((x - z) * wide(s, x)) ** 2, axis=(1, 2))),
    "mean of the channels' scores": lambda x, z, m, s: np.mean(
        -10 * np.log10(np.mean(((x - z) * wide(s, x)) ** 2, axis=(1, 2)) + 1e-300)
    ),
    "bytes without their range": scored(peak=1 / 255),
    "range of the reconstruction if it has one": scored(peak=lambda a, b: (b.max() - b.min()) or 1.0),
}

# 9.5 leak_control_variate ----------------------------------------------------------------------------------


def parts(vector, shape):
    h, f = shape
    return np.asarray(vector)[: h * f].reshape(h, f), np.asarray(vector)[h * f : h * f + h]


def leak(c_k, c, shape):
    return invert(*parts(c_k, shape))


def leak_unit(c_k, shape, choose):
    W, b = parts(c_k, shape)
    return W[choose(b)] / b[choose(b)]


def leak_by_least_squares(c_k, c, shape):
    return invert_by_least_squares(*parts(c_k, shape))


def leak_with_tensors(c_k, c, shape):
    W, b, _ = torch.split(c_k, [shape[0] * shape[1], shape[0], len(c_k) - shape[0] * (shape[1] + 1)])
    return leakage.invert_linear(W.view(shape), b)


def leak_from_the_delta(c_k, c, shape):
    return leak(-0.1 * np.asarray(c_k), c, shape)


LEAK = [leak, leak_by_least_squares, leak_with_tensors, leak_from_the_delta]

LEAK_WRONG = {
    "That is an average over clients": lambda c_k, c, shape: leak(c, c_k, shape),
    "What did exercise 9.1 start from?": lambda c_k, c, shape: np.zeros(shape[1]),
    "bends the client's steps": lambda c_k, c, shape: leak(c_k - c, c, shape),
    "c_k + c is no gradient": lambda c_k, c, shape: leak(c_k + c, c, shape),
    "That is a row of W's part": lambda c_k, c, shape: parts(c_k, shape)[0][1],
    "you cut it the other way round": lambda c_k, c, shape: invert(
        parts(c_k, shape)[0].ravel().reshape(shape[::-1]).T, parts(c_k, shape)[1]
    ),
    "The sign is wrong": lambda c_k, c, shape: -leak(c_k, c, shape),
    "those at the end of the vector": lambda c_k, c, shape: invert(parts(c_k, shape)[0], c_k[-shape[0] :]),
    "Right direction, wrong brightness": lambda c_k, c, shape: leak(c_k, c, shape) * 2,
    "A silent unit gives 0/0": lambda c_k, c, shape: (
        parts(c_k, shape)[0] / parts(c_k, shape)[1][:, None]
    ).mean(axis=0),
    "From zero, one full-batch step": lambda c_k, c, shape: leak(c_k, c, shape) + 1,
}

LEAK_ALSO_WRONG = {
    "the least entry": lambda c_k, c, shape: leak_unit(c_k, shape, np.argmin),
    "the largest entry, not in magnitude": lambda c_k, c, shape: leak_unit(c_k, shape, np.argmax),
    "the last unit": lambda c_k, c, shape: leak_unit(c_k, shape, lambda b: -1),
    "the control variate": lambda c_k, c, shape: c_k,
    "one zero": lambda c_k, c, shape: 0.0,
    "the first unit": lambda c_k, c, shape: parts(c_k, shape)[0][0] / parts(c_k, shape)[1][0],
    "the rows' mean": lambda c_k, c, shape: parts(c_k, shape)[0].mean(axis=0),
}

# All five --------------------------------------------------------------------------------------------------

EXERCISES = {
    "invert_linear": (INVERT, INVERT_WRONG, INVERT_ALSO_WRONG),
    "infer_label": (LABEL, LABEL_WRONG, LABEL_ALSO_WRONG),
    "infer_counts": (COUNTS, COUNTS_WRONG, COUNTS_ALSO_WRONG),
    "psnr": (PSNR, PSNR_WRONG, PSNR_ALSO_WRONG),
    "leak_control_variate": (LEAK, LEAK_WRONG, LEAK_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES)


def test_a_logarithm_of_zero_hears_about_equal_pictures():
    assert "What does their PSNR approach?" in check.psnr(PSNR_ALSO_WRONG["log of zero"]).hint


def test_the_checks_ask_confident_and_undecided_models():
    """What a model believes decides which shortcuts work; a check that asked only one kind would accept them."""
    asked = []
    check.infer_label(lambda grad: asked.append(np.array(grad)) or np.argmin(grad))
    assert min(grad.min() for grad in asked) < -0.99 and max(grad.min() for grad in asked) > -0.1
    assert {len(grad) for grad in asked} >= {2, 10}


def test_stubs_are_not_done():
    assert all(getattr(check, name)(stub).status == "not done" for name in EXERCISES)
