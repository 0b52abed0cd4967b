"""The scissors behind the partitions: shares become cuts, class mixes become samples."""

import numpy as np


def cut_by_shares(indices, share):
    """Cut ``indices`` (length n) at the floors of n times the cumulative ``share`` (shape ``[N]``, sum 1)."""
    ends = (np.cumsum(share)[:-1] * len(indices)).astype(int)
    return np.split(indices, ends)


def move_to_small(parts, min_size, rng):
    """Move random samples from whoever is largest until everyone has ``min_size``; returns new parts."""
    parts = [rng.permutation(part) for part in parts]
    sizes = np.array([len(part) for part in parts])
    for k in np.flatnonzero(sizes < min_size):
        while sizes[k] < min_size:
            donor = np.argmax(sizes)
            parts[k], parts[donor] = np.append(parts[k], parts[donor][-1]), parts[donor][:-1]
            sizes[k] += 1
            sizes[donor] -= 1
    return [np.sort(part) for part in parts]


def draw_mixes(pools, mixes, sizes, rng):
    """Draw ``sizes[k]`` samples by class mix ``mixes[k]`` without replacement; the last take what is left."""
    left = np.array([len(pool) for pool in pools])
    parts = [None] * len(sizes)
    for k in rng.permutation(len(sizes)):
        taken = []
        missing = sizes[k]
        while missing:
            mix = np.where(left > 0, mixes[k] + 1e-12, 0)  # an exhausted class hands its share to the others
            want = np.minimum(rng.multinomial(missing, mix / mix.sum()), left)
            for c in np.flatnonzero(want):
                taken.append(pools[c][left[c] - want[c] : left[c]])
            left -= want
            missing -= want.sum()
        parts[k] = np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)
    return parts


def dirichlet_shares(rng, alpha, count):
    """Draw ``count`` rows of shares from Dir(alpha), where ``alpha`` has shape ``[N]``."""
    draws = rng.dirichlet(alpha, count)
    if not np.isfinite(draws).all():
        raise ValueError(
            f"alpha={alpha.min():g} is too small to draw shares from in floating point: use 1e-3 or more"
        )
    return draws


def gather(cuts):
    """Turn pieces by class (one list a class, one piece a client) into one array a client."""
    return [np.concatenate(pieces) for pieces in zip(*cuts)]
