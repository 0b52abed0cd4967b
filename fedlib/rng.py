"""Independent random streams: the same numbers whatever the order of the clients.

A federated simulation draws random numbers for many purposes (splitting the data, choosing
clients, ordering batches, adding noise).  If they all came from one generator, adding a client
would change everybody else's batches.  Here every draw has an address instead:
``(seed, purpose, t, client)`` names a stream, and equal addresses give equal numbers.
"""

import operator

import numpy as np

# Constant integers, never ``hash()``: Python salts the hashes of strings in every process.
# Numbers are never reused or renumbered, or old records could not be reproduced.
PURPOSES = {
    "partition": 1,
    "init": 2,
    "select": 3,
    "batches": 4,
    "noise": 5,
    "latency": 6,
    "split": 7,
    "toy": 8,
    "check": 9,
    "quantize": 10,
    "augment": 11,
    "attack": 12,
    "holdout": 13,
    "control_noise": 21,
}


def stream(seed, purpose, *ids):
    """Return the random generator at the address ``(seed, purpose, *ids)``.

    Parameters
    ----------
    seed : int
        Seed of the whole experiment, 0 <= seed < 2**32.
    purpose : str
        What the numbers are for; one of ``PURPOSES``.
    *ids : int
        Up to two more coordinates, usually the round ``t`` and the client ``k``.

    Returns
    -------
    numpy.random.Generator
        A fresh generator.  Different addresses give statistically independent streams.

    Raises
    ------
    ValueError
        For an unknown purpose, more than two ids, or a number outside [0, 2**32).
    TypeError
        If the seed or an id is not an integer.

    Examples
    --------
    >>> a = stream(0, "batches", 3, 17).integers(100, size=4)
    >>> b = stream(0, "batches", 3, 17).integers(100, size=4)
    >>> (a == b).all()
    np.True_
    """
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}: choose one of {sorted(PURPOSES)}")
    if len(ids) > 2:
        raise ValueError(f"at most two ids (round, client) are allowed, got {len(ids)}: {ids}")
    # A SeedSequence ignores trailing zeros and splits large integers into 32-bit words, so two
    # addresses could meet.  A fixed length and a fixed range keep them apart.
    seed, *ids = (_index(number) for number in (seed, *ids))
    t, client = (*ids, 0, 0)[:2]
    return np.random.default_rng(np.random.SeedSequence([seed, PURPOSES[purpose], t, client, len(ids) + 1]))


def _index(number):
    try:
        number = operator.index(number)
    except TypeError:
        raise TypeError(f"seed and ids must be integers, got {number!r} ({type(number).__name__})") from None
    if not 0 <= number < 2**32:
        raise ValueError(f"seed and ids must lie in [0, 2**32), got {number}: use a smaller number")
    return number
