"""Part 1 of a round: which clients take part."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class All:
    """Every registered client takes part in every round (full participation)."""

    def draw(self, t, num_clients, rng):
        """Return the jobs of round t, pairs (client, version of the model to start from), by client."""
        return [(k, t) for k in range(num_clients)]

    def expected_size(self, num_clients):
        """Number of clients in a round."""
        return num_clients


@dataclass(frozen=True)
class Uniform:
    """``num`` of the N clients, drawn uniformly without replacement, independently in every round."""

    num: int

    def __post_init__(self):
        if not (isinstance(self.num, int) and self.num >= 1):
            raise ValueError(
                f"the number of clients to draw must be an integer of at least 1, got {self.num!r}"
            )

    def draw(self, t, num_clients, rng):
        """Return the jobs of round t, pairs (client, version of the model to start from), by client."""
        return [(int(k), t) for k in np.sort(rng.choice(num_clients, self.num, replace=False))]

    def expected_size(self, num_clients):
        """Number of clients in a round."""
        return self.num
