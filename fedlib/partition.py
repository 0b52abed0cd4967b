"""Who owns which samples: seven ways to cut a training set into clients.

A recipe is a small frozen dataclass of settings. Calling it with the labels gives a list with one sorted
index array a client: ``iid(num_clients=10)(labels)``. The arrays are disjoint; all recipes but ``by_class``
without ``rest`` use every sample.
"""

from dataclasses import dataclass

import numpy as np

from fedlib.cutting import cut_by_shares, dirichlet_shares, draw_mixes, gather, move_to_small
from fedlib.rng import stream

MAX_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all recipes share: a fixed number of clients, a seed and a minimum size.

    A draw in which some client has fewer than ``min_size`` samples is repeated, at most ``MAX_TRIES``
    times. Then it is repaired (samples move from the largest clients to the too small ones) or refused, as
    ``repair`` says. ``min_size=0`` is how to ask for empty clients.
    """

    num_clients: int
    seed: int = 0
    min_size: int = 1
    repair: bool = True

    def __post_init__(self):
        _check_integer("num_clients", self.num_clients, 1)
        _check_integer("min_size", self.min_size, 0)

    def __call__(self, labels, features=None):
        """Cut the training set.

        Parameters
        ----------
        labels : array, shape [n], integer
            Class of each training sample.
        features : array or tensor, shape [n, ...], optional
            The samples themselves; only ``feature_skew`` looks at them.

        Returns
        -------
        list of arrays, int64
            Sorted positions of each client's samples.

        Raises
        ------
        ValueError
            If the samples cannot give every client ``min_size``, naming the clients that fall short.
        TypeError
            If labels are not integers.
        """
        labels = np.asarray(labels)
        _check_labels(labels)
        if self.num_clients * self.min_size > len(labels):
            raise ValueError(
                f"{len(labels)} samples cannot give {self.num_clients} clients {self.min_size} each: "
                "use fewer clients, or allow empty clients with min_size=0"
            )
        for attempt in range(MAX_TRIES):
            rng = stream(self.seed, "partition", attempt)
            parts = [np.sort(part).astype(np.int64) for part in self.split(labels, features, rng)]
            small = [k for k, part in enumerate(parts) if len(part) < self.min_size]
            if not small:
                return parts
        if not self.repair:
            raise ValueError(
                f"clients {small[:20]} have fewer than min_size={self.min_size} samples after {MAX_TRIES} "
                "draws: use less skew, a smaller min_size, or repair=True"
            )
        return move_to_small(parts, self.min_size, rng)

    def split(self, labels, features, rng):
        """Return one index array a client, for labels ``[n]`` and this attempt's random generator."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class iid(Recipe):
    """Shuffle, then deal out equal numbers: every client is a random sample of the whole."""

    def split(self, labels, features, rng):
        return np.array_split(rng.permutation(len(labels)), self.num_clients)


@dataclass(frozen=True, kw_only=True)
class shards(Recipe):
    """Sort by class, cut, and deal each client ``per_client`` shards (McMahan et al. 2017, section 3).

    With two shards most clients see two classes; a shard across a class border adds a third.
    """

    per_client: int = 2

    def __post_init__(self):
        super().__post_init__()
        _check_integer("per_client", self.per_client, 1)

    def split(self, labels, features, rng):
        shuffled = rng.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        pieces = np.array_split(by_label, self.num_clients * self.per_client)
        dealt = rng.permutation(len(pieces)).reshape(self.num_clients, self.per_client)
        return [np.concatenate([pieces[i] for i in hand]) for hand in dealt]


@dataclass(frozen=True, kw_only=True)
class dirichlet(Recipe):
    """Label skew of adjustable strength: small ``alpha``, few classes a client.

    Two recipes go by this name. ``per="class"`` cuts each class over the clients by shares drawn from
    Dir(alpha, ..., alpha) with N entries, so sizes differ as well (Yurochkin et al. 2019, section 4).
    ``per="client"`` gives clients equal sizes and each its own class mix drawn from Dir(alpha·C·prior),
    where prior holds the pooled class shares and C their number (Hsu et al. 2019, section 3, with alpha·C
    for their alpha). alpha = 1 is *not* homogeneous: it makes every mix equally likely.
    """

    alpha: float
    per: str = "class"

    def __post_init__(self):
        super().__post_init__()
        _check_alpha(self.alpha)
        if self.per not in ("class", "client"):
            raise ValueError(f'per must be "class" or "client", got {self.per!r}')

    def split(self, labels, features, rng):
        pools = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
        if self.per == "class":
            shares = dirichlet_shares(rng, np.full(self.num_clients, self.alpha), len(pools))
            return gather(cut_by_shares(pool, share) for pool, share in zip(pools, shares))
        prior = np.array([len(pool) for pool in pools]) / len(labels)
        mixes = dirichlet_shares(rng, self.alpha * len(pools) * prior, self.num_clients)
        sizes = [len(part) for part in np.array_split(labels, self.num_clients)]
        return draw_mixes(pools, mixes, sizes, rng)


@dataclass(frozen=True, kw_only=True)
class by_class(Recipe):
    """Give named clients stated shares of stated classes, and the rest to the last client.

    ``shares`` holds one ``{class: share}`` for each client. With ``rest=True`` one more client, the last,
    owns what is left; with ``rest=False`` those samples are not used. ``num_clients`` follows from both.
    """

    num_clients: int = None
    shares: tuple
    rest: bool = True

    def __post_init__(self):
        if self.num_clients not in (None, len(self.shares) + self.rest):
            raise ValueError(
                f"{len(self.shares)} shares and rest={self.rest} do not make {self.num_clients} clients"
            )
        object.__setattr__(self, "num_clients", len(self.shares) + self.rest)
        super().__post_init__()
        for c in {c for share in self.shares for c in share}:
            given = [share.get(c, 0.0) for share in self.shares]
            if not (min(given) >= 0 and sum(given) <= 1 + 1e-9):  # also catches NaN
                raise ValueError(
                    f"the shares of class {c} must be at least 0 and sum to at most 1, got {given}"
                )

    def split(self, labels, features, rng):
        classes = np.unique(labels)
        unknown = {c for share in self.shares for c in share} - set(classes.tolist())
        if unknown:
            raise ValueError(
                f"shares name classes {sorted(unknown)}, but the labels hold only {classes.tolist()}"
            )
        cuts = []
        for c in classes:
            pool = rng.permutation(np.flatnonzero(labels == c))
            ends = np.cumsum([share.get(c, 0.0) for share in self.shares])
            cuts.append(np.split(pool, np.round(ends * len(pool)).astype(int)))
        return gather(cuts)[: self.num_clients]  # without ``rest`` the last piece is nobody's


def three_party(seed=0):
    """Return the course's three-party split of ten classes in CIFAR-10's order.

    Client 0 has 70 % of cats and dogs, client 1 has 70 % of birds and planes, client 2 everything else:
    7,000, 7,000 and 36,000 of 50,000 pictures.
    """
    airplane, bird, cat, dog = 0, 2, 3, 5
    return by_class(shares=({cat: 0.7, dog: 0.7}, {bird: 0.7, airplane: 0.7}), seed=seed)


@dataclass(frozen=True, kw_only=True)
class quantity(Recipe):
    """Unequal sizes and nothing else: sizes by Dir(alpha, ..., alpha), samples at random."""

    alpha: float

    def __post_init__(self):
        super().__post_init__()
        _check_alpha(self.alpha)

    def split(self, labels, features, rng):
        share = dirichlet_shares(rng, np.full(self.num_clients, self.alpha), 1)[0]
        return cut_by_shares(rng.permutation(len(labels)), share)


@dataclass(frozen=True, kw_only=True)
class feature_skew(Recipe):
    """Equal sizes, but clients differ in what the samples look like: dark pictures here, bright ones there.

    Samples are ranked by ``strength`` · (rank of the sample's mean) + (1 − ``strength``) · (random rank)
    and cut into blocks; strength 0 is IID, 1 sorts completely.
    """

    strength: float

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength must lie between 0 (IID) and 1 (sorted), got {self.strength}")

    def split(self, labels, features, rng):
        if features is None or len(features) != len(labels):
            raise ValueError(
                "feature_skew needs the samples: call it with labels and features of equal length"
            )
        means = np.asarray(features.mean(tuple(range(1, features.ndim))))
        rank = np.argsort(np.argsort(means, kind="stable"), kind="stable")
        score = self.strength * rank + (1 - self.strength) * rng.permutation(len(labels))
        return np.array_split(np.argsort(score, kind="stable"), self.num_clients)


def _check_integer(name, value, least):
    if not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check_alpha(alpha):
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(
            f"alpha must be positive and finite, got {alpha}: try 0.1 (strong skew) to 100 (weak)"
        )


def _check_labels(labels):
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"labels must be a 1-D array of integers, got {labels.dtype} of shape {labels.shape}")
