"""Chapter 9: what gradient matching finds of five clients' pictures, by batch size, local steps and noise.

Under two CPU minutes a client, and four to practice.  An attacker knows the protocol, so for each batch size, number of
steps and noise it practices on its own pictures how much smoothness to ask for; without that, a setting would look safe
only because the attack was prepared for another.  (A trained network gets what served an untrained one.)  Each of the
three is tried alone, and of their pairs those with four pictures.
"""

import base64
from functools import cache

import numpy as np
import torch
from experiments import pictures

from fedlib import leakage, models
from fedlib.experiment import environment
from fedlib.leakage import Attack
from fedlib.rng import stream

SEEDS = (0, 1, 2, 3, 4)
KNOWN = 2_000  # the first pictures are the attacker's own: mean picture, practice, and a model trained on them
LR = 0.1
SMOOTHNESS = (1e-4, 1e-2, 1e-1, 1, 10)
ITERATIONS = 150


def runs():
    return ()


def groups():
    return ()


def tables():
    """One file a seed: the attacks on the same client, whose first picture is in all of its batches."""
    for seed in SEEDS:
        yield f"chapter09/attacks-seed{seed}", lambda seed=seed: attacks(seed)


@cache
def _data():
    return pictures(4_000, 100)


def attacks(seed):
    """Return the settings and scores of all attacks of one seed."""
    torch.set_num_threads(1)
    rng, data = stream(seed, "attack", 1), _data()
    model = models.build(leakage.smooth_cnn, data.input_shape, data.num_classes, seed)
    fresh, trained = model.theta.double(), train(model, seed).double()
    client = KNOWN + rng.choice(len(data.train_x) - KNOWN, 16, replace=False)
    _, first = np.unique(data.train_y[client], return_index=True)
    no_two_alike = client[np.sort(first)]  # one picture a class, the client's first among them

    one_each = ((1, 0), (1, 0.1), (1, 1), (1, 10), (4, 0), (16, 0))
    rows = [{"batch": 1, "steps": steps, "noise": noise} for steps, noise in one_each]
    rows += [{"batch": 4, "steps": steps, "noise": noise} for steps, noise in one_each if noise < 10]
    rows += [{"batch": 16, "steps": 1, "noise": 0}]
    rows += [{"batch": 1, "steps": steps, "noise": 0, "lr": 0.01} for steps in (4, 16)]
    rows += [{"batch": batch, "steps": steps, "noise": 0, "knows": "steps"}
             for batch, steps in ((1, 4), (1, 16), (4, 4))]  # fmt: skip
    rows += [{"batch": batch, "steps": 1, "noise": 0, "model": "trained"} for batch in (1, 4)]
    rows += [{"batch": 4, "steps": 1, "noise": 0, "labels": "different"}]

    known = leakage.pixels(data, torch.arange(KNOWN))
    guess = leakage.mean_picture(known)
    lines = []
    for row in rows:
        row = {"lr": LR, "knows": "gradient", "model": "fresh", "labels": "any"} | row
        w = trained if row["model"] == "trained" else fresh
        held = no_two_alike if row["labels"] == "different" else client
        indices = torch.from_numpy(held[: row["batch"]])
        smoothness = practiced(row["batch"], row["steps"], row["noise"], row["lr"], row["knows"])
        x, found = attack(model, w, indices, row, smoothness, seed)
        line = {**row, "smoothness": smoothness, "psnr": rounded(leakage.psnr(x, found)),
                "mean_picture": rounded(leakage.psnr(x, guess))}  # fmt: skip
        # Pictures of what changes one thing; the numbers of the rest are enough.
        if (row["batch"] > 1) + (row["steps"] > 1) + (row["noise"] > 0) <= 1:
            line["picture"] = packed(found[0])
        lines.append(line)
    return {"environment": environment(), "data": data.name, "seed": seed, "labels": data.train_y[client].tolist(),
            "parameters": len(fresh), "picture": packed(x[0]), "rows": lines}  # fmt: skip


def attack(model, w, indices, row, smoothness, seed):
    """Return a client's pictures and what is found of them, in the order that matches best."""
    data, lr, steps = _data(), row["lr"], row["steps"]
    x, y, normalize = leakage.pixels(data, indices), data.train_y[indices], leakage.normalizer(data)
    delta = leakage.local_delta(model, w, normalize(x), y, lr, steps).detach()
    message = leakage.add_noise(-delta / (lr * steps), row["noise"], stream(seed, "noise", len(indices)))

    def simulate(x):
        if row["knows"] == "steps":
            return -leakage.local_delta(model, w, normalize(x), y, lr, steps) / (lr * steps)
        return leakage.gradient(model, w, normalize(x), y)

    found = leakage.reconstruct(message, simulate, x.shape, Attack(smoothness, ITERATIONS), seed)[-1]
    return x, leakage.match(x, found)


@cache
def practiced(batch, steps, noise, lr, knows):
    """Return the smoothness that serves best for a batch of the attacker's own, or two of one picture."""
    if knows == "steps":  # with the steps simulated the match can be as exact as after one step
        return practiced(batch, 1, noise, LR, "gradient")
    seed, data = SEEDS[0], _data()
    model = models.build(leakage.smooth_cnn, data.input_shape, data.num_classes, seed)
    batches = torch.from_numpy(stream(seed, "attack", 3).choice(KNOWN, max(batch, 2), replace=False)).split(batch)
    row = {"lr": lr, "steps": steps, "noise": noise, "knows": knows}

    def score(smoothness):
        each = [attack(model, model.theta.double(), indices, row, smoothness, seed) for indices in batches]
        return float(np.mean([leakage.psnr(x, found).mean().item() for x, found in each]))

    return max(SMOOTHNESS, key=score)


def train(model, seed):
    """Return parameters after five epochs of SGD on the attacker's own pictures."""
    data, rng = _data(), stream(seed, "batches")
    for _ in range(5):
        for batch in torch.from_numpy(rng.permutation(KNOWN)).split(32):
            loss = torch.nn.functional.cross_entropy(model(data.train_x[batch]), data.train_y[batch])
            model.theta.sub_(model.gradient(loss), alpha=LR)
    return model.theta.clone()


def rounded(values):
    return [round(float(value), 2) for value in values]


def packed(picture):
    """Return a picture (3, height, width) with pixels in 0..1 as text: uint8, height × width × 3, base64."""
    pixels = (255 * picture).round().to(torch.uint8).permute(1, 2, 0)
    return base64.b64encode(pixels.numpy().tobytes()).decode()
