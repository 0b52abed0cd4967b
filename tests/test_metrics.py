"""Scores against scikit-learn, scipy and closed forms."""

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedlib import metrics

labels = st.lists(st.integers(0, 3), min_size=1, max_size=30)


# Scores ----------------------------------------------------------------------------------------------------


def test_log_loss_by_hand_and_on_one_class():
    assert metrics.log_loss([1, 0], [0.5, 0.25]) == pytest.approx(-(np.log(0.5) + np.log(0.75)) / 2)
    assert metrics.log_loss([1, 1], [0.9, 0.8]) == pytest.approx(-(np.log(0.9) + np.log(0.8)) / 2)


def test_accuracy_by_hand():
    assert metrics.accuracy([0, 1, 2, 2], [0, 1, 1, 2]) == 0.75


@given(labels, st.integers(0, 100))
def test_f1_is_scikit_learns_where_all_classes_are_present(y, seed):
    y = np.array([*y, 0, 1, 2, 3])
    predicted = np.random.default_rng(seed).integers(0, 4, len(y))
    wanted = sklearn.metrics.f1_score(y, predicted, average="macro", zero_division=0)
    for absent in ("skip", "zero"):
        assert metrics.f1(y, predicted, 4, absent) == pytest.approx(wanted)


def test_the_two_conventions_on_a_client_with_one_class():
    assert metrics.f1([2, 2, 2], [2, 2, 2], 10) == 1.0
    assert metrics.f1([2, 2, 2], [2, 2, 2], 10, absent="zero") == pytest.approx(0.1)


def test_a_class_that_is_only_predicted_is_not_absent():
    # Class 0: precision 1, recall 1/2, so F1 = 2/3. Class 1 is predicted once, wrongly: F1 = 0.
    assert metrics.f1([0, 0], [0, 1], 3) == pytest.approx(1 / 3)
    assert metrics.f1([0, 0], [0, 1], 3, absent="zero") == pytest.approx(2 / 9)


def test_a_class_that_is_never_predicted_is_not_absent():
    assert metrics.f1([0, 1], [0, 0], 2) == pytest.approx(1 / 3)


@given(labels)
def test_perfect_predictions_score_one(y):
    assert metrics.f1(y, y, 4) == 1.0
    assert metrics.f1(y, y, 4, absent="zero") == pytest.approx(len(set(y)) / 4)


@given(labels, st.integers(0, 100))
def test_the_order_of_the_samples_is_irrelevant(y, seed):
    y, rng = np.array(y), np.random.default_rng(seed)
    predicted, order = rng.integers(0, 4, len(y)), rng.permutation(len(y))
    assert metrics.f1(y, predicted, 4) == pytest.approx(metrics.f1(y[order], predicted[order], 4))


# Comparisons -----------------------------------------------------------------------------------------------


def test_mean_and_sample_standard_deviation():
    assert metrics.mean_sd([1.0, 3.0]) == (2.0, pytest.approx(np.sqrt(2)))
    values = np.random.default_rng(0).normal(size=25)
    assert metrics.mean_sd(values)[1] == pytest.approx(stats.tstd(values))


@given(st.integers(2, 40), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_is_the_paired_t_test_of_scipy(n, level):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=n), rng.normal(size=n)
    ours = metrics.paired_difference(a, b, level)
    theirs = stats.ttest_rel(a, b).confidence_interval(level)
    assert (ours.low, ours.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert ours.mean == pytest.approx(a.mean() - b.mean()) and ours.n == n


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(scale=10, size=20)
    a = shared + 0.1 + rng.normal(scale=0.01, size=20)
    difference = metrics.paired_difference(a, shared)
    assert 0.09 < difference.low < difference.high < 0.11
    assert difference.high - difference.low < 0.02, "unpaired it would be some 13 wide"


def test_swapping_the_methods_swaps_the_sign():
    a, b = np.array([1.0, 2.0, 4.0]), np.array([0.0, 2.0, 1.0])
    one, two = metrics.paired_difference(a, b), metrics.paired_difference(b, a)
    assert one.mean == -two.mean and one.low == pytest.approx(-two.high) and one.mean > 0


def test_equal_methods_have_no_difference_and_no_spread():
    difference = metrics.paired_difference([1.0, 2.0], [1.0, 2.0])
    assert (difference.mean, difference.low, difference.high) == (0.0, 0.0, 0.0)


def test_the_interval_covers_as_often_as_it_says():
    rng, level, hits = np.random.default_rng(0), 0.9, 0
    for _ in range(2000):
        difference = metrics.paired_difference(rng.normal(0.3, 1, size=6), np.zeros(6), level)
        hits += difference.low <= 0.3 <= difference.high
    assert abs(hits / 2000 - level) < 0.025


def test_a_difference_reads_well():
    assert str(metrics.Difference(0.01234, -0.005, 0.03, 20)) == "+0.0123 [-0.0050, +0.0300]"


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.02, 0.05, "holds"),
        (0.01, 0.05, "holds"),
        (0.005, 0.05, "undecided"),
        (-0.02, 0.05, "undecided"),
        (-0.02, 0.009, "fails"),
        (0.001, 0.009, "fails"),
        (-0.05, -0.02, "fails"),
        (-0.02, 0.01, "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low, high, wanted):
    assert metrics.verdict(metrics.Difference((low + high) / 2, low, high, 20), 0.01) == wanted


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.f1([0, 1], [0, 1], 2, absent="drop"), '"skip" or "zero"'),
        (lambda: metrics.f1([0, 3], [0, 1], 3), r"y must hold labels 0\.\.2"),
        (lambda: metrics.f1([0, 1], [0, -1], 3), r"predicted must hold labels 0\.\.2"),
        (lambda: metrics.f1([], [], 3), "y must hold labels"),
        (lambda: metrics.mean_sd([1.0]), "at least two"),
        (lambda: metrics.mean_sd([[1.0, 2.0]]), "at least two"),
        (lambda: metrics.paired_difference([1, 2], [1, 2, 3]), "equally long"),
        (lambda: metrics.paired_difference([1], [1]), "at least two"),
        (lambda: metrics.mean_sd([1.0, np.nan]), r"values\[1\] is nan"),
        (lambda: metrics.paired_difference([1, 2, np.nan], [1, 2, 3]), r"a\[2\] is nan"),
        (lambda: metrics.paired_difference([1, 2], [np.inf, 2]), r"b\[0\] is inf"),
        *(
            (lambda level=level: metrics.paired_difference([1, 2], [2, 2], level), r"level must lie in \(0, 1\)")
            for level in (0.0, 1.0, -0.5, 95, np.nan)
        ),
        (lambda: metrics.verdict(metrics.Difference(np.nan, np.nan, np.nan, 2), 0.1), "must not hold NaN"),
        (lambda: metrics.verdict(metrics.Difference(0, 0, 0, 2), np.nan), "positive and finite, got nan"),
        (lambda: metrics.verdict(metrics.Difference(0, 0, 0, 2), 0.0), "positive"),
        (lambda: metrics.log_loss([0, 2], [0.5, 0.5]), "label"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
