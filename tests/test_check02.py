"""The checks of chapter 2 accept every right answer and tell wrong ones apart."""

import math

import numpy as np
import pytest
import torch
from checking import every_exercise

from fedlib.check import chapter02 as check

# 2.1 federated_standardize ---------------------------------------------------------------------------------


def standardize_with_numpy(stats):
    n, s, q = (np.sum([stat[i] for stat in stats], axis=0) for i in range(3))
    return s / n, np.sqrt(q / n - (s / n) ** 2)


def standardize_with_a_loop(stats):
    n, d = sum(stat[0] for stat in stats), len(stats[0][1])
    mean = [sum(stat[1][j] for stat in stats) / n for j in range(d)]
    sd = [math.sqrt(sum(stat[2][j] for stat in stats) / n - mean[j] ** 2) for j in range(d)]
    return mean, sd


def standardize_with_lists(stats):
    stats, (n, s, q) = stats[:], stats.pop()
    for m, s_k, q_k in stats[:-1]:
        # With lists + would concatenate, so this one insists on them.
        n, s, q = (
            n + m,
            [x + y for x, y in zip(s + [], s_k, strict=True)],
            [x + y for x, y in zip(q + [], q_k, strict=True)],
        )
    return [[x / n for x in s], [(y / n - (x / n) ** 2) ** 0.5 for x, y in zip(s, q, strict=True)]]


def standardize_with_tensors(stats):
    n = sum(stat[0] for stat in stats)
    mean = torch.stack([stat[1] for stat in stats]).sum(0) / n
    return mean, (torch.stack([stat[2] for stat in stats]).sum(0) / n - mean.square()).sqrt()


def standardize_in_single_precision(stats):
    mean, sd = standardize_with_numpy([(n, np.float32(s), np.float32(q)) for n, s, q in stats])
    return np.float32(mean), np.float32(sd)


def standardize_as_one_array(stats):
    return np.array(standardize_with_numpy(stats))


STANDARDIZE = [
    standardize_with_numpy,
    standardize_with_a_loop,
    standardize_with_lists,
    standardize_with_tensors,
    standardize_in_single_precision,
    standardize_as_one_array,
]


def local_sds(stats):
    return [np.sqrt(q / n - (s / n) ** 2) for n, s, q in stats]


def pooled_mean(stats):
    return standardize_with_numpy(stats)[0]


def total(stats):
    return sum(n for n, _, _ in stats)


STANDARDIZE_WRONG = {
    "as much as one of": lambda stats: (
        np.mean([s / n for n, s, _ in stats], axis=0),
        standardize_with_numpy(stats)[1],
    ),
    "spread between hospitals": lambda stats: (pooled_mean(stats), np.mean(local_sds(stats), axis=0)),
    "forgot to subtract": lambda stats: (
        pooled_mean(stats),
        np.sqrt(sum(q for *_, q in stats) / total(stats)),
    ),
    "That is the variance": lambda stats: (pooled_mean(stats), standardize_with_numpy(stats)[1] ** 2),
    "You divide by n − 1": lambda stats: (
        pooled_mean(stats),
        standardize_with_numpy(stats)[1] * np.sqrt(total(stats) / (total(stats) - 1)),
    ),
    "Return two vectors": lambda stats: pooled_mean(stats),
    "The order is mean, sd": lambda stats: standardize_with_numpy(stats)[::-1],
    "You subtract the mean itself": lambda stats: (
        pooled_mean(stats),
        np.sqrt(sum(q for *_, q in stats) / total(stats) - pooled_mean(stats)),
    ),
    "minus the *squared* mean": lambda stats: (
        pooled_mean(stats),
        np.sqrt(-np.square(standardize_with_numpy(stats)[1])),
    ),
    "Add up all Σx": lambda stats: (sum(s for _, s, _ in stats), standardize_with_numpy(stats)[1]),
}

STANDARDIZE_ALSO_WRONG = {
    "the root of a list of numbers": lambda stats: (
        pooled_mean(stats),
        [math.sqrt(v) for v in -np.square(standardize_with_numpy(stats)[1])],
    ),
    "a complex root": lambda stats: (
        pooled_mean(stats),
        [float(v) ** 0.5 for v in -np.square(standardize_with_numpy(stats)[1])],
    ),
    "rounded": lambda stats: tuple(np.round(part, 5) for part in standardize_with_numpy(stats)),
    "weighted mean of sds": lambda stats: (
        pooled_mean(stats),
        np.average(local_sds(stats), axis=0, weights=[n for n, _, _ in stats]),
    ),
    "weighted mean of variances": lambda stats: (
        pooled_mean(stats),
        np.sqrt(np.average(np.square(local_sds(stats)), axis=0, weights=[n for n, _, _ in stats])),
    ),
    "sd of the means": lambda stats: (pooled_mean(stats), np.std([s / n for n, s, _ in stats], axis=0)),
    "the largest hospital": lambda stats: standardize_with_numpy([max(stats, key=lambda stat: stat[0])]),
    "a mean for all features": lambda stats: (pooled_mean(stats).mean(), standardize_with_numpy(stats)[1]),
}

# 2.2 local_train -------------------------------------------------------------------------------------------


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def step(w, X, y, l2=0.0):
    error = sigmoid(X @ w[:-1] + w[-1]) - y
    return np.append(X.T @ error / len(y) + l2 * w[:-1], error.mean())


def train_with_numpy(w, X, y, lr, epochs, l2):
    w = w.copy()
    for _ in range(epochs):
        w -= lr * step(w, X, y, l2)
    return w


def train_with_a_column_of_ones(w, X, y, lr, epochs, l2):
    X1, mask = np.column_stack([X, np.ones(len(X))]), np.append(np.ones(X.shape[1]), 0)
    for _ in range(epochs):
        w = w - lr * (X1.T @ (sigmoid(X1 @ w) - y) / len(y) + l2 * mask * w)
    return w


def train_with_a_loop(w, X, y, lr, epochs, l2):
    w, n, d = list(w), len(y), len(w) - 1
    for _ in range(epochs):
        gradient = [l2 * w[j] for j in range(d)] + [0.0]
        for x, label in zip(X, y, strict=True):
            error = 1 / (1 + math.exp(-(sum(w[j] * x[j] for j in range(d)) + w[d]))) - label
            for j in range(d):
                gradient[j] += error * x[j] / n
            gradient[d] += error / n
        w = [w[j] - lr * gradient[j] for j in range(d + 1)]
    return w


def train_with_lists(w, X, y, lr, epochs, l2):
    return train_with_a_loop(w + [], [row + [] for row in X], y, lr, epochs, l2)


def train_with_autograd(w, X, y, lr, epochs, l2):
    w = w.clone().requires_grad_()
    for _ in range(epochs):
        loss = (
            torch.nn.functional.binary_cross_entropy_with_logits(X @ w[:-1] + w[-1], y)
            + l2 / 2 * w[:-1] @ w[:-1]
        )
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - lr * gradient).detach().requires_grad_()
    return w


def train_in_single_precision(w, X, y, lr, epochs, l2):
    return train_with_numpy(*map(np.float32, (w, X, y, lr)), epochs, np.float32(l2)).astype(np.float32)


def train_with_single_tensors(w, X, y, lr, epochs, l2):
    return train_with_autograd(w.float(), X.float(), y.float(), lr, epochs, l2).tolist()


TRAIN = [
    train_with_numpy,
    train_with_a_column_of_ones,
    train_with_a_loop,
    train_with_lists,
    train_with_autograd,
    train_in_single_precision,
    train_with_single_tensors,
]


def train_in_place(w, X, y, lr, epochs, l2):
    for _ in range(epochs):
        w -= lr * step(w, X, y, l2)
    return w


def train_with_a_stale_gradient(w, X, y, lr, epochs, l2):
    return w - epochs * lr * step(w, X, y, l2)


def every_step(rule):
    def train(w, X, y, lr, epochs, l2):
        w = w.copy()
        for _ in range(epochs):
            w = rule(w, X, y, lr, l2)
        return w

    return train


def without_intercept(w, X, y, lr, l2):
    gradient = np.append(X.T @ (sigmoid(X @ w[:-1]) - y) / len(y) + l2 * w[:-1], 0)
    return w - lr * gradient


def train_with_penalties(w, X, y, lr, penalties):
    for l2 in penalties:
        w = w - lr * step(w, X, y, l2)
    return w


def train_patient_by_patient(w, X, y, lr, epochs, l2, order=lambda n: range(n)):
    for _ in range(epochs):
        for i in order(len(y)):
            w = w - lr * step(w, X[i : i + 1], y[i : i + 1], l2)
    return w


TRAIN_WRONG = {
    "updated w in place": train_in_place,
    "With learning rate 0 you do not return w": lambda w, X, y, lr, epochs, l2: step(w, X, y, l2),
    "Duplicating the data doubled": every_step(
        lambda w, X, y, lr, l2: w - lr * step(w, X, y, l2 / len(y)) * len(y)
    ),
    "You walk uphill": every_step(lambda w, X, y, lr, l2: w + lr * step(w, X, y, l2)),
    "or without the intercept": every_step(without_intercept),
    "your intercept is pulled to zero": every_step(
        lambda w, X, y, lr, l2: w - lr * (step(w, X, y, l2) + l2 * np.append(0 * w[:-1], w[-1]))
    ),
    "has the gradient l2·w": every_step(lambda w, X, y, lr, l2: w - lr * step(w, X, y, 2 * l2)),
    "Every step needs a new gradient": train_with_a_stale_gradient,
    "1/lr times too long": every_step(lambda w, X, y, lr, l2: w - step(w, X, y, l2)),
    "you take no step at all": lambda w, X, y, lr, epochs, l2: train_with_numpy(w, X, y, lr, epochs - 1, l2),
    "One epoch is one step": train_patient_by_patient,
    "The penalty belongs to every step": lambda w, X, y, lr, epochs, l2: train_with_penalties(
        w, X, y, lr, [l2] + [0.0] * (epochs - 1)
    ),
    "not at the w where you started": lambda w, X, y, lr, epochs, l2: train_pulled_to_the_start(
        w, X, y, lr, epochs, l2
    ),
    "For epochs = 3 the number of your steps is 1": lambda w, X, y, lr, epochs, l2: train_with_numpy(
        w, X, y, lr, min(epochs, 1), l2
    ),
    "For epochs = 8 the number of your steps is 0": lambda w, X, y, lr, epochs, l2: (
        w if epochs > 3 else train_with_numpy(w, X, y, lr, epochs, l2)
    ),
    "nobody moves": every_step(lambda w, X, y, lr, l2: w - 0.1 * step(w, X, y, l2)),
    "After 3 epochs you should be": lambda w, X, y, lr, epochs, l2: train_with_decay(w, X, y, lr, epochs, l2),
}


def train_pulled_to_the_start(w, X, y, lr, epochs, l2):
    new, pull = w, l2 * np.append(w[:-1], 0)
    for _ in range(epochs):
        new = new - lr * (step(new, X, y) + pull)
    return new


def train_with_decay(w, X, y, lr, epochs, l2):
    for i in range(epochs):
        w = w - lr / (i + 1) * step(w, X, y, l2)
    return w

TRAIN_ALSO_WRONG = {
    "the change": lambda w, X, y, lr, epochs, l2: train_with_numpy(w, X, y, lr, epochs, l2) - w,
    "the model is never trained": lambda w, X, y, lr, epochs, l2: w,
    "patients in random order": lambda w, X, y, lr, epochs, l2: train_patient_by_patient(
        w, X, y, lr, epochs, l2, np.random.default_rng(0).permutation
    ),
    "patient by patient, a share of lr each": lambda w, X, y, lr, epochs, l2: train_patient_by_patient(
        w, X, y, lr / len(y), epochs, l2
    ),
    "penalty in the last step": lambda w, X, y, lr, epochs, l2: train_with_penalties(
        w, X, y, lr, [0.0] * (epochs - 1) + [l2]
    ),
    "rounded": lambda *args: train_with_numpy(*args).round(5),
    "X is changed": lambda w, X, y, lr, epochs, l2: X.sort() or train_with_numpy(w, X, y, lr, epochs, l2),
    "one epoch too many": lambda w, X, y, lr, epochs, l2: train_with_numpy(w, X, y, lr, epochs + 1, l2),
    "penalty ignored": lambda w, X, y, lr, epochs, l2: train_with_numpy(w, X, y, lr, epochs, 0.0),
    "penalty once a patient": every_step(lambda w, X, y, lr, l2: w - lr * step(w, X, y, l2 * len(y))),
    "penalty shared by the patients": every_step(lambda w, X, y, lr, l2: w - lr * step(w, X, y, l2 / len(y))),
    "squared error": every_step(lambda w, X, y, lr, l2: w - lr * step(w, X, 2 * y, l2)),
    "labels ±1": every_step(lambda w, X, y, lr, l2: w - lr * step(w, X, 2 * y - 1, l2)),
    "no logistic function": every_step(
        lambda w, X, y, lr, l2: (
            w
            - lr
            * np.append(
                X.T @ (X @ w[:-1] + w[-1] - y) / len(y) + l2 * w[:-1], np.mean(X @ w[:-1] + w[-1] - y)
            )
        )
    ),
    "the intercept's gradient is summed": every_step(
        lambda w, X, y, lr, l2: w - lr * step(w, X, y, l2) * np.append(np.ones(len(w) - 1), len(y))
    ),
    "the intercept comes first": every_step(lambda w, X, y, lr, l2: w - lr * np.roll(step(w, X, y, l2), 1)),
    "lr and the mean forgotten": every_step(lambda w, X, y, lr, l2: w - len(y) * step(w, X, y, l2)),
}

# 2.3 fedavg_round ------------------------------------------------------------------------------------------


def round_with_numpy(w, clients, lr, epochs):
    models = [train_with_numpy(w, X, y, lr, epochs, 0.0) for X, y in clients]
    return np.average(models, axis=0, weights=[len(y) for _, y in clients])


def round_with_deltas(w, clients, lr, epochs):
    n = sum(len(y) for _, y in clients)
    return w + sum(len(y) / n * (train_with_numpy(w, X, y, lr, epochs, 0.0) - w) for X, y in clients)


def round_with_a_loop(w, clients, lr, epochs):
    n, new = sum(len(y) for _, y in clients), [0.0] * len(w)
    for X, y in clients:
        for j, value in enumerate(train_with_a_loop(w, X, y, lr, epochs, 0.0)):
            new[j] += len(y) / n * value
    return new


def round_with_lists(w, clients, lr, epochs):
    return round_with_a_loop(w + [], [(X + [], y + []) for X, y in clients], lr, epochs)


def round_with_tensors(w, clients, lr, epochs):
    models = torch.stack([train_with_autograd(w, X, y, lr, epochs, 0.0).detach() for X, y in clients])
    sizes = torch.tensor([len(y) for _, y in clients])
    return (sizes[:, None] / sizes.sum() * models).sum(0)


def round_in_single_precision(w, clients, lr, epochs):
    clients = [(np.float32(X), np.float32(y)) for X, y in clients]
    return round_with_numpy(np.float32(w), clients, np.float32(lr), epochs).astype(np.float32)


ROUND = [
    round_with_numpy,
    round_with_deltas,
    round_with_a_loop,
    round_with_lists,
    round_with_tensors,
    round_in_single_precision,
]


def models_of(w, clients, lr, epochs):
    return np.array([train_with_numpy(w, X, y, lr, epochs, 0.0) for X, y in clients])


def sizes_of(clients):
    return np.array([len(y) for _, y in clients])


def round_client_after_client(w, clients, lr, epochs):
    models = []
    for X, y in clients:
        w = train_with_numpy(w, X, y, lr, epochs, 0.0)
        models.append(w)
    return np.average(models, axis=0, weights=sizes_of(clients))


def round_averaging_every_step(w, clients, lr, epochs):
    for _ in range(epochs):
        w = round_with_numpy(w, clients, lr, 1)
    return w


def round_after(epochs_to_steps=lambda epochs: epochs, weights=lambda n, epochs: n, l2=0.0):
    """Return a round that goes wrong when there is more than one epoch."""

    def answer(w, clients, lr, epochs):
        penalty = l2 if epochs > 1 else 0.0
        models = [train_with_numpy(w, X, y, lr, epochs_to_steps(epochs), penalty) for X, y in clients]
        return np.average(models, axis=0, weights=weights(sizes_of(clients), epochs))

    return answer


ROUND_WRONG = {
    "You computed one at w": lambda w, clients, lr, epochs: np.average(
        [train_with_a_stale_gradient(w, X, y, lr, epochs, 0.0) for X, y in clients],
        axis=0,
        weights=sizes_of(clients),
    ),
    "for every number of epochs": round_after(weights=lambda n, epochs: n if epochs == 1 else n**0),
    "For epochs = 5 the number of each client's steps is 9": round_after(lambda epochs: 2 * epochs - 1),
    "Each w_k is `epochs` plain steps": round_after(l2=0.1),
    "weigh them by n_k/n": lambda w, clients, lr, epochs: models_of(w, clients, lr, epochs).mean(axis=0),
    "each from the previous": round_client_after_client,
    "pass `epochs` on": lambda w, clients, lr, epochs: round_with_numpy(w, clients, lr, 1),
    "five rounds of one epoch": round_averaging_every_step,
    "whose weights sum to 1": lambda w, clients, lr, epochs: models_of(w, clients, lr, epochs).sum(axis=0),
    "then average the models with weights": lambda w, clients, lr, epochs: np.average(
        models_of(w, clients, lr, epochs), axis=0, weights=sizes_of(clients) ** 2
    ),
}

ROUND_ALSO_WRONG = {
    "two epochs at most": round_after(lambda epochs: min(epochs, 2)),
    "two epochs at most, with square roots": round_after(
        lambda epochs: min(epochs, 2), lambda n, epochs: n if epochs == 1 else np.sqrt(n)
    ),
    "five epochs at most": round_after(lambda epochs: min(epochs, 5)),
    "square roots with several epochs": round_after(
        weights=lambda n, epochs: n ** (1 if epochs == 1 else 0.5)
    ),
    "weights by the length of a client": lambda w, clients, lr, epochs: np.average(
        models_of(w, clients, lr, epochs), axis=0, weights=[len(client) for client in clients]
    ),
    "the labels are changed": lambda w, clients, lr, epochs: (
        round_with_numpy(w, clients, lr, epochs),
        [np.subtract(y, 1, out=y) for _, y in clients],
    )[0],
    "rounded": lambda *args: round_with_numpy(*args).round(5),
    "the sum of the changes": lambda w, clients, lr, epochs: (
        w + (models_of(w, clients, lr, epochs) - w).sum(axis=0)
    ),
    "the mean change": lambda w, clients, lr, epochs: round_with_numpy(w, clients, lr, epochs) - w,
    "the last client": lambda w, clients, lr, epochs: models_of(w, clients, lr, epochs)[-1],
    "the largest client": lambda w, clients, lr, epochs: models_of(w, clients, lr, epochs)[
        sizes_of(clients).argmax()
    ],
    "everything pooled": lambda w, clients, lr, epochs: train_with_numpy(
        w, *(np.concatenate(part) for part in zip(*clients, strict=True)), lr, epochs, 0.0
    ),
    "the last model of a chain": lambda w, clients, lr, epochs: chain(w, clients, lr, epochs),
    "median": lambda w, clients, lr, epochs: np.median(models_of(w, clients, lr, epochs), axis=0),
    "weights by features": lambda w, clients, lr, epochs: np.average(
        models_of(w, clients, lr, epochs), axis=0, weights=[X.shape[1] for X, _ in clients]
    ),
    "one epoch too many": lambda w, clients, lr, epochs: round_with_numpy(w, clients, lr, epochs + 1),
}


def chain(w, clients, lr, epochs):
    for X, y in clients:
        w = train_with_numpy(w, X, y, lr, epochs, 0.0)
    return w


# 2.4 server_update -----------------------------------------------------------------------------------------


def update_with_numpy(w, messages, sizes, kind, lr):
    mean = sizes / sizes.sum() @ messages
    return {"weights": mean, "delta": w + mean, "gradient": w - lr * mean}[kind]


def update_with_a_loop(w, messages, sizes, kind, lr):
    new = []
    for j in range(len(w)):
        mean = sum(n * row[j] for n, row in zip(sizes, messages, strict=True)) / sum(sizes)
        new.append(mean if kind == "weights" else w[j] + (mean if kind == "delta" else -lr * mean))
    return new


def update_with_lists(w, messages, sizes, kind, lr):
    return update_with_a_loop(w + [], [row + [] for row in messages], sizes + [], kind, lr)


def update_with_tensors(w, messages, sizes, kind, lr):
    mean = (sizes.unsqueeze(1) * messages).sum(0).div(sizes.sum())
    return mean if kind == "weights" else w.add(mean, alpha=1 if kind == "delta" else -lr)


def update_with_single_tensors(w, messages, sizes, kind, lr):
    mean = torch.mv(messages.T, sizes / sizes.sum())
    return mean if kind == "weights" else torch.add(w, mean, alpha=1 if kind == "delta" else -lr)


def update_in_single_precision(w, messages, sizes, kind, lr):
    return update_with_numpy(np.float32(w), np.float32(messages), np.float32(sizes), kind, np.float32(lr))


UPDATE = [
    update_with_numpy,
    update_with_a_loop,
    update_with_lists,
    update_with_tensors,
    update_with_single_tensors,
    update_in_single_precision,
]


def for_kind(wrong_kind, wrong):
    """Return the right answer, but for one kind of message."""

    def update(w, messages, sizes, kind, lr):
        if kind != wrong_kind:
            return update_with_numpy(w, messages, sizes, kind, lr)
        return wrong(w, sizes / sizes.sum() @ messages, lr)

    return update


UPDATE_WRONG = {
    "you average uniformly": lambda w, messages, sizes, kind, lr: update_with_numpy(
        w, messages, np.ones_like(sizes), kind, lr
    ),
    "as if they were models": lambda w, messages, sizes, kind, lr: sizes / sizes.sum() @ messages,
    "1/lr times too long": for_kind("gradient", lambda w, mean, lr: w - mean),
    "You walk uphill": for_kind("delta", lambda w, mean, lr: w - mean),
    "you applied it twice": for_kind("delta", lambda w, mean, lr: w + lr * mean),
    "adding them to w counts w twice": lambda w, messages, sizes, kind, lr: (
        w + sizes / sizes.sum() @ messages
    ),
}

UPDATE_ALSO_WRONG = {
    "a kind that is not covered": for_kind("weights", lambda w, mean, lr: None),
    "a gradient is added": for_kind("gradient", lambda w, mean, lr: w + lr * mean),
    "a gradient is added whole": for_kind("gradient", lambda w, mean, lr: w + mean),
    "a gradient for a model": for_kind("gradient", lambda w, mean, lr: mean),
    "a delta for a model": for_kind("delta", lambda w, mean, lr: mean),
    "the sum": lambda w, messages, sizes, kind, lr: update_with_numpy(
        w, messages * len(sizes), sizes, kind, lr
    ),
    "weights moved halfway": for_kind("weights", lambda w, mean, lr: (w + mean) / 2),
    "weights moved by lr": for_kind("weights", lambda w, mean, lr: w + lr * (mean - w)),
    "nothing": lambda w, messages, sizes, kind, lr: w,
    "weights are squared": lambda w, messages, sizes, kind, lr: update_with_numpy(
        w, messages, sizes**2, kind, lr
    ),
}

# 2.5 one_patient -------------------------------------------------------------------------------------------


def patient_with_numpy(gradient):
    return gradient[:-1] / gradient[-1], float(gradient[-1] < 0)


def patient_with_a_loop(gradient):
    return [value / gradient[len(gradient) - 1] for value in gradient][:-1], int(gradient[-1] < 0)


def patient_with_lists(gradient):
    error = gradient.pop()
    return [value / error for value in gradient], error < 0


def patient_with_tensors(gradient):
    return gradient[:-1].div(gradient[-1]), (gradient[-1] < 0).double()


def patient_in_single_precision(gradient):
    return np.float32(gradient[:-1]) / np.float32(gradient[-1]), np.float32(gradient[-1] < 0)


def patient_as_list_and_array(gradient):
    return [np.divide(gradient, gradient[-1])[:-1], np.array([1 if gradient[-1] < 0 else 0])]


PATIENT = [
    patient_with_numpy,
    patient_with_a_loop,
    patient_with_lists,
    patient_with_tensors,
    patient_in_single_precision,
    patient_as_list_and_array,
]

PATIENT_WRONG = {
    "the coefficients' gradient": lambda g: (g[:-1], float(g[-1] < 0)),
    "Right direction, wrong length": lambda g: (
        np.sign(g[-1]) * g[:-1] / np.linalg.norm(g[:-1]),
        float(g[-1] < 0),
    ),
    "The sign is lost": lambda g: (g[:-1] / abs(g[-1]), float(g[-1] < 0)),
    "multiplied by the error once more": lambda g: (g[:-1] * g[-1], float(g[-1] < 0)),
    "exactly when y = 1": lambda g: (g[:-1] / g[-1], float(g[-1] > 0)),
    "`return x, y`": lambda g: g[:-1] / g[-1],
}

PATIENT_ALSO_WRONG = {
    "a word": lambda g: (g[:-1] / g[-1], "malignant" if g[-1] < 0 else "benign"),
    "x in text": lambda g: ([str(value) for value in g[:-1] / g[-1]], float(g[-1] < 0)),
    "the label for the error": lambda g: (g[:-1] / g[-1], g[-1]),
    "always malignant": lambda g: (g[:-1] / g[-1], 1.0),
    "always benign": lambda g: (g[:-1] / g[-1], 0.0),
    "with the intercept's one": lambda g: (g / g[-1], float(g[-1] < 0)),
    "label and measurements exchanged": lambda g: (float(g[-1] < 0), g[:-1] / g[-1]),
    "the intercept taken for the first entry": lambda g: (g[1:] / g[0], float(g[0] < 0)),
    "labels ±1": lambda g: (g[:-1] / g[-1], 1.0 if g[-1] < 0 else -1.0),
}

# All five --------------------------------------------------------------------------------------------------

EXERCISES = {
    "federated_standardize": (STANDARDIZE, STANDARDIZE_WRONG, STANDARDIZE_ALSO_WRONG),
    "local_train": (TRAIN, TRAIN_WRONG, TRAIN_ALSO_WRONG),
    "fedavg_round": (ROUND, ROUND_WRONG, ROUND_ALSO_WRONG),
    "server_update": (UPDATE, UPDATE_WRONG, UPDATE_ALSO_WRONG),
    "one_patient": (PATIENT, PATIENT_WRONG, PATIENT_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES)


HINTS = [
    ("federated_standardize", STANDARDIZE_ALSO_WRONG, "the root of a list of numbers", "*squared* mean"),
    ("federated_standardize", STANDARDIZE_ALSO_WRONG, "a complex root", "*squared* mean"),
    ("local_train", TRAIN_ALSO_WRONG, "the change", "neither the gradient nor the change"),
    ("local_train", TRAIN_ALSO_WRONG, "patients in random order", "One epoch is one step"),
    ("local_train", TRAIN_ALSO_WRONG, "patient by patient, a share of lr each", "One epoch is one step"),
    ("local_train", TRAIN_ALSO_WRONG, "lr and the mean forgotten", "1/lr times too long"),
    ("local_train", TRAIN_ALSO_WRONG, "penalty in the last step", "belongs to every step"),
    ("local_train", TRAIN_ALSO_WRONG, "one epoch too many", "you take two steps"),
    ("local_train", TRAIN_ALSO_WRONG, "rounded", "look rounded"),
    ("local_train", TRAIN_ALSO_WRONG, "X is changed", "You changed `X` in place"),
    ("local_train", TRAIN_WRONG, "has the gradient l2·w", "intercept left out"),
    ("fedavg_round", ROUND_ALSO_WRONG, "the sum of the changes", "added up"),
    ("fedavg_round", ROUND_ALSO_WRONG, "weights by features", "got the same weight"),
    ("fedavg_round", ROUND_ALSO_WRONG, "weights by the length of a client", "got the same weight"),
    ("fedavg_round", ROUND_ALSO_WRONG, "everything pooled", "you pooled the data"),
    ("fedavg_round", ROUND_ALSO_WRONG, "the labels are changed", "You changed `clients` in place"),
    ("server_update", UPDATE_ALSO_WRONG, "a delta for a model", "With kind = 'delta' you averaged"),
    ("server_update", UPDATE_ALSO_WRONG, "a kind that is not covered", "a case not covered"),
    ("one_patient", PATIENT_ALSO_WRONG, "a word", "a number, 0 or 1"),
    ("one_patient", PATIENT_ALSO_WRONG, "labels ±1", "a number, 0 or 1"),
]


@pytest.mark.parametrize(("name", "answers", "what", "phrase"), HINTS, ids=lambda value: str(value)[:40])
def test_the_hint_fits(name, answers, what, phrase):
    assert phrase in getattr(check, name)(answers[what]).hint
