"""The hospitals: all biopsies once, no test data in training, sizes and case mix as promised."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedlib import hospitals


def rows(X):
    return [tuple(row) for row in X]


def test_the_data_are_scikit_learns_with_malignant_as_one():
    X, y, names = hospitals.load()
    data = load_breast_cancer()
    assert X.shape == (569, 30) and len(names) == 30 and set(y) == {0.0, 1.0}
    assert y.sum() == 212
    assert list(data.target_names[data.target[y == 1]]) == ["malignant"] * 212


@pytest.mark.parametrize("seed", range(5))
def test_every_biopsy_is_in_exactly_one_place_with_its_own_label(seed):
    clients, test = hospitals.split(seed)
    X, y, _ = hospitals.load()
    label = dict(zip(rows(X), y, strict=True))
    assert len(label) == 569, "rows are distinct, so they can be told apart by their values"
    placed = [pair for part in [*clients, test] for pair in zip(rows(part[0]), part[1], strict=True)]
    assert len(placed) == 569 and dict(placed) == label


@pytest.mark.parametrize("seed", range(5))
def test_no_test_data_reach_a_hospital(seed):
    clients, (X_test, _) = hospitals.split(seed)
    seen = {row for X, _ in clients for row in rows(X)}
    assert seen.isdisjoint(rows(X_test))


def test_the_test_set_has_everybodys_case_mix():
    _, (_, y) = hospitals.split(0)
    assert abs(y.mean() - 212 / 569) < 0.005
    for fraction in (0.1, 0.5):
        _, (_, y) = hospitals.split(0, fraction)
        assert abs(len(y) - fraction * 569) <= 1 and abs(y.mean() - 212 / 569) < 0.01


def test_hospitals_differ_in_size_and_in_case_mix():
    clients, _ = hospitals.split(0)
    sizes = [len(y) for _, y in clients]
    malignant = [y.mean() for _, y in clients]
    assert len(clients) == len(hospitals.NAMES) == 3
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2]
    assert malignant[0] < malignant[1] < malignant[2]
    assert all(0 < share < 1 for share in malignant), "every hospital sees both classes"
    assert sum(hospitals.MALIGNANT) == pytest.approx(1) and sum(hospitals.BENIGN) == pytest.approx(1)


def test_a_seed_names_a_split():
    (a, test_a), (b, test_b), (_, other) = hospitals.split(1), hospitals.split(1), hospitals.split(2)
    assert all(
        np.array_equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)
    )
    assert np.array_equal(test_a[0], test_b[0])
    assert not np.array_equal(test_a[0], other[0])


def test_splits_are_shuffled():
    """Every biopsy is in the test set of some of 60 splits: nothing depends on the order of the table."""
    seen = set()
    for seed in range(60):
        seen |= set(rows(hospitals.split(seed)[1][0]))
    assert len(seen) == 569


def test_the_global_random_state_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    hospitals.split(3)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_an_impossible_test_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match=r"test_fraction must lie in \(0, 1\), got"):
        hospitals.split(0, fraction)


@pytest.mark.parametrize(
    ("fraction", "empty"), [(1e-4, "the test set"), (0.9999, "A"), (0.99, "C"), (0.9965, "C")]
)
def test_nobody_is_left_without_a_biopsy(fraction, empty):
    with pytest.raises(ValueError, match=f"test_fraction = {fraction} leaves {empty} without a biopsy"):
        hospitals.split(0, fraction)
