"""Checks for chapter 9, gradient leakage."""

import math

import numpy as np

from fedlib.check.core import exercise
from fedlib.rng import stream

SILENT = "A silent unit gives 0/0, which is no number. Use a unit that reacted to the sample."


def _first(answer, usual, got):
    return next((text for text, wrong in usual.items() if answer.close(got, wrong)), None)


def _trace(rng, h, f, zeros=()):
    """Return a sample and its gradients at a linear layer; the units in ``zeros`` did not react."""
    x, grad_b = rng.normal(0, 1, f), rng.normal(0, 0.5, h)
    grad_b[list(zeros)] = 0
    return x, np.outer(grad_b, x), grad_b


@exercise("Exercise 9.1, invert_linear")
def invert_linear(answer):
    """``invert_linear(grad_W [h, f], grad_b [h]) -> x [f]``, a linear layer's input from one sample's gradient."""
    rng = stream(0, "check", 901)
    answer.tolerance = 1e-8
    answer.undefined = SILENT

    def inverted(grad_W, grad_b):
        wanted = "One number for each column of grad_W."
        return answer.array(answer(grad_W, grad_b), grad_W.shape[1:], "the input", wanted)

    for h, f in ((4, 6), (7, 3), (1, 5)):
        x, grad_W, grad_b = _trace(rng, h, f)
        got = inverted(grad_W, grad_b)
        unit = np.abs(grad_b).argmax()
        row = grad_W[unit]
        usual = {
            "That is a row of grad_W: x, times that unit's bias gradient. Divide it away.": row,
            "Your answer is the sum of the rows: x, times the sum of the bias gradients. Divide it away.": grad_W.sum(0),
            "Your answer is the mean of the rows: x, times the mean bias gradient. Divide it away.": grad_W.mean(0),
            "The sign is wrong: a row of grad_W is plus x times that unit's bias gradient.": -x,
            "You multiply where the formula asks you to divide.": row * grad_b[unit],
        }
        direction = answer.close(_unit(got), _unit(x)) or answer.close(_unit(got), _unit(-x))
        answer.expect(
            answer.close(got, x),
            "finds the input exactly",
            _first(answer, usual, got)
            or (
                "Right direction, wrong brightness: which quantity carries the scale? Not the length of the gradient."
                if direction
                else "∂ℓ/∂W = (∂ℓ/∂b) xᵀ: every row of grad_W is x times a number, an entry of grad_b. "
                f"Your answer differs from x by up to {np.abs(got - x).max():.3g}."
            ),
        )
    for zeros in ((0, 1, 2), (3, 4, 5), (0, 2, 4)):
        x, grad_W, grad_b = _trace(rng, 6, 4, zeros)
        got = inverted(grad_W, grad_b)
        answer.expect(
            answer.close(got, x),
            "units that did not react are passed over",
            "Half of the units did not react, and they spoil your answer: a silent unit has nothing to say about x.",
        )
    x, grad_W, grad_b = _trace(rng, 4, 5)
    grad_b = np.array([0.5, 0.25, -0.5, -0.25])
    got = inverted(np.outer(grad_b, x), grad_b)
    answer.expect(
        answer.close(got, x),
        "bias gradients that cancel do no harm",
        "Here the bias gradients add up to 0, as those of softmax outputs always do, and your sum has lost x. "
        "One unit is enough.",
    )
    grad_b = np.array([0.0, 1e-14, 0.5])
    got = inverted(np.outer(grad_b, x) + 1e-17, grad_b)
    answer.expect(
        answer.close(got, x),
        "the unit is chosen with care",
        "One unit reacted with 1e-14 here, and rounding makes its quotient worthless. Which unit divides best?",
    )
    grad_b = np.array([-0.5, 0.0, -0.3])
    got = inverted(np.outer(grad_b, x), grad_b)
    answer.expect(
        answer.close(got, x),
        "negative bias gradients are as good as positive ones",
        "Here two units have negative bias gradients and one did not react, and you chose that one: it is the magnitude that counts.",
    )
    small = 1e-6 * grad_b
    got = inverted(np.outer(small, x), small)
    answer.expect(
        answer.close(got, x),
        "small gradients are not silent ones",
        "All gradients are a million times smaller here, and the quotient is the same. Silent is a unit whose bias gradient is 0.",
    )
    _expect_refusal(answer, np.zeros((3, 4)), np.zeros(3))


def _expect_refusal(answer, grad_W, grad_b):
    prepared, raised = answer._prepare((grad_W, grad_b)), None
    try:
        with np.errstate(all="ignore"):
            value = answer.function(*prepared)
    except Exception as error:
        raised = error
    description = "raises ValueError if no unit reacted"
    answer.expect(
        raised is not None,
        description,
        "No unit reacted to this sample: there is nothing to divide by, and yet you returned "
        f"{'None' if raised is None and value is None else 'something'}. Raise a ValueError that says so.",
    )
    answer.expect(
        type(raised) is ValueError,
        description,
        f"That no unit reacted came out as {type(raised).__name__}: {raised}. Raise a ValueError on purpose, which tells the "
        "caller what is the matter.",
    )


def _unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length else vector


@exercise("Exercise 9.2, infer_label")
def infer_label(answer):
    """``infer_label(grad_b_last [C]) -> int``, the label of one sample under cross-entropy."""
    rng = stream(0, "check", 902)
    cases = []
    for C, scale in ((10, 0.1), (5, 2.0), (10, 5.0), (2, 1.0), (2, 4.0), (100, 0.3)):
        for _ in range(6):
            y, z = int(rng.integers(C)), rng.normal(0, scale, C)
            cases.append((y, z))
        z = np.zeros(C)
        z[0] = 3.0 + scale
        cases += [(0, z), (C - 1, z)]  # sure and right, sure and wrong
    gradients = [_softmax(z) - np.eye(len(z))[y] for y, z in cases]
    got = [float(answer.array(answer(grad), (), "the label")) for grad in gradients]
    usual = {
        "A wrong class that the model believes in has the largest positive entry. What is the label's sign?": np.argmax,
        "With two classes both entries have the same magnitude. Look at the sign.": lambda g: np.abs(g).argmax(),
        "The smallest magnitude marks what the model ruled out already. Look at the sign.": lambda g: np.abs(g).argmin(),
        "Classes are counted from 0.": lambda g: g.argmin() + 1,
        "That is the label's entry, p_y − 1. Return its position.": lambda g: g.min(),
        "You return how many entries are negative. Which one is it?": lambda g: np.sum(g < 0),
        "That is the probability of the label. Return its position.": lambda g: 1 + g.min(),
        "The last entry of the sorted gradient belongs to another class: sort upward and take the first.": (
            lambda g: np.argsort(g)[-2]
        ),
    }
    right = [value == y for value, (y, _) in zip(got, cases, strict=True)]
    hint = next((text for text, rule in usual.items() if np.allclose(got, list(map(rule, gradients)), atol=1e-6)), None)
    if hint is None and not all(right):
        i = right.index(False)
        first = np.array2string(gradients[i][:5], precision=3)
        hint = (
            "The entries are p − e_y: probabilities, and one of them less 1. For the gradient "
            f"{first}{'…' if len(gradients[i]) > 5 else ''} you say {got[i]:g}."
        )
    answer.expect(all(right), "right for undecided, confident and mistaken models", hint or "")


def _softmax(z):
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


@exercise("Exercise 9.3, infer_counts")
def infer_counts(answer):
    """``infer_counts(grad_b_last [C], mean_p [C], B) -> [C]``, how often each class is in a batch."""
    rng = stream(0, "check", 903)
    # Untrained: every class about equally likely.  Then a trained model, which is not.
    for C, B, scale, trained in ((10, 8, 0.01, False), (4, 16, 0.01, False), (5, 12, 2.0, True), (3, 7, 3.0, True)):
        y = rng.integers(C, size=B)
        y[1] = y[0]  # at least one class comes twice
        z = rng.normal(0, scale, (B, C))
        z[np.arange(B), y] += 3.0 * trained
        p = _softmax(z)
        counts, mean_p = np.bincount(y, minlength=C), p.mean(0)
        grad_b = (p - np.eye(C)[y]).mean(0)
        mean_p = mean_p + (not trained) * 1e-3 * (-1.0) ** np.arange(C)  # a guess, if a very good one
        got = answer.array(answer(grad_b, mean_p, B), (C,), "the counts", "One number for each class.")
        exact = np.abs(got - counts).max() < 0.1 if not trained else answer.close(got, counts)
        usual = {
            "Those are shares of the batch. Counts sum to B.": mean_p - grad_b,
            "You add where you should subtract: the gradient is p̄ minus the shares of the labels.": B * (mean_p + grad_b),
            "The sign is wrong: a class that occurs pulls its entry down.": B * (grad_b - mean_p),
            "That is where the entries are negative. Two pictures of the same class leave one negative entry.": grad_b < 0,
            "B times the gradient is not yet a count: what do the model's own probabilities add to it?": -B * grad_b,
            "B times the gradient is p minus the counts, with the model's own probabilities still in it.": B * grad_b,
            "You round up. With a guess for p̄ the numbers lie a little above or below the counts: take the nearest.": (
                np.ceil(B * (mean_p - grad_b))
            ),
            "You round down. With a guess for p̄ the numbers lie a little above or below the counts: take the nearest.": (
                np.floor(B * (mean_p - grad_b))
            ),
            "Fine before training, when every class has probability 1/C; this model has learned. Use p̄.": (
                B * (1 / C - grad_b)
            ),
            "Fine before training, when every class has probability 1/C; this model has learned. Use p̄, then round.": (
                np.round(B * (1 / C - grad_b))
            ),
        }
        hint = _first(answer, usual, got)
        if hint is None and abs(got.sum() - B) > 0.5:
            hint = f"There are {B} pictures in the batch, and your counts sum to {got.sum():.3g}."
        answer.expect(
            exact,
            "exact when p̄ is known, and they sum to B",
            hint or f"The gradient is p̄ minus the labels' shares of the batch, and B = {B}. You find "
            f"{np.array2string(got, precision=2)}, there are {counts.tolist()}.",
        )


@exercise("Exercise 9.4, psnr")
def psnr(answer):
    """``psnr(x [3, h, w], x_hat, mean [3], std [3]) -> float`` in dB, of pictures that were normalized."""
    rng = stream(0, "check", 904)
    answer.undefined = "Equal pictures have a mean squared error of 0. What does their PSNR approach?"
    pixels, found = rng.uniform(0.1, 0.9, (3, 6, 5)), None
    found = np.clip(pixels + rng.normal(0, 0.05, pixels.shape), 0.02, 0.98)
    error = np.mean((pixels - found) ** 2)
    wanted = -10 * np.log10(error)
    seen = []
    for mean, std in (([0.0] * 3, [1.0] * 3), ([0.5, 0.4, 0.45], [0.25] * 3), ([0.5] * 3, [0.2, 0.3, 0.4])):
        mean, std = np.array(mean), np.array(std)
        x, x_hat = ((p - mean[:, None, None]) / std[:, None, None] for p in (pixels, found))
        got = float(answer.array(answer(x, x_hat, mean, std), (), "the PSNR", "One number, in decibels."))
        normalized = np.mean((x - x_hat) ** 2)
        brightest = found.max()
        usual = {
            "Change the normalization constants: your PSNR changed, the picture did not. Undo it first.": (
                -10 * np.log10(normalized)
            ),
            "Range taken from the reconstruction: a brighter failure scores better. Pixels run from 0 to 1.": (
                wanted + 20 * np.log10(found.max() - found.min())
            ),
            "Peak taken from the reconstruction: a brighter failure scores better. Pixels run from 0 to 1.": (
                wanted + 20 * np.log10(brightest)
            ),
            "Range taken from the picture: then a dull picture is found more easily than a bright one.": (
                wanted + 20 * np.log10(pixels.max() - pixels.min())
            ),
            "Better pictures must score higher: there is a minus sign before the logarithm of the error.": -wanted,
            "That is the root of the mean squared error, or the error itself, not its logarithm.": np.sqrt(error),
            "That is the mean squared error. PSNR is −10 times its decimal logarithm.": error,
            "Decibels are ten times a decimal logarithm; this is the natural one.": -10 * np.log(error),
            "Ten times the logarithm of the squared error. You multiply by 20.": 2 * wanted,
            "That is the logarithm of the error's root. Take that of the mean squared error itself.": wanted / 2,
            "Decibels are ten times the logarithm.": wanted / 10,
            "Sum over pixels taken for their mean: a larger picture would score worse.": (
                wanted - 10 * np.log10(pixels.size)
            ),
            "You divide by std once more. To undo a normalization is to multiply by it.": -10 * np.log10(
                np.mean((x - x_hat) ** 2 / std[:, None, None] ** 2)
            ),
        }
        seen.append(got)
        close = abs(got - wanted) < 1e-2
        answer.expect(
            close,
            "−10 log₁₀ of the mean squared error of the pixels" if std.max() == 1 else "the same picture scores the same under any normalization",
            (None if close else next((text for text, value in usual.items() if abs(got - value) < 1e-3), None))
            or f"On the scale from 0 to 1 the mean squared error is {error:.4g}, that is {wanted:.2f} dB; you say "
            f"{got:.2f}.",
        )
    far = np.clip(pixels + 0.3 * np.sign(0.5 - pixels), 0, 1)
    worse = float(answer.array(answer(pixels, far, np.zeros(3), np.ones(3)), (), "the PSNR"))
    answer.expect(worse < seen[0], "a worse reconstruction scores lower", "A worse reconstruction got a higher score.")
    try:
        with np.errstate(all="ignore"):
            same = answer.function(*answer._prepare((pixels, pixels, np.zeros(3), np.ones(3))))
            same = float(np.reshape(same.detach().numpy() if hasattr(same, "detach") else same, ()))
    except ZeroDivisionError:
        answer.expect(False, "equal pictures score infinity", "You divide by the error, and that of equal pictures is 0. Return infinity.")
    except ValueError as error:
        answer.expect(False, "equal pictures score infinity", f"Your function raised ValueError: {error}. {answer.undefined}")
    except Exception:
        same = math.nan
    answer.expect(
        same == math.inf,
        "equal pictures score infinity",
        f"Of a picture and itself you say {same:g}: the error is 0, so the score has no bound. Return infinity.",
    )
    flat = np.full_like(pixels, 0.5)
    bright = float(answer.array(answer(pixels, flat, np.zeros(3), np.ones(3)), (), "the PSNR"))
    answer.expect(
        abs(bright + 10 * np.log10(np.mean((pixels - flat) ** 2))) < 1e-2,
        "a flat picture, such as a mean can be, has a score too",
        "A flat gray reconstruction has a score as well; yours depends on the reconstruction's own contrast.",
    )


@exercise("Exercise 9.5, leak_control_variate")
def leak_control_variate(answer):
    """``leak_control_variate(c_k [d], c [d], shape) -> x [f]`` after one full-batch step on one sample from zero.

    The vectors start with the first layer: W of ``shape`` (h, f) row by row, then its h biases.
    """
    rng = stream(0, "check", 905)
    answer.undefined = SILENT
    for h, f, rest, silent, sign in ((4, 6, 9, 0, 1), (5, 3, 7, 0, -1), (6, 8, 0, 5, 1), (6, 8, 7, 0, None)):
        x, W, b = _trace(rng, h, f, zeros=(silent,))
        if sign:  # whoever looks for the largest or the least entry, without the magnitude, shall not be lucky
            b = sign * np.abs(b)
            W = np.outer(b, x)
        c_k = np.concatenate([W.ravel(), b, rng.normal(0, 1, rest)])
        if rest:
            c_k[-h] = 0.01  # whoever takes the last biases shall not land on the silent unit
        others = [_trace(rng, h, f)[1:] for _ in range(2)]
        c = (c_k + sum(np.concatenate([V.ravel(), a, rng.normal(0, 1, rest)]) for V, a in others)) / 3
        got = answer.array(answer(c_k, c, (h, f)), (f,), "the sample", "A sample has as many numbers as W has columns.")
        unit = np.abs(b).argmax()
        wrong = {
            "You used the server's c. That is an average over clients; c_k belongs to one.": _ratio(c, h, f),
            "c_k − c bends the client's steps, but it is no gradient of anybody's sample. c_k alone is.": _ratio(
                c_k - c, h, f
            ),
            "c_k + c is no gradient of anybody's sample. c_k alone is.": _ratio(c_k + c, h, f),
            "Control variates hold only gradients, so nothing leaks? What did exercise 9.1 start from?": [np.zeros(f)],
            "That is a row of W's part of c_k: x, times that unit's entry of the bias part. Divide it away.": [
                *W, W.mean(0), W.sum(0)
            ],
            "W comes row by row, h rows of f numbers: you cut it the other way round.": _ratio(
                np.concatenate([W.ravel().reshape(f, h).T.ravel(), b]), h, f
            ),
            "The sign is wrong: c_k is the gradient itself. Only the delta points the other way.": [-x],
            "The biases of the first layer follow its weights; those at the end of the vector belong to the last.": (
                _ratio(np.concatenate([W.ravel(), c_k[-h:]]), h, f) if rest else []
            ),
        }
        hint = next((text for text, rows in wrong.items() if any(np.allclose(got, v, atol=1e-5) for v in rows)), None)
        if hint is None and (np.allclose(_unit(got), _unit(x)) or np.allclose(_unit(got), -_unit(x))):
            hint = "Right direction, wrong brightness: which part of c_k carries the scale?"
        answer.expect(
            answer.close(got, x),
            "recovers the sample that nobody sent",
            hint
            or f"From zero, one full-batch step makes c_k the gradient of the client's loss. Its first {h}·{f} numbers "
            f"are W's part, the next {h} the bias's: what did exercise 9.1 do with these two?",
        )


def _ratio(vector, h, f):
    """Return what the usual unit, and every other, makes of a vector; NaN where it did not react."""
    W, b = vector[: h * f].reshape(h, f), vector[h * f : h * f + h]
    with np.errstate(all="ignore"):
        return W / b[:, None]
