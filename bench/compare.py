"""What the library costs: time over a bare loop, import time, memory as clients are registered.

``python bench/compare.py`` prints everything; ``python bench/compare.py time|imports|memory`` one part.
Nothing here is a test: numbers depend on the machine and on what else it does.
"""

import copy
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bare_loop import fedavg

from fedlib import models, partition
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.selection import Uniform
from fedlib.task import Task

ROOT = Path(__file__).parent.parent
REPEATS = 5


def cnn_task():
    """100 clients, Dirichlet(0.5), 50,000 pictures (noise: only the time matters), the CNN."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50_000, 32, 32, 3, generator=generator).permute(0, 3, 1, 2)
    y = torch.randint(0, 10, (50_000,), generator=generator)
    recipe = partition.dirichlet(alpha=0.5, num_clients=100)
    return Task(models.cnn, Dataset("noise", x, y, x[:10], y[:10], 10), recipe)


def mlp_task():
    """100 clients, Dirichlet(0.5), 20,000 samples of 8 features in 4 classes, the MLP 8-16-4."""
    from sklearn.datasets import make_classification

    x, y = make_classification(20_000, 8, n_informative=6, n_classes=4, random_state=0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    recipe = partition.dirichlet(alpha=0.5, num_clients=100)
    return Task(models.mlp, Dataset("make_classification", x, y, x[:10], y[:10], 4), recipe)


def compare_time(name, task, rounds):
    """Interleave the bare loop and ``run`` on one thread, check equal vectors, print median times.

    Times are CPU seconds of this process: on one thread they equal the clock's on an idle machine, and are
    less disturbed by others on a busy one.
    """
    seconds = {"bare": [], "fedlib": []}
    method = Federation(LocalSGD(lr=0.02, batch_size=32), select=Uniform(10))
    for repeat in range(REPEATS + 1):  # the first is a warm-up and does not count
        module = copy.deepcopy(task.new_model(repeat).module)  # channels-last weights, as in the library

        def bare(module=module, seed=repeat):
            fedavg(module, task.data.train_x, task.data.train_y, task.clients, 10, rounds, 0.02, 32, seed)

        def ours(seed=repeat):
            return run(task, method, rounds, seed=seed, evaluate_every=0).w

        results = {}
        order = [("bare", bare), ("fedlib", ours)]
        for label, action in order if repeat % 2 else order[::-1]:
            start = time.process_time()
            results[label] = action()
            if repeat:
                seconds[label].append((time.process_time() - start) / rounds)
        ends = task.new_model(0).layout.tensors(results["fedlib"])
        if not all(torch.equal(ends[key], p.detach()) for key, p in module.named_parameters()):
            raise SystemExit(f"{name}: the two final vectors differ, so the times cannot be compared")
    ratios = [b / a for a, b in zip(seconds["bare"], seconds["fedlib"])]
    medians = {label: 1000 * statistics.median(values) for label, values in seconds.items()}
    print(
        f"{name}: bare {medians['bare']:.1f} CPU ms a round, fedlib {medians['fedlib']:.1f} ms, ratio "
        f"{medians['fedlib'] / medians['bare']:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), vectors equal"
    )


def compare_imports():
    """Print median import times in fresh interpreters."""
    statements = ("import torch", "import fedlib", "import fedlib.federation")
    seconds = {statement: [] for statement in statements}
    for _ in range(REPEATS):
        for statement in statements:
            code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
            seconds[statement].append(float(_python("-c", code)))
    for statement, values in seconds.items():
        print(f"{statement}: {1000 * statistics.median(values):.0f} ms")


@dataclass(frozen=True)
class Remember(Correction):
    """A correction that keeps a full row for every client: its last delta."""

    def row_size(self, layout):
        return layout.size

    def begin(self, ctx, server, row, w):
        return w, {}

    def keep(self, carry, sent):
        return sent["delta"]


@dataclass(frozen=True)
class FirstHundred:
    """Ten of the first hundred clients, so that the same rows are touched however many are registered."""

    def draw(self, t, num_clients, rng):
        return [(int(k), t) for k in np.sort(rng.choice(100, 10, replace=False))]

    def expected_size(self, num_clients):
        return 10


@dataclass(frozen=True)
class FirstHundredOwnAll:
    """The first hundred clients share the samples equally; the others are registered and have none."""

    num_clients: int

    def __call__(self, labels, features=None):
        parts = np.array_split(np.arange(len(labels)), 100)
        return parts + [np.empty(0, dtype=np.int64)] * (self.num_clients - 100)


def peak_memory(num_clients):
    """Print this process's peak memory in MiB after 12 rounds with ``num_clients`` registered."""
    x = torch.randn(3200, 32, 32, 3).permute(0, 3, 1, 2)
    y = torch.randint(0, 10, (3200,))
    task = Task(models.cnn, Dataset("noise", x, y, x[:10], y[:10], 10), FirstHundredOwnAll(num_clients))
    method = Federation(LocalSGD(lr=0.02, correction=Remember()), select=FirstHundred())
    run(task, method, 12, evaluate_every=0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def compare_memory():
    """Print peak memory with 100 and 100,000 registered clients, median of three fresh processes each."""
    peaks = {}
    for num_clients in (100, 100_000):
        values = [float(_python(__file__, "peak", str(num_clients)).split()[-1]) for _ in range(3)]
        peaks[num_clients] = statistics.median(values)
    print(f"memory: {peaks[100]:.0f} MiB with 100 clients, {peaks[100_000]:.0f} MiB with 100,000, "
          f"ratio {peaks[100_000] / peaks[100]:.3f}")  # fmt: skip


def _python(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, check=True, capture_output=True, text=True
    ).stdout


def main(part="all", argument=None):
    if part == "peak":
        return peak_memory(int(argument))
    torch.set_num_threads(1)
    if part in ("all", "imports"):
        compare_imports()
    if part in ("all", "time"):
        compare_time("MLP", mlp_task(), rounds=50)
        compare_time("CNN", cnn_task(), rounds=2)
    if part in ("all", "memory"):
        compare_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
