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


@dataclass(frozen=True)
class Poisson:
    """Each client by itself, with probability ``rate``: nobody's part depends on anybody else's.

    The number drawn varies from round to round, and may be zero.  This is the draw that the privacy accountants of
    chapter 10 are derived for.
    """

    rate: float

    def __post_init__(self):
        if not 0 < self.rate <= 1:
            raise ValueError(f"the rate is a probability in (0, 1], got {self.rate!r}")

    def draw(self, t, num_clients, rng):
        """Return the jobs of round t, pairs (client, version of the model to start from), by client."""
        return [(int(k), t) for k in np.flatnonzero(rng.random(num_clients) < self.rate)]

    def expected_size(self, num_clients):
        """Mean number of clients in a round, q N."""
        return self.rate * num_clients
