"""The checks of chapter 4 accept every right answer and tell wrong ones apart."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from checking import every_exercise, stub
from scipy import stats
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedlib import metrics
from fedlib.check import chapter04 as check

# 4.1 num_steps ---------------------------------------------------------------------------------------------


def steps_with_ceil(n, batch_size, epochs):
    return math.ceil(n / batch_size) * epochs


def steps_with_numpy(n, batch_size, epochs):
    return np.ceil(n / batch_size) * epochs


def steps_without_floats(n, batch_size, epochs):
    return epochs * ((n + batch_size - 1) // batch_size)


def steps_counted(n, batch_size, epochs):
    return sum(1 for _ in range(epochs) for _ in range(0, n, batch_size))


def steps_with_a_loader(n, batch_size, epochs):
    return epochs * len(torch.utils.data.DataLoader(range(n), batch_size))


def steps_with_tensors(n, batch_size, epochs):
    return torch.tensor([len(torch.arange(n).split(batch_size)) * epochs])


STEPS = [
    steps_with_ceil, steps_with_numpy, steps_without_floats, steps_counted, steps_with_a_loader,
    steps_with_tensors,
]  # fmt: skip

STEPS_WRONG = {
    "zero steps": lambda n, batch_size, epochs: n // batch_size * epochs,
    "in a last, smaller batch": lambda n, batch_size, epochs: max(n // batch_size, 1) * epochs,
    "epochs × batches": lambda n, batch_size, epochs: math.ceil(n / batch_size),
    "which would be empty": lambda n, batch_size, epochs: (n // batch_size + 1) * epochs,
    "does not reach into the next epoch": lambda n, batch_size, epochs: math.ceil(n * epochs / batch_size),
    "You count samples": lambda n, batch_size, epochs: n * epochs,
}

STEPS_ALSO_WRONG = {
    "rounded": lambda n, batch_size, epochs: round(n / batch_size) * epochs,
    "not a whole number": lambda n, batch_size, epochs: n / batch_size * epochs,
    "epochs added": lambda n, batch_size, epochs: math.ceil(n / batch_size) + epochs,
    "the batch size": lambda n, batch_size, epochs: batch_size * epochs,
    "at least one an epoch, floor": lambda n, batch_size, epochs: max(n // batch_size * epochs, epochs),
    "one step too many": lambda n, batch_size, epochs: math.ceil(n / batch_size) * epochs + 1,
}

# 4.2 local_delta -------------------------------------------------------------------------------------------


def delta_by_hand(model, w, X, y, lr):
    vector_to_parameters(w.clone(), model.parameters())
    model.zero_grad()
    cross_entropy(model(X), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= lr * parameter.grad
    return parameters_to_vector(model.parameters()) - w


def delta_with_an_optimizer(model, w, X, y, lr):
    vector_to_parameters(w.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer.zero_grad()
    torch.nn.CrossEntropyLoss()(model(X), y).backward()
    optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - w


def delta_with_autograd(model, w, X, y, lr):
    # Nothing moves in place, so w may lend its storage.
    vector_to_parameters(w, model.parameters())
    gradient = torch.autograd.grad(cross_entropy(model(X), y), list(model.parameters()))
    return -lr * parameters_to_vector(gradient)


def delta_with_a_copy_of_the_module(model, w, X, y, lr):
    local = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, values in zip(
            local.parameters(), w.split([p.numel() for p in local.parameters()]), strict=True
        ):
            parameter.copy_(values.view_as(parameter))
    local.zero_grad()
    (-torch.log_softmax(local(X), 1)[torch.arange(len(y)), y]).mean().backward()
    step = torch.cat([p.grad.flatten() for p in local.parameters()])
    return ((w - lr * step) - w).tolist()


def delta_with_functional_calls(model, w, X, y, lr):
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(w):
        pieces = w.split([shape.numel() for shape in shapes])
        values = {n: piece.view(shape) for n, piece, shape in zip(names, pieces, shapes, strict=True)}
        return cross_entropy(torch.func.functional_call(model, values, X), y)

    return -lr * torch.func.grad(loss)(w).numpy()


def delta_in_double_precision(model, w, X, y, lr):
    return delta_by_hand(copy.deepcopy(model).double(), w.double(), X.double(), y, lr)


def delta_as_a_column(model, w, X, y, lr):
    return delta_by_hand(model, w, X, y, lr).unsqueeze(1)


DELTA = [
    delta_by_hand, delta_with_an_optimizer, delta_with_autograd, delta_with_a_copy_of_the_module,
    delta_with_functional_calls, delta_in_double_precision,
]  # fmt: skip


def stepping(step, load=True, clear=True, loss=cross_entropy, steps=1, clone=True):
    """Return an answer in which one thing is done differently."""

    def delta(model, w, X, y, lr):
        start = w.clone()
        if load:
            vector_to_parameters(w.clone() if clone else w, model.parameters())
        for _ in range(steps):
            if clear:
                model.zero_grad()
            loss(model(X), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= lr * parameter.grad
        return step(parameters_to_vector(model.parameters()).detach(), start, lr)

    return delta


def change(y, w, lr):
    return y - w


DELTA_WRONG = {
    "the parameters are views of w": stepping(change, clone=False),
    "when a client starts": stepping(change, load=False),
    "PyTorch adds up gradients": stepping(change, clear=False),
    "You return the model instead of its change": stepping(lambda y, w, lr: y),
    "did you start from w": lambda model, w, X, y, lr: stepping(change, load=False)(
        copy.deepcopy(model), w, X, y, lr
    ),
    "Your delta points backwards": stepping(lambda y, w, lr: w - y),
    "The loss is a mean over samples": stepping(
        change, loss=lambda z, y: cross_entropy(z, y, reduction="sum")
    ),
    "is there a step after the gradient?": lambda model, w, X, y, lr: torch.zeros_like(w),
    "One step of plain gradient descent": stepping(change, steps=2),
    "You apply the learning rate twice": stepping(lambda y, w, lr: lr * (y - w)),
    "does lr enter?": lambda model, w, X, y, lr: delta_with_autograd(model, w, X, y, 1.0),
    "That is the gradient": lambda model, w, X, y, lr: -delta_with_autograd(model, w, X, y, 1.0),
}


def adam(model, w, X, y, lr):
    vector_to_parameters(w.clone(), model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    optimizer.zero_grad()
    cross_entropy(model(X), y).backward()
    optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - w


def no_clone(model, w, X, y, lr):
    """Make the mistake for which vector_to_parameters is famous: y and w are the same storage."""
    vector_to_parameters(w, model.parameters())
    model.zero_grad()
    cross_entropy(model(X), y).backward()
    torch.optim.SGD(model.parameters(), lr=lr).step()
    return parameters_to_vector(model.parameters()).detach() - w


DELTA_ALSO_WRONG = {
    "w and y share storage": no_clone,
    "divided by lr": lambda model, w, X, y, lr: delta_by_hand(model, w, X, y, lr) / lr,
    "no gradient of the loss": lambda model, w, X, y, lr: -lr * torch.ones_like(w),
    "Adam": adam,
    "an update of w": lambda model, w, X, y, lr: w.add_(delta_by_hand(model, w, X, y, lr)),
    "the wrong loss": stepping(
        change, loss=lambda z, y: ((z.softmax(1) - torch.eye(z.shape[1])[y]) ** 2).mean()
    ),
    "softmax before the loss": stepping(change, loss=lambda z, y: cross_entropy(z.softmax(1), y)),
    "the first sample only": lambda model, w, X, y, lr: delta_by_hand(model, w, X[:1], y[:1], lr),
    "one step a sample": lambda model, w, X, y, lr: sample_by_sample(model, w, X, y, lr),
    "a learning rate of its own": lambda model, w, X, y, lr: delta_by_hand(model, w, X, y, 0.1 * (lr > 0)),
    "weight decay": lambda model, w, X, y, lr: delta_by_hand(model, w, X, y, lr) - 0.01 * lr * w,
    "a list of tensors": lambda model, w, X, y, lr: [p.detach() for p in model.parameters()],
    "the last layer only": lambda model, w, X, y, lr: delta_by_hand(model, w, X, y, lr)
    * (torch.arange(len(w)) > len(w) // 2),
    "an entry too few": lambda model, w, X, y, lr: delta_by_hand(model, w, X, y, lr)[:-1],
}


def sample_by_sample(model, w, X, y, lr):
    start = w
    for i in range(len(y)):
        w = w + delta_by_hand(model, w, X[i : i + 1], y[i : i + 1], lr / len(y))
    return w - start


# 4.3 work --------------------------------------------------------------------------------------------------


def work_with_numpy(sizes, batch_size, epochs, rounds):
    return sizes.sum() * epochs * rounds, np.ceil(sizes / batch_size).max() * epochs * rounds


def work_counted(sizes, batch_size, epochs, rounds):
    samples = depth = 0
    for _ in range(rounds):
        steps = []
        for n in sizes:
            steps.append(0)
            for _ in range(epochs):
                for start in range(0, n, batch_size):
                    samples += min(batch_size, n - start)
                    steps[-1] += 1
        depth += max(steps)
    return samples, depth


def work_with_lists(sizes, batch_size, epochs, rounds):
    sizes = sorted(sizes + [])
    return [rounds * epochs * sum(sizes), rounds * epochs * -(-sizes.pop() // batch_size)]


def work_with_tensors(sizes, batch_size, epochs, rounds):
    passes = torch.tensor(epochs * rounds)
    steps = sizes.add(batch_size - 1).div(batch_size, rounding_mode="floor")
    return torch.stack([sizes.sum(), steps.amax()]) * passes


def work_in_single_precision(sizes, batch_size, epochs, rounds):
    samples, depth = work_with_numpy(np.asarray(sizes), batch_size, epochs, rounds)
    return np.float32(samples), np.float32(depth)


WORK = [work_with_numpy, work_counted, work_with_lists, work_with_tensors, work_in_single_precision]


def ceil(x):
    return np.ceil(x).astype(int)


def with_depth(depth):
    return lambda sizes, B, E, R: (sizes.sum() * E * R, depth(sizes, B, E, R))


def with_samples(samples):
    return lambda sizes, B, E, R: (samples(sizes, B, E, R), ceil(sizes / B).max() * E * R)


WORK_WRONG = {
    "Clients run side by side": with_depth(lambda sizes, B, E, R: ceil(sizes / B).sum() * E * R),
    "You count it once a client": with_samples(lambda sizes, B, E, R: len(sizes) * sizes.sum() * E * R),
    "not with an average one": with_depth(lambda sizes, B, E, R: ceil(sizes / B).mean() * E * R),
    "You count the fastest": with_depth(lambda sizes, B, E, R: ceil(sizes / B).min() * E * R),
    "Rounds follow one another": with_depth(lambda sizes, B, E, R: ceil(sizes / B).max() * E),
    "Epochs follow one another": with_depth(lambda sizes, B, E, R: ceil(sizes / B).max() * R),
    "is still a step": with_depth(lambda sizes, B, E, R: (sizes // B).max() * E * R),
    "Count batches first": with_depth(lambda sizes, B, E, R: ceil(sizes * E / B).max() * R),
    "The depth counts steps": with_depth(lambda sizes, B, E, R: sizes.max() * E * R),
    "You pooled the samples": with_depth(lambda sizes, B, E, R: ceil(sizes.sum() / B) * E * R),
    "You count only one round": with_samples(lambda sizes, B, E, R: sizes.sum() * E),
    "You count one epoch a round": with_samples(lambda sizes, B, E, R: sizes.sum() * R),
    "Count samples, not batch_size": with_samples(lambda sizes, B, E, R: ceil(sizes / B).sum() * B * E * R),
    "Those are steps": with_samples(lambda sizes, B, E, R: ceil(sizes / B).sum() * E * R),
    "one client's share": with_samples(lambda sizes, B, E, R: sizes.max() * E * R),
    "`return samples, depth`": lambda sizes, B, E, R: sizes.sum() * E * R,
}

WORK_ALSO_WRONG = {
    "exchanged": lambda sizes, B, E, R: work_with_numpy(sizes, B, E, R)[::-1],
    "one number a client": lambda sizes, B, E, R: (sizes * E * R, ceil(sizes / B) * E * R),
    "one pass": lambda sizes, B, E, R: (sizes.sum(), ceil(sizes / B).max()),
    "the first client": with_depth(lambda sizes, B, E, R: ceil(sizes[0] / B) * E * R),
    "plus the average": with_depth(lambda sizes, B, E, R: (ceil(sizes / B).max() * E + 1) * R),
    "an average client's": with_depth(lambda sizes, B, E, R: ceil(sizes.mean() / B) * E * R),
    "mean samples": with_samples(lambda sizes, B, E, R: sizes.mean() * E * R),
}

# 4.4 verdict -----------------------------------------------------------------------------------------------


def verdict_with_t(a, b):
    d = a - b
    half = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
    return "a" if d.mean() > half else "b" if d.mean() < -half else "undecided"


def verdict_with_lists(a, b):
    d = [x - y for x, y in zip(a + [], b, strict=True)]
    mean = sum(d) / len(d)
    sd = math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1))
    t = mean / sd * math.sqrt(len(d))
    limit = {8: 2.3646, 14: 2.1604}[len(d)]
    return "a" if t > limit else "b" if t < -limit else "undecided"


def verdict_with_tensors(a, b):
    d = a.sub(b)
    t = d.mean() / d.std() * len(d) ** 0.5
    return "undecided" if t.abs() < stats.t.ppf(0.975, len(d) - 1) else "a" if t.item() > 0 else "b"


def verdict_in_single_precision(a, b):
    return str(verdict_with_t(np.float32(a), np.float32(b)))


def verdict_with_ttest_rel(a, b):
    result = stats.ttest_rel(a, b)
    return np.where(result.pvalue >= 0.05, "undecided", np.where(result.statistic > 0, "a", "b"))


def verdict_from_the_library(a, b):
    interval = metrics.paired_difference(a, b)
    return "a" if interval.low > 0 else "b" if interval.high < 0 else "undecided"


def verdict_by_flipping_signs(a, b):
    d = a - b
    signs = np.array(list(itertools.product([-1, 1], repeat=len(d))))
    p = np.mean(np.abs(signs @ d) >= abs(d.sum()) - 1e-12)
    return "undecided" if p > 0.05 else "a" if d.sum() > 0 else "b"


def verdict_by_bootstrap(a, b):
    d = a - b
    means = np.random.default_rng(0).choice(d, (1000, len(d))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return "a" if low > 0 else "b" if high < 0 else "undecided"


def verdict_with_wilcoxon(a, b):
    p = stats.wilcoxon(a - b).pvalue
    return "undecided" if p > 0.05 else "a" if np.median(a - b) > 0 else "b"


def verdict_by_counting_wins(a, b):
    wins = int(np.sum(a > b))
    return "undecided" if stats.binomtest(wins, len(a)).pvalue > 0.05 else "a" if 2 * wins > len(a) else "b"


VERDICT = [
    verdict_with_t, verdict_with_lists, verdict_with_tensors, verdict_in_single_precision,
    verdict_with_ttest_rel, verdict_from_the_library, verdict_by_flipping_signs, verdict_by_bootstrap,
    verdict_with_wilcoxon, verdict_by_counting_wins,
]  # fmt: skip


def by_rule(low, high):
    """Return the verdict of an interval that is given by two functions."""
    return lambda a, b: "a" if low(a, b) > 0 else "b" if high(a, b) < 0 else "undecided"


def by_score(score):
    return by_rule(score, score)


def by_width(width):
    """Return the verdict of an interval of half the given width around the mean difference."""
    return by_rule(
        lambda a, b: (a - b).mean() - width(a, b), lambda a, b: (a - b).mean() + width(a, b)
    )


VERDICT_WRONG = {
    "The maximum rewards noise": by_score(lambda a, b: a.max() - b.max()),
    "Two means are never exactly equal": by_score(lambda a, b: a.mean() - b.mean()),
    "A majority of wins": by_score(lambda a, b: np.sum(a > b) - np.sum(a < b)),
    "The last pair of runs": by_score(lambda a, b: a[-1] - b[-1]),
    "A better median": by_score(lambda a, b: np.median(a) - np.median(b)),
    "declared a winner": by_width(lambda a, b: (a - b).std(ddof=1) / len(a) ** 0.5),
    "Look at the differences": by_width(lambda a, b: a.std(ddof=1) + b.std(ddof=1)),
    "By which factor?": by_width(lambda a, b: 2 * (a - b).std(ddof=1)),
    "A fixed threshold": by_width(lambda a, b: 0.01),
    "The winner is the method with the higher accuracy": lambda a, b: verdict_with_t(b, a),
    "Swap the two methods": lambda a, b: "a" if verdict_with_t(a, b) == "a" else "undecided",
    "and you are still undecided": lambda a, b: "undecided",
    "Return one of the words": lambda a, b: verdict_with_t(a, b) == "a",
    "Take 0.3 from every accuracy": by_width(
        lambda a, b: 3 * (a - b).std(ddof=1) / len(a) ** 0.5 if min(a.min(), b.min()) > 0.45 else 1.0
    ),
}

VERDICT_ALSO_WRONG = {
    "always a": lambda a, b: "a",
    "Welch": by_width(lambda a, b: 2.1 * np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a))),
    "one standard deviation of the differences": by_width(lambda a, b: (a - b).std(ddof=1)),
    "a ratio": by_width(lambda a, b: 0.05 * b.mean()),
    "names": lambda a, b: verdict_with_t(a, b).upper(),
    "a p value": lambda a, b: stats.ttest_rel(a, b).pvalue,
    "the worst runs": by_score(lambda a, b: a.min() - b.min()),
    "the first pair": by_score(lambda a, b: a[0] - b[0]),
    "a coin": lambda a, b: "ab"[np.random.default_rng().integers(2)],
    "sorted pairs": lambda a, b: verdict_with_t(np.sort(a), np.sort(b)),
    "both words": lambda a, b: ("a", "b"),
}

# All four --------------------------------------------------------------------------------------------------

EXERCISES = {
    "num_steps": (STEPS, STEPS_WRONG, STEPS_ALSO_WRONG),
    "local_delta": (DELTA, DELTA_WRONG, DELTA_ALSO_WRONG),
    "work": (WORK, WORK_WRONG, WORK_ALSO_WRONG),
    "verdict": (VERDICT, VERDICT_WRONG, VERDICT_ALSO_WRONG),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    # Networks of thirty parameters: on a busy machine threads would only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


TestEveryExercise = every_exercise(check, EXERCISES, inputs=["work", "verdict"])


def test_the_wrong_answer_that_shares_storage_hears_about_views():
    assert "views of w" in check.local_delta(no_clone).hint


def test_a_delta_of_the_wrong_shape_is_named():
    d = 4 * (3 + 1) + 3 * (4 + 1)
    hint = check.local_delta(delta_as_a_column).hint
    assert f"Expected shape ({d},), got an array of shape ({d}, 1)" in hint


def test_checks_change_neither_the_global_generator_nor_the_answer():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for name, (right, _, _) in EXERCISES.items():
        getattr(check, name)(right[0])
        assert getattr(check, name)(stub).status == "not done"
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("n", "batch_size", "epochs", "steps"), [(5, 32, 1, 1), (64, 32, 3, 6), (65, 32, 2, 6)]
)
def test_the_counted_loop_by_hand(n, batch_size, epochs, steps):
    assert check._counted(n, batch_size, epochs) == steps
