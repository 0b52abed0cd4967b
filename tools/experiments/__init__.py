"""What `make records` runs, one module a chapter.

A module defines ``runs()``, which yields one ``Run`` for each file of its own, and ``groups()``, which yields the
name of a file that holds many small runs, and these.  For what is no federated run it may define ``tables()``, which
yields the name of a file and a function that returns its content.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch

from fedlib import data
from fedlib.experiment import run

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Run:
    """One experiment: ``build()`` returns its task and method; ``settings`` tell the runs of a group apart.

    ``play`` takes what ``fedlib.experiment.run`` takes and returns a history, with more in its lines perhaps;
    ``measured`` are the entries of a line that the file of a group keeps; ``summary(history)`` returns what it keeps
    instead, where a series of rounds would be too much.
    """

    name: str
    build: Callable
    rounds: int
    seed: int
    settings: dict = field(default_factory=dict)
    play: Callable = run
    measured: tuple = ("accuracy", "loss")
    summary: Callable | None = None


@cache
def pictures(num_train, num_test):
    """Return CIFAR-10; a record made from the stand-in would be worth nothing."""
    return data.cifar10(num_train, num_test)


@cache
def held_out():
    """Return the first 5,000 training pictures with 1,000 of them set aside, to choose settings on."""
    return data.hold_out(pictures(5_000, 2_000), 1_000)


@cache
def small_table():
    """Return the small case: 8 features of which 6 matter, 4 classes, 2,000 samples for training and 1,000 for testing."""
    from sklearn.datasets import make_classification

    x, y = make_classification(3_000, 8, n_informative=6, n_redundant=2, n_classes=4, random_state=0)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    return data.Dataset("make_classification", x[:2_000], y[:2_000], x[2_000:], y[2_000:], 4)
