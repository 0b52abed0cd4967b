"""Chapter 7: similarity weighting over temperatures, on different and on faulty clients, by layers, and on three parties."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from experiments import SEEDS, Run, pictures, small_table
from experiments.chapter04 import chosen_lr

from fedlib import models, partition
from fedlib.aggregate import WeightedMean
from fedlib.correction import Correction
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.rng import stream
from fedlib.selection import All, Uniform
from fedlib.similarity import Similarity
from fedlib.task import Task

MANY = range(10)  # seeds of the small case
TAUS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LAST = 10  # rounds at the end that are averaged
ODD = 9  # the last of ten clients: the different or faulty one


def aggregator(tau, **settings):
    """Return the similarity-weighted mean, or the size-weighted one for ``tau=None``."""
    return WeightedMean() if tau is None else Similarity(tau, **settings)


# Temperatures ----------------------------------------------------------------------------------------------


def small(recipe, aggregate, correction=None, table=None):
    """Return the small case with the settings of chapter 4: lr 0.1, three local epochs, batches of 32."""
    local = LocalSGD(lr=0.1, epochs=3, correction=correction or Correction(), batched=True)
    method = Federation(local, aggregate)
    return Task(models.mlp, table or small_table(), recipe), method


def summary(history):
    """Return means over the last rounds: accuracy, recall by class, each client's weight, and how the weights change.

    ``below`` is the share of those rounds in which a client's relative weight is below 0.3; ``after_one`` and ``after_two``
    are the mean changes of relative weights from a round to the next and to the one after that.
    """
    lines = history.rounds[-LAST:]
    weights = np.array([line["weights"] for line in history.rounds])
    relative = weights.shape[1] * weights[-LAST:]
    return {
        "accuracy": float(np.mean([line["accuracy"] for line in lines])),
        "class_accuracy": np.mean([line["class_accuracy"] for line in lines], axis=0).tolist(),
        "weights": weights[-LAST:].mean(axis=0).tolist(),
        "effective": float((1 / (weights**2).sum(axis=1)).mean()),
        "below": (relative < 0.3).mean(axis=0).tolist(),
        "after_one": float(np.abs(relative[1:] - relative[:-1]).mean()),
        "after_two": float(np.abs(relative[2:] - relative[:-2]).mean()),
    }


def temperatures():
    """Clients of equal size with class mixes of their own; a seed decides the mixes too."""
    for num_clients in (3, 30):
        for tau in (None, *TAUS):
            for seed in MANY:
                recipe = partition.dirichlet(alpha=0.3, num_clients=num_clients, per="client", seed=seed)
                yield Run(f"chapter07/tau/K{num_clients}-tau{tau}-seed{seed}",
                          lambda recipe=recipe, tau=tau: small(recipe, aggregator(tau)),
                          30, seed, {"clients": num_clients, "tau": tau, "seed": seed}, summary=summary)  # fmt: skip


# Different or faulty ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomDelta(Correction):
    """One client is broken: it sends noise, as long as the delta that it computed."""

    client: int

    def end(self, ctx, carry, result):
        if ctx.client != self.client:
            return {"delta": result.delta}
        noise = torch.from_numpy(ctx.stream("noise").normal(size=len(result.delta))).float()
        return {"delta": noise * (result.delta.norm() / noise.norm())}


@dataclass(frozen=True, kw_only=True)
class without(partition.Recipe):
    """The same clients, of whom one has lost its samples."""

    recipe: partition.Recipe
    client: int
    min_size: int = 0

    def split(self, labels, features, rng):
        parts = self.recipe(labels, features)
        return [part[:0] if k == self.client else part for k, part in enumerate(parts)]


def shuffled_labels(recipe, seed):
    """Return the small table with the labels of client ODD shuffled among its samples."""
    table = small_table()
    mine = torch.from_numpy(recipe(table.train_y.numpy())[ODD])
    labels = table.train_y.clone()
    labels[mine] = labels[mine[torch.from_numpy(stream(seed, "toy").permutation(len(mine)))]]
    return replace(table, train_y=labels)


def odd_client(case, tau, against, seed):
    """Return the task and method with one client of ten that is different (but right) or faulty."""
    aggregate = aggregator(tau, against=against)
    if case == "minority":  # nine clients share three classes and have ten samples each of the fourth, the tenth has 167
        shares = ({0: 1 / 9, 1: 1 / 9, 2: 1 / 9, 3: 0.02},) * 9 + ({3: 1 / 3},)
        return small(partition.by_class(shares=shares, rest=False, seed=seed), aggregate)
    recipe = partition.iid(num_clients=10, seed=seed)
    if case == "absent":
        recipe = without(num_clients=10, recipe=recipe, client=ODD)
    table = shuffled_labels(recipe, seed) if case == "shuffled labels" else None
    correction = RandomDelta(ODD) if case == "random delta" else None
    return small(recipe, aggregate, correction, table)


def screening():
    weighted = [(None, "mean"), *((tau, against) for against in ("mean", "others") for tau in (1.0, 0.5, 0.2))]
    for case, choices in (
        *((case, weighted) for case in ("minority", "shuffled labels", "random delta")),
        ("absent", weighted[:1]),
    ):
        for tau, against in choices:
            for seed in MANY:
                yield Run(f"chapter07/screening/{case.replace(' ', '-')}-tau{tau}-{against}-seed{seed}",
                          lambda case=case, tau=tau, against=against, seed=seed: odd_client(case, tau, against, seed),
                          30, seed, {"case": case, "tau": tau, "against": against, "seed": seed}, summary=summary)  # fmt: skip


# Pictures --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SideBySide:
    """Train with ``used``, and record the weights that each of ``others`` gives to the same deltas, in turn."""

    used: object
    others: tuple

    def combine(self, ctx, deltas):
        """Return the update of ``used`` and the weights of all the others in one row."""
        update, _ = self.used.combine(ctx, deltas)
        return update, np.concatenate([other.combine(ctx, deltas)[1] for other in self.others])


COMPARED = {
    "all": Similarity(sizes=False),
    "fc1 + fc2": Similarity(sizes=False, layers=("fc1", "fc2")),
    "fc2": Similarity(sizes=False, layers=("fc2",)),
    "others": Similarity(sizes=False, against="others"),
    "parameters": Similarity(sizes=False, against="parameters"),
}


def by_name(history):
    """Return {name: weights [T, K]} and the accuracy of a run with ``SideBySide``."""
    weights = np.array([np.split(np.array(line["weights"]), len(COMPARED)) for line in history.rounds])
    return {
        "accuracy": history.rounds[-1]["accuracy"],
        **{name: weights[:, i].tolist() for i, name in enumerate(COMPARED)},
    }


def cnn(recipe, aggregate, select=All()):
    local = LocalSGD(lr=chosen_lr("iid"), epochs=1, batch_size=32)
    return Task(models.cnn, pictures(5_000, 2_000), recipe), Federation(local, aggregate, select=select)


def groups():
    """Return the many small runs, and those of the network for pictures whose weights are compared."""
    yield "chapter07/tau", list(temperatures())
    yield "chapter07/screening", list(screening())
    yield "chapter07/layers", [
        Run(f"chapter07/layers/seed{seed}",
            lambda seed=seed: cnn(partition.dirichlet(alpha=0.3, num_clients=10, seed=seed),
                                  SideBySide(Similarity(), tuple(COMPARED.values()))),
            20, seed, {"seed": seed}, summary=by_name)
        for seed in SEEDS
    ]  # fmt: skip


def runs():
    """The three-party split; with two of three parties a round, chapter 4 has FedAvg's runs."""
    for seed in SEEDS:
        for name, tau, select in (
            ("all-fedavg", None, All()),
            ("all-tau1", 1.0, All()),
            ("all-tau0.2", 0.2, All()),
            ("two-tau1", 1.0, Uniform(2)),
        ):
            yield Run(f"chapter07/three_party-{name}-seed{seed}",
                      lambda tau=tau, select=select: cnn(partition.three_party(), aggregator(tau), select),
                      20, seed)  # fmt: skip
