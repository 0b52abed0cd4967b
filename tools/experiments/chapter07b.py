"""Page 7b: the three-party split as practitioners report it, two of three parties a round, fifty rounds, three local epochs.

On a tenth of the pictures. What is reported with lr 0.001 and all pictures is played with lr 0.01 here: a tenth of the
steps, each ten times as long, is the same way along the gradients as long as both rates are small.

Three sets of runs: the methods as reported; the same with a learning rate that each chose for itself; and the best that
the course knows how to do, once more with its parts taken away. Whatever is chosen is chosen on training pictures that
were set aside.
"""

import hashlib
import json
from itertools import product
from pathlib import Path

import torch
from experiments import SEEDS, Run, held_out, pictures

from fedlib import models, partition
from fedlib.aggregate import UniformMean, WeightedMean
from fedlib.augment import flip_and_crop
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.ema import EMAControl, MatchedRate
from fedlib.evaluate import evaluate
from fedlib.experiment import History, describe_run, load_history
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.memory import MIFA
from fedlib.schedule import Cosine
from fedlib.selection import All, Uniform
from fedlib.server import Averaged
from fedlib.similarity import Similarity
from fedlib.task import Task
from fedlib.watch import watch

LR, ROUNDS = 0.01, 50
CODED = Similarity(0.8, against="parameters")

# name: correction, made for a learning rate, and aggregator
METHODS = {
    "fedavg": (lambda lr: Correction(), WeightedMean()),
    "ema-similarity-coded": (lambda lr: EMAControl(beta=lr), CODED),
    "matched-rate": (lambda lr: MatchedRate(beta=lr), WeightedMean()),
    "mifa": (lambda lr: Correction(), MIFA()),
    "scaffold": (lambda lr: Scaffold(), WeightedMean()),
    "ema": (lambda lr: EMAControl(beta=lr), WeightedMean()),
    "similarity-coded": (lambda lr: Correction(), CODED),
    "ema-similarity-meant": (lambda lr: EMAControl(beta=lr), Similarity(0.8)),
    "uniform": (lambda lr: Correction(), UniformMean()),
    "scaffold-similarity": (lambda lr: Scaffold(), CODED),
}
REPORTED = [name for name in METHODS if name != "scaffold-similarity"]
TUNED = ["fedavg", "scaffold", "ema-similarity-coded", "scaffold-similarity"]
EVERYBODY = ["fedavg", "scaffold"]
LRS = (0.01, 0.03, 0.1)
PARTIES = partition.three_party()


def three_parties(name, lr, data, select):
    correction, aggregate = METHODS[name]
    local = LocalSGD(lr=lr, epochs=3, batch_size=32, correction=correction(lr))
    return Task(models.cnn, data, PARTIES), Federation(local, aggregate, select=select)


def beyond(kind, lr, augment, data):
    """FedAvg with a falling learning rate, averaged models, and perhaps augmentation: with or without memory, or at one place."""
    central = kind == "centralized"
    local = LocalSGD(
        lr=Cosine(lr, ROUNDS),
        epochs=2 if central else 3,  # as many samples as two of three parties have on average
        batch_size=32,
        augment=flip_and_crop if augment else None,
    )
    parts = {"select": All() if central else Uniform(2), "step": Averaged(decay=0.8)}
    aggregate = MIFA() if kind == "mifa" else WeightedMean()
    task = Task(models.cnn, data, partition.iid(num_clients=1) if central else PARTIES)
    return task, Federation(local, aggregate, **parts)


def apart(rate, data):
    """The arm beyond without memory, with a learning rate that falls or does not; its models are not averaged."""
    lr, augment = STRONG[chosen("beyond-mifa", STRONG)]
    local = LocalSGD(
        lr=Cosine(lr, ROUNDS) if rate == "falling" else lr,
        epochs=3,
        batch_size=32,
        augment=flip_and_crop if augment else None,
    )
    return Task(models.cnn, data, PARTIES), Federation(local, select=Uniform(2))


def both_models(task, method, rounds, seed, record):
    """Play the rounds and measure after each the last model and, as ``mean_accuracy``, the mean over rounds."""
    path = Path(f"{record}.json")
    if path.exists():
        return load_history(path)
    model, mean, lines = task.new_model(seed), Averaged(decay=0.8), []
    state = mean.prepare(model.theta)
    for seen in watch(task, method, rounds, seed):
        _, state = mean.step(state, seen.new_w, torch.zeros_like(seen.w))
        delivered = evaluate(task, model, mean.deliver(state, seen.new_w))
        lines.append(seen.line | evaluate(task, model, seen.new_w) | {"mean_accuracy": delivered["accuracy"]})
    digest = hashlib.sha256(seen.new_w.numpy()).hexdigest()
    history = History(describe_run(task, method, seed, 1), lines, digest)
    history.save(path)
    return history


def chosen(prefix, settings):
    """Return the setting whose run on held-out training pictures had the best mean accuracy over its last ten rounds."""

    def late(setting):
        return sum(line["accuracy"] for line in json.loads(paths[setting].read_text())["rounds"][-10:])

    paths = {setting: Path(f"fedlib/records/chapter07b/choose-{prefix}-{setting}-seed0.json") for setting in settings}
    if missing := [str(path) for path in paths.values() if not path.exists()]:
        raise FileNotFoundError(f"{missing}: another process is still playing them; run again when it is through")
    return max(settings, key=late)


def reported(names):
    """Every method with the same seeds, hence the same initial models, draws of parties and batches."""
    for name in names:
        for seed in SEEDS:
            yield Run(f"chapter07b/reported-{name}-seed{seed}",
                      lambda name=name: three_parties(name, LR, pictures(5_000, 2_000), Uniform(2)), ROUNDS, seed)  # fmt: skip


STRONG = {f"lr{lr}{'-augmented' * augment}": (lr, augment) for lr, augment in product((0.03, 0.1), (False, True))}


def strongest():
    """The settings of memory and of centralized training are chosen for each; without memory, those of memory are used."""
    for kind in ("mifa", "centralized"):
        for setting, values in STRONG.items():
            yield Run(f"chapter07b/choose-beyond-{kind}-{setting}-seed0",
                      lambda kind=kind, values=values: beyond(kind, *values, held_out()), ROUNDS, 0)  # fmt: skip
    for kind, choice in (("mifa", "mifa"), ("centralized", "centralized"), ("fedavg", "mifa")):
        for seed in SEEDS:

            def build(kind=kind, choice=choice):
                return beyond(kind, *STRONG[chosen(f"beyond-{choice}", STRONG)], pictures(5_000, 2_000))

            yield Run(f"chapter07b/beyond-{kind}-seed{seed}", build, ROUNDS, seed)


def tuned():
    """A learning rate for each method, chosen with two of three parties, and kept where all three take part."""
    settings = {f"lr{lr}": lr for lr in LRS}
    for name, (setting, lr) in product(TUNED, settings.items()):
        yield Run(f"chapter07b/choose-{name}-{setting}-seed0",
                  lambda name=name, lr=lr: three_parties(name, lr, held_out(), Uniform(2)), ROUNDS // 2, 0)  # fmt: skip
    arms = [(name, Uniform(2), "two") for name in TUNED] + [(name, All(), "all") for name in EVERYBODY]
    for name, select, who in arms:
        for seed in SEEDS:

            def build(name=name, select=select):
                return three_parties(name, settings[chosen(name, settings)], pictures(5_000, 2_000), select)

            yield Run(f"chapter07b/tuned-{who}-{name}-seed{seed}", build, ROUNDS, seed)


def runs():
    """First what decides the claim, then what goes beyond it, then the rest."""
    yield from reported(REPORTED[:4])
    yield from strongest()
    yield from reported(REPORTED[4:])
    yield from tuned()


def groups():
    """What the falling learning rate does, and what the mean over rounds."""
    yield "chapter07b/apart", [
        Run(f"chapter07b/apart-{rate}-seed{seed}",
            lambda rate=rate: apart(rate, pictures(5_000, 2_000)),
            ROUNDS, seed, {"rate": rate, "seed": seed}, play=both_models, measured=("accuracy", "mean_accuracy", "clients"))
        for seed in SEEDS for rate in ("falling", "constant")
    ]  # fmt: skip
