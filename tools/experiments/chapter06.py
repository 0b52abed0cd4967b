"""Chapter 6: what control variates, FedProx and the moving average do to accuracy, claim by claim.

Most claims are decided on the small case, whose clients hold few classes, with eight paired seeds; each seed has a
split of its own.  The comparison of methods is repeated with the CNN.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from experiments import SEEDS, Run, pictures, small_table

from fedlib import data, models, partition
from fedlib.control import Scaffold, control_change
from fedlib.correction import Correction
from fedlib.ema import EMAControl, MatchedRate
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.prox import FedProx
from fedlib.selection import All, Uniform
from fedlib.server import ServerMomentum, ServerSGD
from fedlib.task import Task

MANY_SEEDS = range(8)
LR = 0.1  # of every arm unless it says otherwise; chosen for FedAvg in chapter 4
MOMENTUM = ServerMomentum(lr=0.1, momentum=0.9)  # steps as long as FedAvg's if updates agree

ARMS = {
    "fedavg": Correction(),
    "prox0.1": FedProx(0.1),
    "prox1": FedProx(1.0),
    "scaffold": Scaffold(),
    "scaffold1": Scaffold(option=1),
    "ema": EMAControl(LR),
    "ema_raw": EMAControl(LR, "raw"),
    "ema_global": EMAControl(LR, "global"),
    "ema_kept": EMAControl(LR, kept=True),
    "matched": MatchedRate(LR),
}


def small(correction, seed, lr=LR, clients=10, select=None, step=None, table=small_table, cut=None):
    """Return task and method of the small case: equally large clients with few classes, five local epochs."""
    cut = cut or partition.dirichlet(alpha=0.1, num_clients=clients, per="client", seed=seed)
    local = LocalSGD(lr=lr, epochs=5, batch_size=32, correction=correction, batched=True)
    return Task(models.mlp, table(), cut), Federation(local, select=select or All(), step=step or ServerSGD())


def held_out_table():
    """Return the small case with 400 training samples set aside, to choose settings on."""
    return data.hold_out(small_table(), 400)


def chosen_lr():
    """Return for each method the learning rate with the best accuracy on the held-out samples."""
    runs = json.loads(Path("fedlib/records/chapter06/small_lr.json").read_text())["runs"]
    scores = {}
    for run in runs:
        scores.setdefault((run["arm"], run["lr"]), []).append(run["accuracy"][-1] or 0.0)
    means = {key: sum(values) / len(values) for key, values in scores.items()}
    return {arm: max((lr for a, lr in means if a == arm), key=lambda lr: means[arm, lr]) for arm, _ in means}


@dataclass(frozen=True)
class Watched(Scaffold):
    """SCAFFOLD that also measures how stale the control variates are, ‖c_k − ∇f_k‖ / ‖∇f_k‖ at the received model."""

    def begin(self, ctx, server, row, w):
        start, carry = super().begin(ctx, server, row, w)
        gradient = ctx.full_gradient(ctx.client, w)
        carry["stale"] = float((carry["own"] - gradient).norm() / gradient.norm())
        return start, carry

    def describe(self, server, carries):
        return super().describe(server, carries) | {"stale": sum(carry["stale"] for carry in carries) / len(carries)}


@dataclass(frozen=True)
class Doubling(Scaffold):
    """SCAFFOLD whose learning rate doubles, once, when ‖c‖ has fallen to a tenth of its largest value."""

    double: bool = True

    def prepare(self, ctx, w):
        server, rows = super().prepare(ctx, w)
        return {**server, "peak": torch.zeros(1), "factor": torch.ones(1)}, rows

    def begin(self, ctx, server, row, w):
        start, carry = super().begin(ctx, server, row, w)
        return start, {**carry, "factor": float(server["factor"])}

    def correct(self, grad, theta, carry):
        return super().correct(grad, theta, carry).mul_(carry["factor"])

    def end(self, ctx, carry, result):
        length = torch.tensor([result.steps * result.lr * carry["factor"]])
        return {"delta": result.delta, "control": control_change(carry["c"], result.delta, length)}

    def commit(self, ctx, server, messages):
        c = super().commit(ctx, server, messages)["c"]
        peak = torch.maximum(server["peak"], c.norm()[None])
        fallen = self.double and float(c.norm()) <= float(peak) / 10
        return {"c": c, "peak": peak, "factor": torch.full((1,), 2.0) if fallen else server["factor"]}

    def describe(self, server, carries):
        return super().describe(server, carries) | {"factor": float(server["factor"])}


def runs():
    """The CNN, twenty rounds of one local epoch with chapter 4's learning rate; its FedAvg runs are chapter 4's."""
    cut = partition.dirichlet(alpha=0.3, num_clients=5)
    for seed in SEEDS:
        for arm in ("scaffold", "ema", "matched", "prox0.1"):

            def build(arm=arm):
                method = Federation(LocalSGD(lr=LR, epochs=1, correction=ARMS[arm]))
                return Task(models.cnn, pictures(5_000, 2_000), cut), method

            yield Run(f"chapter06/cnn-{arm}-seed{seed}", build, 20, seed)


def group(name, rounds, settings, build, measured=("accuracy", "loss"), seeds=MANY_SEEDS):
    """Return a group: one run for each setting and seed, ``build(**setting, seed=seed)``."""
    jobs = [
        Run(f"chapter06/{name}/{'-'.join(map(str, setting.values()))}-seed{seed}",
            lambda setting=setting, seed=seed: build(**setting, seed=seed), rounds, seed,
            {**setting, "seed": seed}, measured=measured)
        for setting in settings for seed in seeds
    ]  # fmt: skip
    return f"chapter06/{name}", jobs


def groups():
    tuned = ("fedavg", "prox0.1", "scaffold", "ema")
    yield group(
        "small_lr", 30, [{"arm": arm, "lr": lr} for arm in tuned for lr in (0.03, 0.1, 0.3, 1.0)],
        lambda arm, lr, seed: small(ARMS[arm], seed, lr, table=held_out_table), seeds=range(3),
    )  # fmt: skip
    yield group("small_arms", 30, [{"arm": arm} for arm in ARMS], lambda arm, seed: small(ARMS[arm], seed))
    yield group(
        "small_momentum", 30, [{"arm": arm} for arm in ("fedavg", "scaffold")],
        lambda arm, seed: small(ARMS[arm], seed, step=MOMENTUM),
    )  # fmt: skip
    yield group(
        "small_tuned", 30, [{"arm": arm} for arm in tuned],
        lambda arm, seed: small(ARMS[arm], seed, chosen_lr()[arm]),
    )  # fmt: skip
    # 200 samples a client are seven batches an epoch: refreshing every 7 steps is once an epoch.
    yield group(
        "small_refresh", 30, [{"what": what, "every": every} for what, all_ in
                              {"scaffold": (2, 3, 4, 5), "ema": (3, 5, 7)}.items() for every in all_],
        lambda what, every, seed: small(
            Scaffold(refresh_every=every) if what == "scaffold" else EMAControl(LR, refresh_every=every), seed
        ),
    )  # fmt: skip

    def warm(method, start, m, seed):
        correction = Scaffold(start=start) if method == "scaffold" else EMAControl(LR, kept=True, start=start)
        cut = partition.shards(num_clients=10, per_client=1, seed=seed)  # one class each, two at most
        return small(correction, seed, select=Uniform(m), cut=cut)

    yield group(
        "small_starts", 20, [{"method": method, "start": start, "m": m} for method in ("scaffold", "ema")
                             for start in ("zero", "own", "mean", "shared") for m in (10, 3)],
        warm,
    )  # fmt: skip
    yield group(
        "small_participation", 40, [{"arm": arm, "m": m} for arm in ("fedavg", "scaffold")
                                    for m in (1, 2, 4, 6, 10, 20)],
        lambda arm, m, seed: small(Watched() if arm == "scaffold" else Correction(), seed, clients=20,
                                   select=Uniform(m)),
        ("accuracy", "stale"),
    )  # fmt: skip
    yield group(
        "small_signal", 60, [{"double": double} for double in (False, True)],
        lambda double, seed: small(Doubling(double=double), seed), ("accuracy", "loss", "c_norm", "factor"),
    )  # fmt: skip
