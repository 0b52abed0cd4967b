"""Real data for chapters 1 and 2: scikit-learn's breast cancer set, spread over three hospitals.

The 569 biopsies are the Wisconsin diagnostic set (Street, Wolberg and Mangasarian, 1993): 30 measurements
of cell nuclei each, 357 benign and 212 malignant.  The hospitals are ours: they differ in size and case mix.
"""

import numpy as np

from fedlib.rng import stream

NAMES = ("A", "B", "C")
# Where a malignant and a benign biopsy is examined: A screens many healthy people, C is a small clinic
# to which suspicious cases are referred.
MALIGNANT = (0.40, 0.40, 0.20)
BENIGN = (0.75, 0.20, 0.05)


def load():
    """Return all biopsies: X of shape [569, 30], y of shape [569] with 1 for malignant, feature names."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    return data.data, (data.target == 0).astype(float), list(data.feature_names)


def split(seed, test_fraction=0.3):
    """Set a test set aside, then spread the other biopsies over the hospitals A, B and C.

    The test set is drawn first and from everybody, so that no hospital's data can reach it.

    Parameters
    ----------
    seed : int
        Names the split; equal seeds give equal splits.
    test_fraction : float
        Share of each class that is set aside, in (0, 1), leaving biopsies to everybody.

    Returns
    -------
    clients : list of three (X, y)
        Raw measurements; standardize them before training.
    test : (X, y)

    Examples
    --------
    >>> clients, test = split(seed=0)
    >>> [len(y) for _, y in clients], len(test[1])
    ([247, 109, 42], 171)
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must lie in (0, 1), got {test_fraction}")
    X, y, _ = load()
    rng = stream(seed, "split")
    parts = [[] for _ in range(1 + len(NAMES))]
    for label, mix in ((1, MALIGNANT), (0, BENIGN)):
        ids = rng.permutation(np.flatnonzero(y == label))
        num_test = round(test_fraction * len(ids))
        rest = ids[num_test:]
        cuts = np.round(np.cumsum(mix)[:-1] * len(rest)).astype(int)
        for part, members in zip(parts, [ids[:num_test], *np.split(rest, cuts)], strict=True):
            part.append(members)
    (test, *clients) = [(X[ids], y[ids]) for ids in map(np.concatenate, parts)]
    for name, part in zip(("the test set", *NAMES), (test, *clients), strict=True):
        if not len(part[1]):
            raise ValueError(f"test_fraction = {test_fraction} leaves {name} without a biopsy: take 0.3, say")
    return clients, test
