"""Learning rates that fall from round to round: FedAvg's bias shrinks with the learning rate, so a falling one removes it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class InverseTime:
    """η_t = lr / (1 + t/halving): half of ``lr`` after ``halving`` rounds, a third after twice as many.

    Falls fast enough to end where it should, and slowly enough to arrive: Σ η_t grows without bound while
    Σ η_t² does not (Robbins and Monro 1951).
    """

    lr: float
    halving: float

    def __post_init__(self):
        _require_positive(lr=self.lr, halving=self.halving)

    def at(self, t):
        """Return the learning rate of round ``t``, from 0."""
        return self.lr / (1 + t / self.halving)


@dataclass(frozen=True)
class Cosine:
    """η_t = lr · (1 + cos(π t/rounds))/2: along half a cosine wave to 0 (Loshchilov and Hutter 2017), at least lr/1000."""

    lr: float
    rounds: int

    def __post_init__(self):
        _require_positive(lr=self.lr, rounds=self.rounds)

    def at(self, t):
        """Return the learning rate of round ``t``, from 0."""
        return self.lr * max((1 + math.cos(math.pi * min(t / self.rounds, 1))) / 2, 1e-3)


def _require_positive(**values):
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
