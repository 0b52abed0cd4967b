"""Chapter 4: FedAvg on four splits of CIFAR-10 against centralized training.

Grids of local epochs × learning rate, and what a client can do by itself.
"""

import json
from pathlib import Path

from experiments import SEEDS, Run, held_out, pictures, small_table

from fedlib import models, partition
from fedlib.augment import flip_and_crop
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.selection import Uniform
from fedlib.stopping import EarlyStopping
from fedlib.task import Task

CUTS = {
    "iid": partition.iid(num_clients=5),
    "dirichlet": partition.dirichlet(alpha=0.3, num_clients=5),
    "three_party": partition.three_party(),
    "centralized": partition.iid(num_clients=1),
    "sorted": partition.shards(num_clients=5, per_client=1),
}

# What a client can do about its own data, whatever the others do.
CLIENT_SIDE = {
    "plain": {},
    "stop": {"stop": EarlyStopping()},
    "balance": {"balance": True},
    "augment": {"augment": flip_and_crop},
    "few epochs": {"epochs": 3},  # the control arm of stopping: fewer steps, and nothing else
}


def cnn(cut, lr, pictures, select=None):
    method = Federation(LocalSGD(lr=lr, epochs=1, batch_size=32), **({"select": select} if select else {}))
    return Task(models.cnn, pictures, CUTS[cut]), method


def chosen_lr(cut):
    """Return the learning rate with the best accuracy on held-out training pictures, for federated or centralized."""
    kind = "centralized" if cut == "centralized" else "iid"
    files = sorted(Path("fedlib/records/chapter04").glob(f"choose_lr-{kind}-*.json"))
    results = {path: json.loads(path.read_text())["rounds"][-1]["accuracy"] for path in files}
    return float(max(results, key=results.get).name.split("-")[2])


def runs():
    """Twenty rounds of one local epoch, after the learning rates were chosen."""
    for cut in ("iid", "centralized"):
        for lr in (0.02, 0.05, 0.1):
            yield Run(f"chapter04/choose_lr-{cut}-{lr}-seed0", lambda cut=cut, lr=lr: cnn(cut, lr, held_out()), 5, 0)
    for seed in SEEDS:
        for cut in CUTS:
            select = Uniform(2) if cut == "three_party" else None

            def build(cut=cut, select=select):
                return cnn(cut, chosen_lr(cut), pictures(5_000, 2_000), select)

            yield Run(f"chapter04/{cut}-seed{seed}", build, 20, seed)


def groups():
    """Local epochs × learning rate: for the small case, and for the CNN on a fiftieth of the pictures."""
    settings = [("iid", epochs, lr) for epochs in (1, 3, 5, 10, 20) for lr in (0.001, 0.01, 0.1, 0.3)]
    yield "chapter04/small_grid", [
        Run(f"chapter04/small_grid/{cut}-E{epochs}-lr{lr}-seed{seed}",
            lambda cut=cut, epochs=epochs, lr=lr: (
                Task(models.mlp, small_table(), CUTS[cut]), Federation(LocalSGD(lr=lr, epochs=epochs))
            ),
            20, seed, {"cut": cut, "epochs": epochs, "lr": lr, "seed": seed})
        for cut, epochs, lr in (*settings, ("sorted", 3, 0.1)) for seed in SEEDS
    ]  # fmt: skip
    yield "chapter04/cnn_grid", [
        Run(f"chapter04/grid-E{epochs}-lr{lr}-seed{seed}",
            lambda epochs=epochs, lr=lr: (
                Task(models.cnn, pictures(1_000, 2_000), CUTS["iid"]), Federation(LocalSGD(lr=lr, epochs=epochs))
            ),
            10, seed, {"epochs": epochs, "lr": lr, "seed": seed})
        for seed in SEEDS for epochs in (1, 5, 10, 20) for lr in (0.01, 0.1)
    ]  # fmt: skip
    kept = ("accuracy", "steps")
    yield "chapter04/client_side", [
        Run(f"chapter04/client_side/{cut}-{how}-seed{seed}",
            lambda cut=cut, how=how: (
                Task(models.mlp, small_table(), CUTS[cut]), Federation(LocalSGD(**{"lr": 0.1, "epochs": 20} | CLIENT_SIDE[how]))
            ),
            20, seed, {"cut": cut, "how": how, "seed": seed}, measured=kept)
        for cut in ("iid", "dirichlet") for how in CLIENT_SIDE if how != "augment" for seed in range(10)
    ]  # fmt: skip
    yield "chapter04/client_side_cnn", [
        Run(f"chapter04/client_side_cnn/{how}-seed{seed}",
            lambda how=how: (
                Task(models.cnn, pictures(1_000, 2_000), CUTS["dirichlet"]),
                Federation(LocalSGD(**{"lr": 0.1, "epochs": 10} | CLIENT_SIDE[how])),
            ),
            10, seed, {"how": how, "seed": seed}, measured=kept)
        for seed in SEEDS for how in CLIENT_SIDE
    ]  # fmt: skip
