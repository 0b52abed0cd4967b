"""The attack and its lower bound: against exact intervals, a mechanism of known ε, and noise that is broken."""

import numpy as np
import pytest
import torch
from scipy import stats
from test_privacy import private, small_task

from fedlib import accounting, audit
from fedlib.audit import Canaries
from fedlib.rng import stream
from fedlib.watch import watch


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (3, 20), (20, 20), (117, 400)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_shares_have_the_exact_interval(hits, trials, level):
    exact = stats.binomtest(hits, trials).proportion_ci(level, method="exact")
    assert audit.share_bounds(hits, trials, level) == pytest.approx((exact.low, exact.high), abs=1e-9)


def gaussian_scores(shift, trials, seed):
    rng = stream(seed, "toy")
    return rng.normal(shift, 1, trials), rng.normal(0, 1, trials)


def test_the_bound_is_below_the_truth_and_not_far_below():
    """One Gaussian release with z = 1 is (4.377, 1e-5)-private."""
    bounds = [audit.lower_bound(*gaussian_scores(1.0, 4_000, seed), 1e-5) for seed in range(20)]
    assert sum(bound > 4.377 for bound in bounds) == 0
    assert 1.2 < np.median(bounds) < 3.5


def test_what_is_true_of_the_boundary_is_kept_with_the_stated_confidence():
    """Randomized response with ε = 1 attains its bound exactly, so the lower bound errs as often as it may."""
    share = np.e / (1 + np.e)
    rng = stream(3, "toy")
    above = 0
    for _ in range(300):
        present, absent = (rng.random(400) < share).astype(float), (rng.random(400) < 1 - share).astype(float)
        above += audit.lower_bound(present, absent, 0.0) > 1.0
    assert above <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)


@pytest.mark.parametrize("factor", [0.1, 0.316])
def test_noise_that_is_too_small_is_found_out(factor):
    claimed = 4.378
    present, absent = gaussian_scores(1.0 / factor, 4_000, seed=0)
    assert audit.lower_bound(present, absent, 1e-5) > claimed


def test_an_attack_that_says_absent_counts_as_well():
    # Present scores are never low: only the answer "absent" is ever sure.
    low = np.where(np.arange(2_000) % 2, 0.0, 1.0)
    assert audit.lower_bound(np.ones(2_000), low, 0.0) > 3


def test_scores_without_information_show_nothing():
    for seed in range(5):
        assert audit.lower_bound(*gaussian_scores(0.0, 1_000, seed), 1e-5) < 0.2
    assert audit.lower_bound(np.zeros(100), np.zeros(100), 1e-5) == 0


def test_thresholds_are_not_chosen_on_the_trials_that_measure():
    """All the information is in the first half, so the second shows nothing."""
    first, second = np.r_[np.ones(200), np.zeros(200)], np.zeros(400)
    assert audit.lower_bound(first, second, 0.0) == 0
    assert audit.lower_bound(np.ones(400), np.zeros(400), 0.0) > 3


def test_delta_is_taken_off():
    present, absent = np.r_[np.ones(40), np.zeros(160)], np.zeros(200)
    rng = stream(0, "toy")
    rng.shuffle(present)
    assert audit.lower_bound(present, absent, 0.0) > audit.lower_bound(present, absent, 0.1) >= 0
    assert audit.lower_bound(present, absent, 0.5) == 0


def test_the_evidence_is_the_ratio_of_the_two_densities():
    moves = stream(0, "toy").normal(0, 2, (50, 7))
    q, z = 0.2, 1.7
    absent = stats.norm.logpdf(moves, 0, z)
    present = np.log((1 - q) * stats.norm.pdf(moves, 0, z) + q * stats.norm.pdf(moves, 1, z))
    np.testing.assert_allclose(audit.evidence(moves, q, z), (present - absent).sum(axis=1), atol=1e-9)


def test_scores_measure_the_noise_where_there_is_nothing_else():
    rng = stream(1, "toy")
    entries = tuple(tuple(range(4 * k, 4 * k + 4)) for k in range(200))
    steps = rng.normal(0, 1.7, (6, 800))
    drawn = rng.random((6, 200)) < 0.3
    present = np.arange(200) % 2 == 0
    for k in np.flatnonzero(present):
        steps[:, 4 * k : 4 * k + 4] += drawn[:, [k]] / 2
    moves = steps.reshape(6, 200, 4).sum(axis=2) / 2
    np.testing.assert_allclose(audit.scores(steps, entries, 0.3), audit.evidence(moves.T, 0.3, 1.7), atol=0.15)


def test_what_a_promise_allows():
    eps, delta = np.log(3), 0.01
    assert audit.allowed(0.0, eps, delta) == pytest.approx(delta)
    assert audit.allowed(0.1, eps, delta) == pytest.approx(0.31)
    assert audit.allowed(0.9, eps, delta) == pytest.approx(1 - (1 - 0.9 - delta) / 3)
    assert audit.allowed(1.0, eps, delta) == 1 and audit.allowed(0.5, 900.0, delta) == 1


def test_the_best_attack_on_a_gaussian_stays_inside_and_touches():
    eps = accounting.epsilon(1, 1, 1, 1e-2)
    fpr = np.geomspace(1e-6, 1, 2_000)
    best = stats.norm.cdf(1 + stats.norm.ppf(fpr))
    room = audit.allowed(fpr, eps, 1e-2) - best
    assert room.min() > -1e-6 and room.min() < 1e-4


def test_rates_by_hand():
    assert audit.rates([1, 2, 3, 4], [0, 1, 2, 2.5], 2) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2, 3], [1, 2, 3, 4], 0.0), "at least four"),
        (([[1, 2, 3, 4]], [1, 2, 3, 4], 0.0), "got shapes"),
        (([1, 2, 3, np.nan], [1, 2, 3, 4], 0.0), "must be finite"),
        (([1, 2, 3, 4], [1, 2, 3, 4], 1.0), "got 1.0 and 0.95"),
        (([1, 2, 3, 4], [1, 2, 3, 4], 0.0, 1.0), "got 0.0 and 1.0"),
    ],
)
def test_scores_without_a_meaning_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        audit.lower_bound(*arguments)


def test_canaries_send_vectors_of_their_own_or_nothing():
    task, entries = small_task(), ((3, 5, 8, 9), (1, 2), (10,))
    canaries = Canaries(entries, 0.4, (True, False, True))  # shorter than the clip norm
    method = private(rate=1.0, clip=0.5, z=0.1, correction=canaries)
    (seen,) = watch(task, method, 1)
    expected = torch.zeros(3, seen.deltas.shape[1])
    expected[0, [3, 5, 8, 9]], expected[2, 10] = 0.2, 0.4
    torch.testing.assert_close(seen.deltas[:3], expected)
    assert (seen.deltas[3:].norm(dim=1) > 0).all()
