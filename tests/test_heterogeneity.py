"""Heterogeneity measures against values worked out by hand."""

import numpy as np
import pytest

from fedlib.heterogeneity import label_distance, label_entropy, label_table, size_spread


def test_the_table_counts_and_keeps_columns_nobody_owns():
    labels = np.array([0, 0, 1, 3, 3, 3])
    table = label_table([np.array([0, 2]), np.array([1, 3, 4, 5]), np.array([], dtype=int)], labels, 5)
    assert table.tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 3, 0], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("labels", [[0, 5], [-1, 0]])
def test_labels_outside_the_classes_are_refused(labels):
    with pytest.raises(ValueError, match="num_classes is 5"):
        label_table([np.array([0])], np.array(labels), 5)


def test_entropy_by_hand():
    assert label_entropy(np.array([[4, 0], [0, 9]])) == 0
    assert label_entropy(np.array([[5, 5], [0, 0]])) == pytest.approx(
        np.log(2)
    )  # the empty client is left out
    mixed = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert label_entropy(np.array([[5, 5], [1, 3]])) == pytest.approx((np.log(2) + mixed) / 2)


def test_distance_by_hand():
    assert label_distance(np.array([[5, 5], [50, 50]])) == 0
    assert label_distance(np.array([[10, 0], [0, 10]])) == pytest.approx(0.5)
    # Pooled (3/4, 1/4). Client 0 (30, 0): distance 1/4, weight 3/4; client 1 (0, 10): 3/4, weight 1/4.
    assert label_distance(np.array([[30, 0], [0, 10], [0, 0]])) == pytest.approx(0.25 * 0.75 + 0.75 * 0.25)


def test_size_spread_by_hand():
    assert size_spread(np.array([[1, 1], [2, 0]])) == 0
    assert size_spread(np.array([[1, 0], [2, 1]])) == pytest.approx(0.5)  # sizes 1 and 3: mean 2, sd 1
