"""Chapter 8: what compressed uploads cost in accuracy and rounds, claim by claim.

Most claims are decided on the small case, whose clients hold few classes, with five paired seeds; each seed has a split of its
own.  Sparse uploads are repeated with the CNN and three seeds, where one percent of the entries is more than two numbers.
Seeds and settings are no more than what decides the claims.
"""

from dataclasses import dataclass

from experiments import SEEDS, Run, pictures, small_table

from fedlib import models, partition
from fedlib.compress import Quantize, TopK
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.selection import All, Uniform
from fedlib.task import Task
from fedlib.upload import Compress, Dense, ErrorFeedback

MANY_SEEDS = range(5)
LR = 0.1  # of every arm; chosen for uncompressed FedAvg in chapter 4

BITS = {
    "dense": Dense(),
    **{f"{bits} nearest": Compress(Quantize(bits)) for bits in (8, 4, 2)},
    **{f"{bits} stochastic": Compress(Quantize(bits, "stochastic")) for bits in (8, 4, 2)},
    "2 chunks": Compress(Quantize(2, "stochastic", chunk=16)),
}
SPARSE = {
    f"{percent}% {name}": upload(TopK(percent / 100), Quantize(8))
    for percent in (20, 10, 5, 1)
    for name, upload in (("plain", Compress), ("feedback", ErrorFeedback))
}


@dataclass(frozen=True)
class OnlyDelta(Scaffold):
    """SCAFFOLD whose control variates are not compressed."""

    vectors = ("delta",)


@dataclass(frozen=True)
class Computed(Scaffold):
    """SCAFFOLD whose clients keep the control variate that they computed, not the one that arrived."""

    def end(self, ctx, carry, result):
        message = super().end(ctx, carry, result)
        carry["computed"] = message["control"]
        return message

    def keep(self, carry, sent):
        return carry["own"] + carry["computed"]


@dataclass(frozen=True)
class CountedTwice(Scaffold):
    """SCAFFOLD whose control variates get error feedback although they carry what was left out themselves."""

    tracked = ()


CONTROL = {
    "fedavg": Correction(), "only delta": OnlyDelta(), "both": Scaffold(), "computed": Computed(),
    "rebuilt": Scaffold(rebuild=True),
}  # fmt: skip


def small(seed, upload=None, correction=None, select=None, clients=10):
    """Return task and method of the small case: equally large clients with few classes, five local epochs."""
    cut = partition.dirichlet(alpha=0.1, num_clients=clients, per="client", seed=seed)
    local = LocalSGD(lr=LR, epochs=5, batch_size=32, correction=correction or Correction(), batched=True)
    return Task(models.mlp, small_table(), cut), Federation(local, upload=upload or Dense(), select=select or All())


def runs():
    """The CNN, twenty rounds of one local epoch with chapter 4's learning rate; the uncompressed runs are chapter 4's."""
    cut = partition.dirichlet(alpha=0.3, num_clients=5)
    uploads = {
        "8bit": BITS["8 nearest"], "1-plain": SPARSE["1% plain"], "1-feedback": SPARSE["1% feedback"],
    }  # fmt: skip
    for seed in SEEDS:
        for name, upload in uploads.items():

            def build(upload=upload):
                method = Federation(LocalSGD(lr=LR, epochs=1, batch_size=32), upload=upload)
                return Task(models.cnn, pictures(5_000, 2_000), cut), method

            yield Run(f"chapter08/cnn-{name}-seed{seed}", build, 20, seed)


def group(name, rounds, settings, build):
    """Return a group: one run for each setting and seed, ``build(**setting, seed=seed)``."""
    jobs = [
        Run(f"chapter08/{name}/{'-'.join(map(str, setting.values())).replace(' ', '_')}-seed{seed}",
            lambda setting=setting, seed=seed: build(**setting, seed=seed), rounds, seed,
            {**setting, "seed": seed}, measured=("accuracy",))
        for setting in settings for seed in MANY_SEEDS
    ]  # fmt: skip
    return f"chapter08/{name}", jobs


def groups():
    yield group("small_bits", 60, [{"arm": arm} for arm in BITS], lambda arm, seed: small(seed, BITS[arm]))
    yield group("small_sparse", 60, [{"arm": arm} for arm in SPARSE], lambda arm, seed: small(seed, SPARSE[arm]))
    slow = {"dense": Dense(), "1% plain": SPARSE["1% plain"], "1% feedback": SPARSE["1% feedback"]}
    yield group("small_long", 200, [{"arm": arm} for arm in slow], lambda arm, seed: small(seed, slow[arm]))
    yield group(
        "small_control", 40, [{"arm": arm, "bits": bits} for arm in CONTROL for bits in (32, 8, 2)
                              if bits < 32 or arm in ("fedavg", "both")],
        lambda arm, bits, seed: small(seed, Dense() if bits == 32 else Compress(Quantize(bits)), CONTROL[arm]),
    )  # fmt: skip
    sparse = {"fedavg": Correction(), "scaffold": Scaffold(), "counted twice": CountedTwice()}
    yield group(
        "small_control_sparse", 40, [{"arm": arm} for arm in sparse],
        lambda arm, seed: small(seed, SPARSE["10% feedback"], sparse[arm]),
    )  # fmt: skip
    yield group(
        "small_product", 60, [{"m": m, "bits": bits} for m in (2, 5, 20) for bits in (32, 8, 2)],
        lambda m, bits, seed: small(
            seed, Dense() if bits == 32 else Compress(Quantize(bits, "stochastic")), select=Uniform(m), clients=20
        ),
    )  # fmt: skip
