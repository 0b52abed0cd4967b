"""Run the experiments whose results the chapters load, and commit what they leave: records.py [NAME ...].

A finished run is a JSON file in fedlib/records/ and is not repeated; an unfinished one continues where it stopped.
"""

import json
import sys
from functools import cache
from pathlib import Path

from fedlib import data, models, partition
from fedlib.experiment import describe_run, run
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.selection import Uniform
from fedlib.task import Task

RECORDS, WORK = Path("fedlib/records"), Path("runs")
SEEDS = (0, 1, 2)


@cache
def pictures(num_train, num_test):
    """Return CIFAR-10; a record made from the stand-in would be worth nothing."""
    return data.cifar10(num_train, num_test)


@cache
def held_out():
    """Return the same 5,000 training pictures with 1,000 of them set aside, to choose learning rates on."""
    return data.hold_out(pictures(5_000, 2_000), 1_000)


@cache
def small_table():
    """Return the small case: 8 features of which 6 matter, 4 classes, 2,000 samples for training and 1,000 for testing."""
    import torch
    from sklearn.datasets import make_classification

    x, y = make_classification(3_000, 8, n_informative=6, n_redundant=2, n_classes=4, random_state=0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    return data.Dataset("make_classification", x[:2_000], y[:2_000], x[2_000:], y[2_000:], 4)


CUTS = {
    "iid": partition.iid(num_clients=5),
    "dirichlet": partition.dirichlet(alpha=0.3, num_clients=5),
    "three_party": partition.three_party(),
    "centralized": partition.iid(num_clients=1),
}


def cnn(cut, lr, pictures, select=None):
    method = Federation(LocalSGD(lr=lr, epochs=1, batch_size=32), **({"select": select} if select else {}))
    return Task(models.cnn, pictures, CUTS[cut]), method


def cnn_experiments():
    """Chapter 4 on CIFAR-10: FedAvg on three splits against centralized training, 20 rounds of one local epoch."""
    for cut in ("iid", "centralized"):
        for lr in (0.02, 0.05, 0.1):
            yield f"chapter04/choose_lr-{cut}-{lr}-seed0", lambda cut=cut, lr=lr: cnn(cut, lr, held_out()), 5, 0
    for seed in SEEDS:
        for cut in CUTS:
            select = Uniform(2) if cut == "three_party" else None
            yield (f"chapter04/{cut}-seed{seed}",
                   lambda cut=cut, select=select: cnn(cut, chosen_lr(cut), pictures(5_000, 2_000), select), 20, seed)


def chosen_lr(cut):
    """Return the learning rate with the best accuracy on held-out training pictures, for federated or centralized."""
    kind = "centralized" if cut == "centralized" else "iid"
    files = sorted((RECORDS / "chapter04").glob(f"choose_lr-{kind}-*.json"))
    results = {path: json.loads(path.read_text())["rounds"][-1]["accuracy"] for path in files}
    return float(max(results, key=results.get).name.split("-")[2])


def run_cnn(names):
    for name, build, rounds, seed in cnn_experiments():
        path = RECORDS / f"{name}.json"
        if path.exists() or (names and not any(part in name for part in names)):
            continue
        task, method = build()
        path.parent.mkdir(parents=True, exist_ok=True)
        run(task, method, rounds, seed=seed, record=WORK / name).save(path)
        print(path, flush=True)


def small_grid():
    """Chapter 4's small case: local epochs times learning rate, and sorted blocks; one file for all runs."""
    path = RECORDS / "chapter04" / "small_grid.json"
    if path.exists():
        return
    cuts = {"iid": partition.iid(num_clients=5), "sorted": partition.shards(num_clients=5, per_client=1)}
    settings = [("iid", epochs, lr) for epochs in (1, 3, 5, 10, 20) for lr in (0.001, 0.01, 0.1, 0.3)]
    settings += [("sorted", 3, 0.1)]
    runs = []
    for cut, epochs, lr in settings:
        for seed in SEEDS:
            task, method = Task(models.mlp, small_table(), cuts[cut]), Federation(LocalSGD(lr=lr, epochs=epochs))
            history = run(task, method, 20, seed=seed)
            measured = {name: [float(f"{v:.5g}") for v in history.series(name)[1]] for name in ("accuracy", "loss")}
            runs.append({"cut": cut, "epochs": epochs, "lr": lr, "seed": seed, "sha256": history.sha256, **measured})
    task, method = Task(models.mlp, small_table(), cuts["iid"]), Federation(LocalSGD(lr=0.1))
    environment = describe_run(task, method, 0, 1)["environment"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment, "data": small_table().name, "runs": runs}))
    print(path, flush=True)


def main(*names):
    if not names or "small_grid" in names:
        small_grid()
    run_cnn(names)


if __name__ == "__main__":
    main(*sys.argv[1:])
