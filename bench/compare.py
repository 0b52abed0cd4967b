"""What the engine costs, beside loops that do the same without it: compare.py [PART ...] [--save].

Parts are ``rounds``, ``scaling``, ``start``, ``imports`` and ``machine``; without one, all of them. ``--save`` writes the tables that
the page on performance shows. Nothing here is a test: numbers depend on the machine and on what else it does.
"""

import copy
import csv
import datetime
import functools
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from bare_loop import fedavg
from first_round import peak_memory

from fedlib import models, partition
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD, cpu_has_bf16
from fedlib.selection import Uniform
from fedlib.task import Task

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "book" / "performance"
REPEATS = 5
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@functools.cache
def pictures():
    """Return 50,000 pictures of noise: only the time matters."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50_000, 32, 32, 3, generator=generator).permute(0, 3, 1, 2)
    y = torch.randint(0, 10, (50_000,), generator=generator)
    return Dataset("noise", x, y, x[:10], y[:10], 10)


def cnn_task(model=models.cnn):
    return Task(model, pictures(), partition.dirichlet(alpha=0.5, num_clients=100))


def mlp_task():
    """Return 20,000 samples of 8 features in 4 classes for the MLP 8-16-4."""
    from sklearn.datasets import make_classification

    x, y = make_classification(20_000, 8, n_informative=6, n_classes=4, random_state=0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    recipe = partition.dirichlet(alpha=0.5, num_clients=100)
    return Task(models.mlp, Dataset("make_classification", x, y, x[:10], y[:10], 4), recipe)


@dataclass(frozen=True)
class Way:
    """One way to play rounds: with the library or as a bare loop."""

    library: bool
    workers: int = 1
    intraop: int = 1
    precision: str = "float32"
    batched: bool = False
    drawn: int = 10

    def play(self, task, rounds, seed):
        """Play and return the seconds a round took, and the final parameters by name."""
        torch.set_num_threads(self.intraop)
        initial = task.new_model(seed)
        module, layout = copy.deepcopy(initial.module), initial.layout  # channels-last weights, as in the library
        local = LocalSGD(lr=0.02, batch_size=32, precision=self.precision, batched=self.batched)
        start = time.perf_counter()
        if self.library:
            method = Federation(local, select=Uniform(self.drawn))
            w = run(task, method, rounds, seed=seed, evaluate_every=0, workers=self.workers).w
            return (time.perf_counter() - start) / rounds, layout.tensors(w)
        data, bf16 = task.data, self.precision == "bf16"
        fedavg(module, data.train_x, data.train_y, task.clients, self.drawn, rounds, 0.02, 32, seed, self.workers, bf16)
        return (time.perf_counter() - start) / rounds, dict(module.named_parameters())


def compare(task, rounds, ways, repeats=REPEATS):
    """Return ``{way: median seconds a round}``, the ways taking turns; unequal final vectors are an error."""
    seconds = {way: [] for way in ways}
    for repeat in range(repeats + 1):  # the first is a warm-up and does not count
        ends = {}
        for way in ways if repeat % 2 else ways[::-1]:
            took, ends[way] = way.play(task, rounds, seed=repeat)
            if repeat:
                seconds[way].append(took)
        for way in ways:
            twin = replace(way, library=False)
            if way.library and twin in ends and not all(torch.equal(ends[way][k], p) for k, p in ends[twin].items()):
                raise SystemExit(f"{way} and its bare loop end in different vectors: their times cannot be compared")
    return {way: statistics.median(values) for way, values in seconds.items()}


def rounds_table():
    """Every number of workers, precision and way to batch, beside the bare loop that does the same."""
    rows = []
    precisions = ["float32"] + ["bf16"] * cpu_has_bf16()
    for name, task, rounds in (("MLP 8-16-4", mlp_task(), 50), ("CNN", cnn_task(), 3)):
        plain = Way(False, intraop=CORES)
        ours = [Way(True, workers, precision=precision) for precision in precisions for workers in (1, CORES)]
        ways = [plain, *(replace(way, library=False) for way in ours), *ours]
        if name != "CNN":
            ways.append(Way(True, batched=True))
        medians = compare(task, rounds, ways)
        for way, median in medians.items():
            limit = medians.get(replace(way, library=False, batched=False))
            rows.append({
                "workload": name,
                "way": _describe(way),
                "ms a round": _milliseconds(median),
                "÷ bare serial loop": f"{median / medians[plain]:.2f}",
                "÷ own limit": f"{median / limit:.2f}" if way.library and not way.batched else "",
            })  # fmt: skip
    return rows


def _milliseconds(seconds):
    return f"{1000 * seconds:,.0f}" if seconds >= 1 else f"{1000 * seconds:.4g}"


def _describe(way):
    if way.batched:
        return "fedlib, all clients batched"
    cores = f"{way.intraop} threads in PyTorch" if way.intraop > 1 else f"{way.workers} client{'s' * (way.workers > 1)} at a time"
    return f"{'fedlib' if way.library else 'bare loop'}, {cores}, {way.precision}"


def scaling_table():
    """More clients a round, larger models, more registered clients."""
    rows = []

    def line(what, task, rounds, **settings):
        ways = [Way(False, CORES, **settings), Way(True, CORES, **settings)]
        bare, ours = compare(task, rounds, ways, repeats=3).values()
        rows.append({"what": what, "bare loop, ms a round": _milliseconds(bare), "fedlib": _milliseconds(ours),
                     "ratio": f"{ours / bare:.2f}"})  # fmt: skip

    for drawn in (10, 50):
        line(f"CNN, {drawn} clients a round", cnn_task(), 1, drawn=drawn)
    # Multiples of 16, so that every weight begins at a multiple of 64 bytes in the library's one vector as well: elsewhere
    # a matrix product may sum in another order, and the two would end a rounding apart.
    for hidden, millions in ((32, 0.1), (320, 1), (1632, 5)):
        line(f"one hidden layer, {millions} million parameters", cnn_task(functools.partial(models.mlp, hidden=hidden)), 2)
    for num_clients in (100, 100_000):
        seconds, peak = _median(lambda n=num_clients: _python(__file__, "registered", str(n)).split()[-2:], 3)
        rows.append({"what": f"CNN with a row for each client, {num_clients:,} registered", "bare loop, ms a round": "",
                     "fedlib": f"{_milliseconds(seconds)} and {peak:.0f} MiB", "ratio": ""})  # fmt: skip
    return rows


@dataclass(frozen=True)
class Remember(Correction):
    """A correction that keeps a full row for every client: its last delta."""

    def row_size(self, layout):
        return layout.size

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


def registered(num_clients):
    """Print seconds a round and this process's peak memory in MiB, over 12 rounds."""
    x = torch.randn(3200, 32, 32, 3).permute(0, 3, 1, 2)
    y = torch.randint(0, 10, (3200,))
    task = Task(models.cnn, Dataset("noise", x, y, x[:10], y[:10], 10), FirstHundredOwnAll(num_clients))
    method = Federation(LocalSGD(lr=0.02, correction=Remember()), select=FirstHundred())
    start = time.perf_counter()
    run(task, method, 12, evaluate_every=0)
    print((time.perf_counter() - start) / 12, peak_memory())


def start_table():
    """From process start to the end of the first round, and the peak memory until then."""
    rows = []
    script = str(Path(__file__).with_name("first_round.py"))
    for workers in (1, CORES):
        measured = {}
        for kind in ("bare", "fedlib"):

            def once(kind=kind, workers=workers):
                start = time.perf_counter()
                peak = float(_python(script, kind, str(workers)))
                return time.perf_counter() - start, peak

            measured[kind] = _median(once, REPEATS)
        for kind, (seconds, peak) in measured.items():
            more, times = seconds - measured["bare"][0], peak / measured["bare"][1]
            rows.append({"program": f"{kind if kind == 'fedlib' else 'bare loop'}, {workers} at a time",
                         "seconds to the end of round 1": f"{seconds:.2f}", "more than the bare loop": f"{more:+.2f}",
                         "peak memory, MiB": f"{peak:.0f}", "÷ bare loop": f"{times:.2f}"})  # fmt: skip
    return rows


def import_table():
    """Imports in fresh processes."""
    rows = []
    for statement in ("import torch", "import fedlib", "import fedlib.federation", "import fedlib.experiment"):
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        (seconds,) = _median(lambda code=code: [float(_python("-c", code))], REPEATS)
        rows.append({"statement": statement, "seconds": f"{seconds:.2f}"})
    return rows


def machine_table():
    """What the numbers depend on, one row a fact."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    facts = {
        "processor": f"{name}, {CORES} cores, {torch.backends.cpu.get_cpu_capability()}, "
        f"{'with' if cpu_has_bf16() else 'without'} bfloat16 instructions",
        "versions": f"Python {platform.python_version()}, PyTorch {torch.__version__}, NumPy {np.__version__}",
        "date": datetime.date.today().isoformat(),
        "command": "make bench",
    }
    return [{"fact": fact, "value": value} for fact, value in facts.items()]


def _median(measure, repeats):
    """Return the median of each of the numbers that ``measure()`` returns."""
    return [statistics.median(map(float, values)) for values in zip(*(measure() for _ in range(repeats)))]


def _python(*arguments):
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout


PARTS = {"rounds": rounds_table, "scaling": scaling_table, "start": start_table, "imports": import_table, "machine": machine_table}


def main(*arguments):
    if arguments[:1] == ("registered",):
        return registered(int(arguments[1]))
    import pandas as pd

    chosen = [argument for argument in arguments if argument != "--save"] or list(PARTS)
    for part in chosen:
        rows = PARTS[part]()
        print(f"\n{PARTS[part].__doc__}\n{pd.DataFrame(rows).to_string(index=False)}", flush=True)
        if "--save" in arguments:
            TABLES.mkdir(exist_ok=True)
            with open(TABLES / f"{part}.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
