"""Checks for chapter 2, FedAvg in NumPy."""

import numpy as np

from fedlib.check.core import exercise
from fedlib.rng import stream


def _mean_loss(w, X, y, l2=0.0):
    # Written out for this module alone: a check must not lean on the code that the chapter teaches.
    z = X @ w[:-1] + w[-1]
    return np.mean(np.where(y == 1, np.logaddexp(0, -z), np.logaddexp(0, z))) + l2 / 2 * w[:-1] @ w[:-1]


def _slope(w, X, y, l2=0.0, h=1e-6):
    """Return the gradient of the mean loss by central differences."""
    steps = h * np.eye(len(w))
    return np.array([(_mean_loss(w + s, X, y, l2) - _mean_loss(w - s, X, y, l2)) / (2 * h) for s in steps])


def _descend(w, X, y, lr, penalties):
    """Return w after one step with each of the penalties."""
    for l2 in penalties:
        w = w - lr * _slope(w, X, y, l2)
    return w


def _hospital(rng, n, d):
    return rng.normal(size=(n, d)), (rng.random(n) < 0.4).astype(float)


@exercise("Exercise 2.1, federated_standardize")
def federated_standardize(answer):
    """``federated_standardize(stats: list of (n, Σx [d], Σx² [d])) -> (mean [d], sd [d])``."""
    rng = stream(0, "check", 201)
    answer.undefined = (
        "A negative variance has no root, and a division by zero has no value: is the variance Σx²/n minus the "
        "*squared* mean, in this order?"
    )
    for sizes, d in (((20, 300), 3), ((50, 7, 1), 2)):
        parts = [rng.normal(loc=rng.normal(0, 3, d), scale=rng.uniform(0.5, 2, d), size=(n, d)) for n in sizes]
        pooled = np.concatenate(parts)
        mean, sd = answer.pair(
            answer([(len(X), X.sum(axis=0), (X**2).sum(axis=0)) for X in parts]),
            "returns a pair (mean, sd)",
            "Return two vectors, the mean and the standard deviation: `return mean, sd`.",
        )
        mean = answer.array(mean, (d,), "the mean")
        usual = {
            f"The average of the hospitals' means counts a hospital of {min(sizes)} as much as one of {max(sizes)}.": (
                np.mean([X.mean(axis=0) for X in parts], axis=0)
            ),
            "The order is mean, sd: what you return first is the standard deviation.": pooled.std(axis=0),
        }
        hint = next(
            (text for text, wrong in usual.items() if answer.close(mean, wrong)),
            "Add up all Σx and divide by the number of all patients.",
        )
        answer.expect(answer.close(mean, pooled.mean(axis=0)), "the mean is the pooled mean", hint)
        sd = answer.array(sd, (d,), "the sd")
        local = np.array([X.std(axis=0) for X in parts])
        p = np.array(sizes) / sum(sizes)
        usual = {
            "The spread between hospitals is missing: an average of local standard deviations only sees the spread "
            "inside each.": (local.mean(axis=0), p @ local, np.sqrt(p @ local**2)),
            "You forgot to subtract the squared mean: Σx²/n is the mean square, not the variance.": (
                np.sqrt((pooled**2).mean(axis=0)),
            ),
            "You subtract the mean itself. What is to be subtracted from Σx²/n has the units of x².": (
                np.sqrt(np.maximum((pooled**2).mean(axis=0) - pooled.mean(axis=0), 0)),
            ),
            "That is the variance. Take its square root, so that it has the units of x.": (pooled.var(axis=0),),
            "You divide by n − 1. Here n patients are the whole population: divide by n.": (pooled.std(axis=0, ddof=1),),
        }
        hint = next(
            (text for text, wrongs in usual.items() if any(answer.close(sd, wrong) for wrong in wrongs)),
            f"Pooled standard deviation {np.round(pooled.std(axis=0), 4).tolist()}, yours {np.round(sd, 4).tolist()}.",
        )
        answer.expect(
            answer.close(sd, pooled.std(axis=0)), "the sd is the pooled sd, also with a one-patient hospital", hint
        )


@exercise("Exercise 2.2, local_train")
def local_train(answer):
    """``local_train(w [d+1], X [n, d], y [n], lr, epochs, l2) -> [d+1]`` by full-batch gradient descent."""
    rng = stream(0, "check", 202)
    answer.in_place[0] = (
        "You updated w in place. The next hospital would start from your result, not from the server's model: "
        "work on a copy."
    )
    for n, d in ((12, 2), (25, 4)):
        (X, y), w, lr = _hospital(rng, n, d), rng.normal(size=d + 1), 0.3

        def train(w, X, y, lr, epochs, l2):
            return answer.array(answer(w, X, y, lr, epochs, l2), (d + 1,))  # noqa: B023

        one, still, gradient = train(w, X, y, lr, 1, 0.0), train(w, X, y, 0.0, 1, 0.0), _slope(w, X, y)
        usual = {
            "With learning rate 0 you do not return w. Return the model, neither the gradient nor the change.": (
                gradient, -gradient, 0 * w,
            ),
            "Your step is 1/lr times too long: with learning rate 0 it must vanish, yet you still move by the whole "
            "gradient. Where does lr enter?": (w - gradient, w + gradient, w - n * gradient, w + n * gradient),
        }  # fmt: skip
        hint = next(
            (text for text, wrongs in usual.items() if any(answer.close(still, wrong) for wrong in wrongs)),
            f"With learning rate 0 nobody moves, yet you return {np.round(still, 4).tolist()} for "
            f"w = {np.round(w, 4).tolist()}. Do you start from w, and does lr multiply every step?",
        )
        answer.expect(answer.close(still, w), "with lr = 0 the model stays where it is", hint)
        answer.expect(
            not answer.close(one, w),
            "one epoch moves the model",
            "With epochs = 1 you take no step at all: you return w. How often does your loop run?",
        )
        step = w - one
        doubled = w - train(w, np.r_[X, X], np.r_[y, y], lr, 1, 0.0)
        answer.expect(
            answer.close(doubled, step),
            "duplicating every row changes nothing",
            "Duplicating the data doubled your step. The loss is a mean over patients, so is its gradient."
            if answer.close(doubled, 2 * step)
            else "Duplicating the data changed your step, without doubling it. One epoch is one step: the gradient is "
            "the mean over all patients, all taken at w, and nobody's own step comes in between.",
        )
        answer.expect(
            not np.allclose(step, -lr * gradient, atol=1e-5),
            "a step goes downhill",
            "You walk uphill: gradient descent subtracts lr times the gradient.",
        )
        answer.expect(
            answer.close(step, lr * gradient),
            "one epoch is w − lr ∇f_k(w)",
            "With epochs = 1 you take two steps. How often does your loop run?"
            if answer.close(one, _descend(w, X, y, lr, [0.0] * 2))
            else "One step with y as ±1, or without the intercept, is not this gradient. Compare with "
            f"finite differences: {np.round(lr * gradient, 4).tolist()}, yours {np.round(step, 4).tolist()}.",
        )
        penalized = w - train(w, X, y, lr, 1, 0.5)
        answer.expect(
            answer.close(penalized[-1], step[-1]),
            "the intercept is not penalized",
            "With l2 > 0 your intercept is pulled to zero. The base rate of a disease is not a matter of model size: "
            "penalize w[:-1] only.",
        )
        answer.expect(
            answer.close(penalized, lr * _slope(w, X, y, 0.5)),
            "l2 adds l2·w to the coefficients' gradient",
            "The penalty l2/2 ‖coefficients‖², with the intercept left out, has the gradient l2·w: without 2, and "
            "once, not once per patient.",
        )
        for epochs in (3, 8):
            got, l2 = train(w, X, y, lr, epochs, 0.1), 0.1
            usual = {
                "Every step needs a new gradient, at the point where you now are; yours stays the one at w.": (
                    w - epochs * lr * _slope(w, X, y, l2),
                ),
                "The penalty belongs to every step, not to one of them.": (
                    _descend(w, X, y, lr, [l2] + [0.0] * (epochs - 1)),
                    _descend(w, X, y, lr, [0.0] * (epochs - 1) + [l2]),
                ),
                "The penalty pulls at the model of each step, not at the w where you started.": (
                    _pulled_to_the_start(w, X, y, lr, epochs, l2),
                ),
                **{
                    f"For epochs = {epochs} the number of your steps is {steps}: the loop must run `epochs` times.": (
                        _descend(w, X, y, lr, [l2] * steps),
                    )
                    for steps in range(2 * epochs + 1)
                },
            }
            hint = next(
                (text for text, wrongs in usual.items() if any(answer.close(got, wrong) for wrong in wrongs)),
                f"After {epochs} epochs you should be at {np.round(_descend(w, X, y, lr, [l2] * epochs), 4).tolist()}, "
                f"not at {np.round(got, 4).tolist()}. Every epoch is the same step, from where the last one ended.",
            )
            answer.expect(
                answer.close(got, _descend(w, X, y, lr, [l2] * epochs)),
                "every epoch is one more step, with a gradient of its own",
                hint,
            )


def _pulled_to_the_start(w, X, y, lr, epochs, l2):
    new, pull = w, l2 * np.append(w[:-1], 0.0)
    for _ in range(epochs):
        new = new - lr * (_slope(new, X, y) + pull)
    return new


@exercise("Exercise 2.3, fedavg_round")
def fedavg_round(answer):
    """``fedavg_round(w [d+1], clients: list of (X, y), lr, epochs) -> [d+1]``, without penalty."""
    rng = stream(0, "check", 203)
    for sizes, d in (((4, 16), 2), ((5, 40, 15), 3)):
        clients, w, lr = [_hospital(rng, n, d) for n in sizes], rng.normal(size=d + 1), 0.5

        def go(clients, lr, epochs):
            return answer.array(answer(w, clients, lr, epochs), (d + 1,))  # noqa: B023

        answer.expect(
            answer.close(go(clients, 0.0, 1), w),
            "if nobody moves, the model stays",
            "With lr = 0 every client returns w, so the round must return w: an average of models, whose weights "
            "sum to 1.",
        )
        answer.expect(
            answer.close(go([clients[0]] * 3, lr, 4), go([clients[0]], lr, 4)),
            "identical clients act like one",
            "Three identical hospitals went further than one. They must all start from the server's w, not each "
            "from the previous one's result, and what they changed is averaged, not added up.",
        )
        answer.expect(
            answer.close(go(clients[::-1], lr, 4), go(clients, lr, 4)),
            "the order of the clients is irrelevant",
            "Permute the hospitals: your result depends on the order. Does the next one start where the last ended?",
        )
        X, y = (np.concatenate(part) for part in zip(*clients, strict=True))
        pooled = w - lr * _slope(w, X, y)
        uniform = w - lr * np.mean([_slope(w, *client) for client in clients], axis=0)
        one = go(clients, lr, 1)
        answer.expect(
            answer.close(one, pooled),
            "one epoch equals one gradient step on the pooled data",
            f"With hospitals of {' and '.join(map(str, sizes))} patients you no longer follow the pooled gradient: "
            "weigh them by n_k/n. With you all of them got the same weight: which number of each client do you use? "
            "Its patients are as many as y is long."
            if answer.close(one, uniform)
            else "Train each client from w on its own data, then average the models with weights n_k/n.",
        )
        answer.expect(
            not np.allclose(go(clients, lr, 5), one, atol=1e-5),
            "local epochs are used",
            "Five local epochs give the same as one: pass `epochs` on to the local training.",
        )
        full = _descend(w, X, y, lr, [0.0] * 5)
        answer.expect(
            not np.allclose(go(clients, lr, 5), full, atol=1e-4),
            "clients train alone between two averages",
            "Those are five steps on all data together. Either you pooled the data, or you averaged after every step, "
            "which is five rounds of one epoch. Each hospital takes its five steps alone, and the one average comes "
            "at the end.",
        )
        p = np.array(sizes) / sum(sizes)
        for epochs in (5, 8):

            def models(steps, l2=0.0):
                return np.array([_descend(w, *client, lr, [l2] * steps) for client in clients])  # noqa: B023

            got, wanted = go(clients, lr, epochs), p @ models(epochs)
            usual = {
                "Every local step needs a new gradient, at the point where this client now is. You computed one at w "
                "and used it for all steps.": w + epochs * (pooled - w),
                "With several epochs all hospitals got the same weight. The weights are n_k/n for every number of "
                "epochs.": models(epochs).mean(axis=0),
                **{
                    f"For epochs = {epochs} the number of each client's steps is {steps}: the local loop must run "
                    "`epochs` times.": p @ models(steps)
                    for steps in range(2 * epochs + 1)
                    if steps != epochs
                },
            }
            hint = next(
                (text for text, wrong in usual.items() if answer.close(got, wrong)),
                f"For epochs = {epochs} your model is {np.abs(got - wanted).max():.2g} away from Σ n_k/n w_k, though "
                "for one epoch it is right. Each w_k is `epochs` plain steps away from w, without a penalty, and the "
                "weights do not depend on the epochs.",
            )
            answer.expect(answer.close(got, wanted), "several epochs are as many steps of each client", hint)


@exercise("Exercise 2.4, server_update")
def server_update(answer):
    """``server_update(w [d], messages [K, d], sizes [K], kind, lr) -> [d]`` for three kinds of message."""
    rng = stream(0, "check", 204)
    for sizes, d, lr in ((np.array([10, 30]), 3, 0.1), (np.array([5, 1, 4]), 4, 0.4)):
        w, gradients = rng.normal(size=d), rng.normal(size=(len(sizes), d))
        p = sizes / sizes.sum()
        messages = {"weights": w - lr * gradients, "delta": -lr * gradients, "gradient": gradients}
        wanted, mean = w - lr * p @ gradients, p @ gradients
        new = {}
        for kind, rows in messages.items():
            new[kind] = answer.array(answer(w, rows, sizes, kind, lr), (d,), f"the model from {kind}")
            usual = {
                f"With kind = {kind!r} you average uniformly. A client's say is its share of the samples.": (
                    w - lr * gradients.mean(axis=0),
                ),
                f"With kind = {kind!r} you averaged the messages as if they were models, and replaced w by the result: "
                "the norm of your model fell to the norm of a message.": (p @ rows,) if kind != "weights" else (),
                "Your step is 1/lr times too long: a gradient becomes a step only after it is multiplied by lr.": (
                    w - mean,
                ),
                "You walk uphill. A delta is added, a gradient is subtracted.": (w + lr * mean, w + mean),
                "A delta holds the learning rate already; you applied it twice.": (w - lr * lr * mean,),
                "Weights are the new models themselves; adding them to w counts w twice.": (w + p @ rows,),
            }
            hint = next(
                (text for text, wrongs in usual.items() if any(answer.close(new[kind], wrong) for wrong in wrongs)),
                f"For kind = {kind!r} the new w should be {np.round(wanted, 3).tolist()}, "
                f"you return {np.round(new[kind], 3).tolist()}.",
            )
            answer.expect(
                answer.close(new[kind], wanted), "after one full-batch step all three kinds give the same w", hint
            )


@exercise("Exercise 2.5, one_patient")
def one_patient(answer):
    """``one_patient(gradient [d+1]) -> (x [d], y)``, from the log-loss gradient of a single patient."""
    rng = stream(0, "check", 205)
    for d, label in ((3, 1.0), (6, 0.0), (30, 1.0), (30, 0.0)):
        w, x = rng.normal(size=d + 1) / np.sqrt(d), rng.normal(size=d)
        error = 1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - label
        got, got_label = answer.pair(
            answer(error * np.append(x, 1.0)),
            "returns a pair (x, y)",
            "Return the measurements and the diagnosis: `return x, y`.",
        )
        got = answer.array(got, (d,), "x")
        got_label = answer.array(got_label, (), "y", "The diagnosis is a number, 0 or 1: the y of the loss.")
        usual = {
            "You returned the coefficients' gradient, which is the error times x. Which entry of the gradient is the "
            "error alone?": error * x,
            "Right direction, wrong length. The scale is in the gradient too: look at the intercept.": x / np.linalg.norm(x),
            "The sign is lost. The error is negative for a malignant biopsy: divide by it, not by its size.": (
                np.sign(error) * x
            ),
            "You multiplied by the error once more; it has to be divided out.": error**2 * x,
        }
        hint = next(
            (text for text, wrong in usual.items() if answer.close(got, wrong)),
            "The gradient of one patient is (σ − y)·x for the coefficients and (σ − y) for the intercept.",
        )
        answer.expect(answer.close(got, x), "x is recovered exactly", hint)
        answer.expect(
            answer.close(got_label, label),
            "the diagnosis is recovered",
            f"The diagnosis is a number, 0 or 1; yours is {got_label:.4g}."
            if got_label not in (0.0, 1.0)
            else "σ lies between 0 and 1, so σ − y is negative exactly when y = 1. Look at the sign of the last entry.",
        )
