"""Look inside rounds: the model before each, what every client wanted to change, and the model after.

A run's history holds a few numbers a round. Whoever wants to know *why* they are what they are needs the deltas
themselves, which are too large to be kept: this generator shows those of one round at a time.
"""

from dataclasses import dataclass, field, replace

import torch

from fedlib.executor import Workers, one_thread
from fedlib.federation import begin, play_round, validate


@dataclass(frozen=True)
class Seen:
    """One round: ``w`` before and ``new_w`` after it, ``deltas`` of shape ``[K, d]``, their mean, and the line.

    ``mean`` is the update that the aggregator made of the deltas, shape ``[d]``; ``line`` is what a history
    records of the round.
    """

    w: torch.Tensor
    deltas: torch.Tensor
    mean: torch.Tensor
    new_w: torch.Tensor
    line: dict


def watch(task, method, rounds, seed=0):
    """Play ``rounds`` rounds as ``experiment.run`` does, and yield a ``Seen`` for each that was not skipped."""
    validate(method, task)
    onlooker = _Onlooker(method.aggregate)
    method = replace(method, aggregate=onlooker)
    model = task.new_model(seed)
    state, alone = begin(task, method, model, seed), Workers([model])
    try:
        for _ in range(rounds):
            w = state.w
            with one_thread():
                state, line = play_round(task, method, alone, seed, state)
            if "skipped" not in line:
                yield Seen(w, *onlooker.seen, state.w, line)
    finally:  # also when the caller has seen enough
        for store in state.rows.values():
            store.close()


@dataclass(frozen=True)
class _Onlooker:
    """An aggregator that remembers the deltas it hands on to another, and what that one made of them."""

    aggregate: object
    seen: list = field(default_factory=list)

    @property
    def remembers(self):
        return getattr(self.aggregate, "remembers", False)

    def combine(self, ctx, deltas):
        update, weights = self.aggregate.combine(ctx, deltas)
        self.seen[:] = deltas, update
        return update, weights
