"""Chapter 5: how far clients' deltas point apart, on splits of CIFAR-10 and of the small case, and what it costs."""

import hashlib
from pathlib import Path

import numpy as np
from experiments import SEEDS, Run, pictures, small_table

from fedlib import drift, models, partition
from fedlib.aggregate import StepNormalized, WeightedMean
from fedlib.evaluate import evaluate
from fedlib.experiment import History, describe_run, load_history
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.task import Task
from fedlib.watch import watch

CUTS = {
    "iid": partition.iid(num_clients=5),
    "dirichlet-1": partition.dirichlet(alpha=1, num_clients=5),
    "dirichlet-0.1": partition.dirichlet(alpha=0.1, num_clients=5),
    "three_party": partition.three_party(),
}
LR = 0.1  # chosen on held-out training pictures by chapter 4


def looked_at(seen, task, model):
    """Return a round's line with the clients' cosines and lengths, rounded."""
    layers = drift.by_layer(model.layout, seen.deltas, seen.mean)
    cosines = drift.cosines(seen.deltas, seen.mean)
    parameters = drift.parameter_cosines(seen.deltas, seen.w)
    length = drift.norms(seen.deltas) / float(seen.w.double().norm())
    return {
        **seen.line,
        **evaluate(task, model, seen.new_w),
        "cosine": rounded(cosines),
        "layers": {name: rounded(values) for name, values in layers.items() if name.endswith("weight")},
        "relative_length": rounded(length),
        "parameter_cosine": rounded(parameters, 6),
        "mean_cosine": float(np.mean(cosines)),
        "mean_relative_length": float(np.mean(length)),
        "one_minus_parameter_cosine": float(1 - np.mean(parameters)),
    }


def rounded(values, digits=4):
    return [round(float(value), digits) for value in values]


def watched(task, method, rounds, seed, record):
    """Play the rounds and return their history, kept beside ``record`` when complete."""
    path = Path(f"{record}.json")
    if path.exists():
        return load_history(path)
    model, lines = task.new_model(seed), []
    for seen in watch(task, method, rounds, seed):
        lines.append(looked_at(seen, task, model))
    digest = hashlib.sha256(seen.new_w.numpy()).hexdigest()
    history = History(describe_run(task, method, seed, 1), lines, digest)
    history.save(path)
    return history


def runs():
    """Twenty rounds of one local epoch with all clients; the three parties also with normalized deltas."""
    methods = [(cut, cut, WeightedMean()) for cut in CUTS] + [("normalized", "three_party", StepNormalized())]
    for seed in SEEDS:
        for name, cut, aggregate in methods:

            def build(cut=cut, aggregate=aggregate):
                task = Task(models.cnn, pictures(5_000, 2_000), CUTS[cut])
                return task, Federation(LocalSGD(lr=LR, epochs=1, batch_size=32), aggregate=aggregate)

            yield Run(f"chapter05/{name}-seed{seed}", build, 20, seed, play=watched)


def groups():
    """The small case: six splits, each drawn anew with every seed, at three learning rates, against both cosines."""

    def cuts(seed):
        yield "iid", partition.iid(num_clients=5, seed=seed)
        yield "sorted", partition.shards(num_clients=5, per_client=1, seed=seed)
        for alpha in (0.05, 0.2, 1, 10):
            yield f"alpha {alpha}", partition.dirichlet(alpha=alpha, num_clients=5, seed=seed)

    measured = ("accuracy", "mean_cosine", "mean_relative_length", "one_minus_parameter_cosine")
    yield "chapter05/cosines", [
        Run(f"chapter05/cosines/{name}-lr{lr}-seed{seed}",
            lambda cut=cut, lr=lr: (
                Task(models.mlp, small_table(), cut), Federation(LocalSGD(lr=lr, epochs=3))
            ),
            20, seed, {"cut": name, "lr": lr, "seed": seed}, watched, measured)
        for seed in range(5) for name, cut in cuts(seed) for lr in (0.01, 0.1, 0.3)
    ]  # fmt: skip
