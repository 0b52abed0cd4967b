"""Checks for chapter 4, FedAvg on CIFAR-10 in PyTorch."""

from functools import partial

import numpy as np
import torch

from fedlib.check.core import exercise
from fedlib.rng import stream


@exercise("Exercise 4.1, num_steps")
def num_steps(answer):
    """``num_steps(n, batch_size, epochs) -> int``, the minibatch steps of one client in one round."""
    for n, batch_size, epochs in ((96, 32, 1), (5, 32, 1), (64, 32, 3), (100, 32, 2), (33, 32, 5), (7, 1, 2)):
        got = answer.array(answer(n, batch_size, epochs), ())
        counted = _counted(n, batch_size, epochs)
        usual = {
            f"n = {n}, batch {batch_size}: zero steps, and a division by zero waits further on.": (
                n // batch_size * epochs if n < batch_size else -1
            ),
            "The samples that do not fill a batch are trained on as well, in a last, smaller batch.": (
                max(n // batch_size, 1) * epochs
            ),
            "Local steps are epochs × batches.": -(-n // batch_size),
            f"{n} samples fill {n // batch_size} batches of {batch_size} exactly; there is no further one, "
            "which would be empty.": (n // batch_size + 1) * epochs,
            "A batch does not reach into the next epoch: each epoch ends with its own last batch.": (
                -(-n * epochs // batch_size)
            ),
            "You count samples. A step uses a whole batch of them.": n * epochs,
        }
        hint = next(
            (text for text, wrong in usual.items() if answer.close(got, wrong)),
            f"n = {n}, batch_size = {batch_size}, epochs = {epochs}: walk through the data in a loop and "
            f"count the steps. They are not {got:g}.",
        )
        answer.expect(answer.close(got, counted), "equals a counted loop, also for n < batch_size", hint)


def _counted(n, batch_size, epochs):
    steps = 0
    for _ in range(epochs):
        left = n
        while left > 0:
            left -= batch_size
            steps += 1
    return steps


@exercise("Exercise 4.2, local_delta")
def local_delta(answer):
    """``local_delta(model, w [d], X [n, f], y [n], lr) -> [d]``, y − w after one full-batch step from w."""
    rng, given = stream(0, "check", 402), answer.function
    answer.in_place[0] = (
        "Your training moved w itself, and the next client would start from there. After "
        "`vector_to_parameters(w, …)` the parameters are views of w, not copies."
    )
    for features, hidden, classes, lr in ((3, 4, 3, 0.8), (5, 3, 4, 0.5)):
        shapes = (features, hidden, classes)
        d = hidden * (features + 1) + classes * (hidden + 1)
        w = torch.from_numpy(rng.normal(0, 0.7, d).astype(np.float32))
        first, second = (_client(rng, n, features, classes) for n in (7, 12))
        own = rng.normal(0, 0.7, d).astype(np.float32)

        def fresh():
            # One module for all clients, as in a simulation; what it holds at first is not w.
            if callable(given):
                answer.function = partial(given, _network(shapes, own))  # noqa: B023

        def delta(client, lr=lr):
            return answer.array(answer(w, *client, lr), (d,), "the delta")  # noqa: B023

        fresh()
        row, then = delta(first), delta(second)
        fresh()
        swapped, last = delta(second), delta(first)
        gradients = [_gradient(w, *client, shapes) for client in (first, second)]
        added = -lr * (gradients[0] + gradients[1])
        answer.expect(
            _near(row, last) and _near(then, swapped),
            "two clients give the same rows in either order",
            "Row 2 contains row 1's gradient as well. PyTorch adds up gradients until somebody clears them."
            if _near(then, added)
            else "Row 2 changed when row 1 was trained first. The clients share one module: what must it "
            "hold when a client starts?",
        )
        still = delta(first, 0.0)
        usual = {
            "Train with lr 0: the delta must be zero. You return the model instead of its change.": w.numpy(),
            "That is the gradient. The delta is how far the model moved by it; with lr = 0, not at all.": (
                gradients[0]
            ),
            "Your step has the same length for every learning rate: does lr enter?": -gradients[0],
        }
        hint = next(
            (text for text, wrong in usual.items() if _near(still, wrong)),
            "With lr = 0 nobody moves, yet your delta is not zero. The module arrives holding something else "
            "than w: did you start from w?",
        )
        answer.expect(_near(still, 0.0), "with lr = 0 the delta is zero", hint)
        twice = delta((torch.cat([first[0]] * 2), torch.cat([first[1]] * 2)))
        answer.expect(
            _near(twice, row),
            "duplicating every row of the data changes nothing",
            "Duplicating the data changed your step. The loss is a mean over samples, not a sum.",
        )
        wanted = -lr * gradients[0]
        usual = {
            "Your delta points backwards: it is where the client ended minus where it started.": -wanted,
            "Your client moved nothing at all: is there a step after the gradient?": np.zeros(d),
            "You apply the learning rate twice.": lr * wanted,
        }
        hint = next(
            (text for text, wrong in usual.items() if _near(row, wrong)),
            "One step of plain gradient descent on the mean cross-entropy of all samples: your delta is not "
            f"−lr times that gradient. Largest gap {np.abs(row - wanted).max():.3g}.",
        )
        answer.expect(_near(row, wanted), "the delta is −lr ∇f_k(w)", hint)


def _client(rng, n, features, classes):
    X, y = rng.normal(size=(n, features)).astype(np.float32), rng.integers(classes, size=n)
    return torch.from_numpy(X), torch.from_numpy(y)


def _network(shapes, values):
    features, hidden, classes = shapes
    # Drawing initial values would move the reader's global generator.
    linear = partial(torch.nn.utils.skip_init, torch.nn.Linear)
    model = torch.nn.Sequential(linear(features, hidden), torch.nn.Tanh(), linear(hidden, classes))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(values.copy()), model.parameters())
    return model


def _gradient(w, X, y, shapes):
    """Return ∇f_k(w) in double precision, from the formula of the network instead of the module."""
    features, hidden, classes = shapes
    w = w.double().requires_grad_()
    W1, b1, W2, b2 = w.split([hidden * features, hidden, classes * hidden, classes])
    z = torch.tanh(X.double() @ W1.view(hidden, features).T + b1) @ W2.view(classes, hidden).T + b2
    loss = (torch.logsumexp(z, dim=1) - z[torch.arange(len(y)), y]).mean()
    return torch.autograd.grad(loss, w)[0].numpy()


def _near(got, wanted):
    return np.allclose(got, wanted, rtol=1e-3, atol=1e-5)


@exercise("Exercise 4.3, work")
def work(answer):
    """``work(sizes [K], batch_size, epochs, rounds) -> (samples, depth)`` of FedAvg with all K clients."""
    # For the first case no two of the usual mistakes agree; the third is its centralized training.
    cases = (((40, 130, 10), 32, 3, 4), ((5, 64), 32, 3, 4), ((180,), 32, 3, 4), ((9, 9, 1, 30), 10, 1, 7))
    for sizes, batch_size, epochs, rounds in cases:
        samples, depth = answer.pair(
            answer(np.array(sizes), batch_size, epochs, rounds),
            "returns a pair (samples, depth)",
            "Return two numbers, the samples processed and the steps that follow one another: "
            "`return samples, depth`.",
        )
        samples, depth = answer.array(samples, (), "the samples"), answer.array(depth, (), "the depth")
        n, K = sum(sizes), len(sizes)
        steps = np.array([_counted(size, batch_size, 1) for size in sizes])
        usual = {
            "Each sample is used once an epoch, wherever it lives. You count it once a client.": (
                K * n * epochs * rounds
            ),
            "You count only one round.": n * epochs,
            "You count one epoch a round; there are several.": n * rounds,
            "The last batch of an epoch is not full. Count samples, not batch_size times steps.": (
                steps.sum() * batch_size * epochs * rounds
            ),
            "Those are steps, of a whole batch each. Wanted are samples.": steps.sum() * epochs * rounds,
            "That is one client's share: all of them process samples.": max(sizes) * epochs * rounds,
        }
        hint = _first(answer, usual, samples) or (
            f"{n} samples, {epochs} epochs a round, {rounds} rounds: every pass touches every sample once. "
            f"You count {samples:g}."
        )
        answer.expect(
            answer.close(samples, n * epochs * rounds),
            "as many samples as centralized training, pass for pass",
            hint,
        )
        usual = {
            "Clients run side by side. Their steps do not follow one another.": steps.sum() * epochs * rounds,
            "A round ends with its slowest client, not with an average one.": steps.mean() * epochs * rounds,
            "You count the fastest client. A round waits for the slowest.": steps.min() * epochs * rounds,
            "Rounds follow one another: the depth grows with them.": steps.max() * epochs,
            "Epochs follow one another too: the depth grows with them.": steps.max() * rounds,
            "A batch that is not full is still a step.": max(sizes) // batch_size * epochs * rounds,
            "An epoch ends with its own last batch. Count batches first, then multiply.": (
                -(-max(sizes) * epochs // batch_size) * rounds
            ),
            "The depth counts steps, not samples.": max(sizes) * epochs * rounds,
            "You pooled the samples. That is the depth of centralized training, in which one step waits for "
            "the other.": -(-n // batch_size) * epochs * rounds,
        }
        hint = _first(answer, usual, depth) or (
            f"Clients take {(steps * epochs).tolist()} steps in each of {rounds} rounds. How many steps does "
            f"the last average wait for? Not {depth:g}."
        )
        slowest = steps.max() * epochs * rounds
        answer.expect(answer.close(depth, slowest), "the depth is that of the slowest client", hint)


def _first(answer, usual, got):
    return next((text for text, wrong in usual.items() if answer.close(got, wrong)), None)


@exercise("Exercise 4.4, verdict")
def verdict(answer):
    """``verdict(acc_a [R], acc_b [R]) -> "a", "b" or "undecided"`` for R pairs of runs that share seeds."""
    rng = stream(0, "check", 404)

    def say(a, b):
        word = answer(a, b)
        word = word.item() if isinstance(word, np.ndarray) and word.size == 1 else word
        answer.expect(
            isinstance(word, str) and word in ("a", "b", "undecided"),
            'says "a", "b" or "undecided"',
            f'Return one of the words "a", "b" and "undecided"; got {word!r:.60}.',
        )
        return word

    seeds = rng.normal(0.6, 0.05, 8)
    a, b = seeds + 0.2 + rng.normal(0, 0.004, 8), seeds
    clear = say(a, b)
    answer.expect(
        clear == "a",
        "a large difference is found",
        'The winner is the method with the higher accuracy: "a" if the first argument is better.'
        if clear == "b"
        else "Eight pairs of runs, a is 20 points better in every one of them, and you are still undecided.",
    )
    swapped = say(b, a)
    answer.expect(
        swapped == "b",
        "swapping the arguments swaps the verdict",
        f'Swap the two methods: "a" must become "b", you say "{swapped}". Both signs of a difference count.',
    )
    answer.expect(
        say(a - 0.3, b - 0.3) == "a" and say(b - 0.3, a - 0.3) == "b",
        "a shift of both changes nothing",
        "Take 0.3 from every accuracy of both methods: their difference is the same, your verdict is not.",
    )
    answer.expect(
        say(a / 100, b / 100) == "a",
        "units do not matter",
        "Divide all accuracies by 100: your verdict changed. A fixed threshold does not know how much the "
        "runs scatter; ask the data.",
    )
    copies, words = [], []
    for _ in range(200):
        seeds = rng.normal(0.6, 0.02, 8)
        copies.append((seeds + rng.normal(0, 0.01, 8), seeds + rng.normal(0, 0.01, 8)))
        words.append(say(*copies[-1]))
    usual = {
        "The maximum rewards noise: you declared a winner between two copies of the same method.": (
            lambda a, b: a.max() - b.max()
        ),
        "Two means are never exactly equal: of two copies of the same method you always prefer one. How far "
        "apart could chance bring them?": lambda a, b: a.mean() - b.mean(),
        "A majority of wins is no evidence yet: a coin shows five heads or more out of eight in one of three "
        "trials.": lambda a, b: np.sum(a > b) - np.sum(a < b),
        "The last pair of runs is one pair. Use all of them.": lambda a, b: a[-1] - b[-1],
        "A better median is no evidence yet, just as a better mean is none.": (
            lambda a, b: np.median(a) - np.median(b)
        ),
    }
    decided = sum(word != "undecided" for word in words)
    hint = next(
        (text for text, rule in usual.items() if words == [_sign(rule(a, b)) for a, b in copies]),
        f"You compared two copies of the same method 200 times and declared a winner {decided} times. With a "
        "95 % interval chance does that about 10 times.",
    )
    answer.expect(decided <= 36, "two copies of one method are mostly undecided", hint)
    seeds = rng.normal(0.6, 0.05, 8)
    better = seeds + rng.permutation(0.005 + 0.001 * _scatter(8))
    answer.expect(
        say(better, seeds) == "a" and say(seeds, better) == "b",
        "a small but consistent paired difference is found",
        "a beats b by half a point with every seed, and you do not see it because both vary by many points "
        "from seed to seed. Seeds are shared. Look at the differences.",
    )
    seeds = rng.normal(0.6, 0.01, 14)
    better = seeds + rng.permutation(0.018 + 0.02 * _scatter(14))
    answer.expect(
        say(better, seeds) == "a" and say(seeds, better) == "b",
        "enough runs settle what a single one cannot",
        "Fourteen differences with mean 0.018 and standard deviation 0.02: single runs scatter that much, "
        "their mean scatters less. By which factor?",
    )


def _scatter(n):
    """Return n numbers with mean 0 and sample standard deviation 1, without outliers on the low side."""
    values = -np.log1p(-(np.arange(n) + 0.5) / n)
    return (values - values.mean()) / values.std(ddof=1)


def _sign(difference):
    return "undecided" if difference == 0 else "a" if difference > 0 else "b"
