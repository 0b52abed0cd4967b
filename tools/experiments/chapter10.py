"""Chapter 10: what noise costs, and whether an attack finds more than was promised.

A thousand clients with twenty samples each and a network of 212 parameters. The learning rate and the clip norm are
chosen on held-out training samples, at z = 1 and with one seed, and kept for all other noise.  Six paired seeds
decide the claims, or leave them undecided.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from experiments import Run

from fedlib import audit, data, models, partition
from fedlib.aggregate import FixedMean, WeightedMean
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.evaluate import outputs
from fedlib.experiment import History, describe_run, load_history
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.privacy import Clip, Noisy, PrivateScaffold
from fedlib.rng import stream
from fedlib.selection import All, Poisson
from fedlib.server import ServerMomentum, ServerSGD
from fedlib.task import Task
from fedlib.upload import Dense
from fedlib.watch import watch

SEEDS = range(6)
RATE, ROUNDS, CLIENTS, PER_CLIENT = 0.1, 100, 1_000, 20
LRS, CLIPS = (0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0)
SMOOTH = ServerMomentum(lr=0.1, momentum=0.9)  # steps as long as without, if updates agree


@cache
def table(num=CLIENTS * PER_CLIENT):
    """Return the small case with more samples: ``num`` for training, 5,000 for testing, the same for every ``num``."""
    from sklearn.datasets import make_classification

    x, y = make_classification(205_000, 8, n_informative=6, n_redundant=2, n_classes=4, random_state=0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    return data.Dataset("make_classification", x[5_000 : 5_000 + num], y[5_000 : 5_000 + num], x[:5_000], y[:5_000], 4)


@cache
def held_out_table():
    return data.hold_out(table(), 4_000)


def local(lr, correction=None):
    return LocalSGD(lr=lr, epochs=5, batch_size=None, batched=True, correction=correction or Correction())


def federated(lr):
    """FedAvg without clip and noise, but with the same draws."""
    return Federation(local(lr), select=Poisson(RATE))


def private(lr, clip, z, correction=None, control=None, step=None):
    """DP-FedAvg; with z = 0 only clipped, and divided by the expected number."""
    mean = FixedMean(RATE)
    return Federation(
        local(lr, correction),
        select=Poisson(RATE),
        upload=Clip(clip, control),
        aggregate=Noisy(mean, clip, z) if z else mean,
        step=step or ServerSGD(),
        min_clients=0,
    )


def iid(seed, clients=CLIENTS):
    return partition.iid(num_clients=clients, seed=seed)


def skewed(seed):
    return partition.dirichlet(alpha=0.1, num_clients=CLIENTS, per="client", seed=seed)


def best(name, keys):
    """Return the settings with the highest mean accuracy in a group of runs on held-out samples, by ``arm``."""
    runs = json.loads(Path(f"fedlib/records/chapter10/{name}.json").read_text())["runs"]
    scores = {}
    for run in runs:
        scores.setdefault((run["arm"], *(run[key] for key in keys)), []).append(run["accuracy"])
    means = {key: float(np.mean(values)) for key, values in scores.items()}
    return {arm: max((key for key in means if key[0] == arm), key=means.get)[1:] for arm, *_ in means}


def final(history):
    """Return the mean accuracy of the last ten rounds, which private runs jump about in."""
    return {"accuracy": float(np.mean([line["accuracy"] for line in history.rounds[-10:]]))}


def curve(history):
    """Return accuracy after every fifth round, its spread from round to round in the second half, and the model's end."""
    accuracy = np.array([line["accuracy"] for line in history.rounds])
    return {
        **final(history),
        "every_fifth": accuracy[4::5].tolist(),
        "jump": float(np.diff(accuracy[len(accuracy) // 2 :]).std(ddof=1)),
        "drawn": float(np.mean([len(line["clients"]) for line in history.rounds])),
    }


def alone(task, method, rounds, seed, record):
    """Train every client alone and measure its model on the test set; the one line holds the mean over clients."""
    path = Path(f"{record}.json")
    if not path.exists():
        (seen,) = watch(task, method, 1, seed)
        model, y = task.new_model(seed), task.data.test_y
        right = [(outputs(model, seen.w + delta, task.data.test_x).argmax(1) == y).float().mean() for delta in seen.deltas]
        accuracy = float(torch.stack(right).mean())
        digest = hashlib.sha256(seen.deltas.numpy()).hexdigest()
        History(describe_run(task, method, seed, 1), [{"t": 0, "accuracy": accuracy}], digest).save(path)
    return load_history(path)


# The attack ------------------------------------------------------------------------------------------------

CANARIES, OTHERS, AUDIT_RATE, AUDIT_ROUNDS, AUDIT_Z, AUDIT_CLIP = 50, 100, 0.5, 10, 2.5, 0.3


@dataclass(frozen=True)
class TooQuiet(Noisy):
    """Noise that is too small by a factor: what a mistake in the code would do."""

    factor: float = 1.0

    def combine(self, ctx, deltas):
        update, weights = self.mean.combine(ctx, deltas)
        loud, _ = super().combine(ctx, deltas)
        return update + self.factor * (loud - update), weights


@cache
def table_with_rare_features():
    """Return 3,000 samples of the small case with a further feature for each canary, zero for everybody."""
    plain = table()
    wider = [torch.cat([x, torch.zeros(len(x), CANARIES)], dim=1) for x in (plain.train_x[:3_000], plain.test_x)]
    return data.Dataset("make_classification", wider[0], plain.train_y[:3_000], wider[1], plain.test_y, 4)


def audited(factor):
    """Return a task whose first clients are canaries, each with a column of the first layer, and a private method."""
    task = Task(models.mlp, table_with_rare_features(), partition.iid(num_clients=CANARIES + OTHERS))
    part, width = task.new_model(0).layout["1.weight"], 8 + CANARIES
    entries = tuple(tuple(range(part.start + 8 + k, part.stop, width)) for k in range(CANARIES))
    mean = FixedMean(AUDIT_RATE)
    aggregate = TooQuiet(mean, AUDIT_CLIP, AUDIT_Z, factor) if factor != 1 else Noisy(mean, AUDIT_CLIP, AUDIT_Z)
    canaries = audit.Canaries(entries, AUDIT_CLIP, (True,) * CANARIES)
    local = LocalSGD(lr=0.3, epochs=1, batch_size=None, batched=True, correction=canaries)
    return task, Federation(
        local, select=Poisson(AUDIT_RATE), upload=Clip(AUDIT_CLIP), aggregate=aggregate, min_clients=0
    )


def attacked(task, method, rounds, seed, record):
    """Play ``rounds`` short runs, in each of which a random half of the canaries is present, and keep their scores."""
    path = Path(f"{record}.json")
    if path.exists():
        return load_history(path)
    canaries, lines = method.local.correction, []
    for trial in range(rounds):
        rng = stream(seed, "split", trial)
        present = rng.random(CANARIES) < 0.5
        local = replace(method.local, correction=replace(canaries, present=tuple(present.tolist())))
        watched = watch(task, replace(method, local=local), AUDIT_ROUNDS, int(rng.integers(2**32)))
        steps = torch.stack([seen.new_w - seen.w for seen in watched]).double().numpy()
        scores = audit.scores(steps * AUDIT_RATE * task.num_clients / AUDIT_CLIP, canaries.entries, AUDIT_RATE)
        lines.append({"t": trial, "present": scores[present].tolist(), "absent": scores[~present].tolist()})
    history = History(describe_run(task, method, seed, 0), lines, hashlib.sha256(json.dumps(lines).encode()).hexdigest())
    history.save(path)
    return history


def all_scores(history):
    return {name: [score for line in history.rounds for score in line[name]] for name in ("present", "absent")}


# What is run -----------------------------------------------------------------------------------------------


def runs():
    return ()


def group(name, settings, build, seeds=SEEDS, summary=curve, rounds=ROUNDS):
    """Return a group: one run for each setting and seed, ``build(**setting, seed=seed)``."""
    return f"chapter10/{name}", [
        Run(f"chapter10/{name}/{'-'.join(map(str, setting.values()))}-seed{seed}",
            lambda setting=setting, seed=seed: build(**setting, seed=seed), rounds, seed,
            {**setting, "seed": seed}, summary=summary)
        for setting in settings for seed in seeds
    ]  # fmt: skip


CONTROL_ARMS = {"fedavg": ServerSGD(), "fedavg smoothed": SMOOTH, "scaffold": ServerSGD(), "scaffold smoothed": SMOOTH}


def control(arm, lr, clip, seed, data):
    """One of the four private arms at equal ε: z = 1, or z = √2 for each of two releases."""
    task = Task(models.mlp, data(), skewed(seed))
    if arm.startswith("fedavg"):
        return task, private(lr, clip, 1.0, step=CONTROL_ARMS[arm])
    correction = PrivateScaffold(clip=clip, noise_multiplier=2**0.5)
    return task, private(lr, clip, 2**0.5, correction, clip, CONTROL_ARMS[arm])


def groups():
    def choice(arm, lr, clip, seed):
        method = private(lr, clip, 1.0) if arm == "private" else federated(lr)
        return Task(models.mlp, held_out_table(), iid(seed)), method

    options = [{"arm": "private", "lr": lr, "clip": clip} for lr in LRS for clip in CLIPS]
    options += [{"arm": "federated", "lr": lr, "clip": None} for lr in LRS]
    yield group("choice", options, choice, range(1), final)

    def noise(z, seed):
        ((lr, clip), (plain, _)) = (best("choice", ("lr", "clip"))[arm] for arm in ("private", "federated"))
        return Task(models.mlp, table(), iid(seed)), federated(plain) if z is None else private(lr, clip, z)

    yield group("noise", [{"z": z} for z in (None, 0, 0.5, 1, 2, 4, 8)], noise)

    def by_itself(epochs, seed):
        method = Federation(LocalSGD(lr=0.1, epochs=epochs, batch_size=None, batched=True), select=All())
        return Task(models.mlp, table(), iid(seed)), method

    name, jobs = group("alone", [{"epochs": epochs} for epochs in (20, 100, 400)], by_itself, range(1), final, 1)
    yield name, [Run(**{**vars(job), "play": alone}) for job in jobs]

    def crowd(clients, seed):
        lr, clip = best("choice", ("lr", "clip"))["private"]
        return Task(models.mlp, table(clients * PER_CLIENT), iid(seed, clients)), private(lr, clip, 1.0)

    yield group("clients", [{"clients": n} for n in (100, 300, 3_000)], crowd, range(3))  # and a thousand, in "noise"

    arms = [{"arm": arm, "lr": lr, "clip": clip} for arm in ("fedavg", "scaffold") for lr in LRS for clip in CLIPS]
    yield group(
        "control_choice", arms, lambda arm, lr, clip, seed: control(arm, lr, clip, seed, held_out_table), range(1), final
    )

    def chosen(arm, seed):
        if arm.startswith("without noise"):  # how the two compare where there is no privacy to pay for
            correction = Scaffold() if "scaffold" in arm else Correction()
            method = Federation(local(0.3, correction), WeightedMean(), Dense(), select=Poisson(RATE))
            return Task(models.mlp, table(), skewed(seed)), method
        # Smoothing is added to what was chosen without it, and nothing else changes.
        return control(arm, *best("control_choice", ("lr", "clip"))[arm.split()[0]], seed, table)

    everything = [*CONTROL_ARMS, "without noise, fedavg", "without noise, scaffold"]
    yield group("control", [{"arm": arm} for arm in everything], chosen)

    quiet = (AUDIT_RATE * (CANARIES + OTHERS)) ** -0.5
    trials = [("right", 1.0, 80), ("a tenth", 0.1, 40), ("divided by √(qN)", quiet, 40)]
    yield "chapter10/audit", [
        Run(f"chapter10/audit/{i}", lambda factor=factor: audited(factor), count, 0, {"noise": name}, attacked,
            summary=all_scores)
        for i, (name, factor, count) in enumerate(trials)
    ]  # fmt: skip
