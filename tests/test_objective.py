"""The weighted objective against pooled data, enumeration and closed forms."""

from itertools import combinations, permutations
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from fedlib import objective

sizes_lists = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def clients_with(sizes, d=3, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(loc=k, size=(n, d)), rng.normal(size=n)) for k, n in enumerate(sizes)]


def squared_error(w, X, y):
    return np.mean((X @ w - y) ** 2) / 2


def slope(w, X, y):
    return X.T @ (X @ w - y) / len(y)


# Shares and the weighted mean ------------------------------------------------------------------------------


@given(sizes_lists)
def test_shares_sum_to_one_and_are_proportional(sizes):
    p = objective.shares(sizes)
    assert p.dtype == float and abs(p.sum() - 1) < 1e-12
    assert np.allclose(p * sum(sizes), sizes)


def test_a_client_without_samples_has_no_weight():
    assert objective.shares([3, 0, 1]).tolist() == [0.75, 0.0, 0.25]
    assert objective.shares([1]).tolist() == [1.0]


@given(sizes_lists, st.integers(0, 10))
def test_the_weighted_objective_is_the_pooled_loss(sizes, seed):
    clients, w = clients_with(sizes, seed=seed), np.array([0.3, -1.0, 0.5])
    X, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    p = objective.shares(sizes)
    assert np.isclose(
        objective.weighted_mean([squared_error(w, *c) for c in clients], p), squared_error(w, X, y)
    )
    assert np.allclose(objective.weighted_mean([slope(w, *c) for c in clients], p), slope(w, X, y))


def test_the_unweighted_mean_is_not_the_pooled_loss():
    clients, w = clients_with([40, 2]), np.ones(3)
    X, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    assert abs(np.mean([squared_error(w, *c) for c in clients]) - squared_error(w, X, y)) > 0.5


def test_one_full_batch_step_each_is_one_centralized_step():
    clients, w, lr = clients_with([12, 3, 30]), np.ones(3), 0.1
    X, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    models = [w - lr * slope(w, *client) for client in clients]
    assert np.allclose(
        objective.weighted_mean(models, objective.shares([12, 3, 30])), w - lr * slope(w, X, y)
    )


def test_a_hand_computed_mean_of_numbers_and_of_vectors():
    assert objective.weighted_mean([1.0, 5.0], [0.25, 0.75]) == 4.0
    assert objective.weighted_mean([[0, 4], [8, 0]], [0.75, 0.25]).tolist() == [2.0, 3.0]
    assert objective.weighted_mean(np.float32([[1, 2]]), [1.0]).tolist() == [1.0, 2.0]


def test_constant_values_come_back_unchanged():
    row = np.array([1.5, -2.0, 7.0])
    assert np.allclose(objective.weighted_mean([row] * 3, objective.shares([5, 1, 9])), row)


def test_the_order_of_the_clients_is_irrelevant():
    values, sizes = np.random.default_rng(0).normal(size=(3, 2)), np.array([5, 1, 9])
    results = [
        objective.weighted_mean(values[list(order)], objective.shares(sizes[list(order)]))
        for order in permutations(range(3))
    ]
    assert np.allclose(results, results[0])


def test_arguments_are_left_as_they_are():
    values, p, sizes = np.ones((2, 3)), np.array([0.4, 0.6]), np.array([2, 3])
    kept = values.copy(), p.copy(), sizes.copy()
    objective.weighted_mean(values, p)
    objective.shares(sizes)
    objective.renormalized(p, [1])
    objective.unbiased(p, [0, 1])
    for now, before in zip((values, p, sizes), kept, strict=True):
        assert np.array_equal(now, before)


# The laboratory --------------------------------------------------------------------------------------------


def test_the_laboratory_has_its_optimum_at_four_fifths():
    assert objective.quadratic_optimum([1, 4], [0, 1], [0.5, 0.5]) == pytest.approx(0.8, abs=1e-12)
    # 0.2·4·1 / (0.8·1 + 0.2·4)
    assert objective.quadratic_optimum([1, 4], [0, 1], [0.8, 0.2]) == pytest.approx(0.5, abs=1e-12)
    # (1/4)·4 / (3/4 + 1): four sevenths
    assert objective.quadratic_optimum([1, 4], [0, 1], [0.75, 0.25]) == pytest.approx(0.5714285714, abs=1e-9)


@given(st.integers(0, 200))
def test_the_optimum_is_where_a_minimizer_finds_it(seed):
    rng = np.random.default_rng(seed)
    a, b, p = rng.uniform(0.1, 5, 4), rng.normal(size=4), rng.dirichlet(np.ones(4))
    found = minimize_scalar(
        lambda w: np.sum(p * a / 2 * (w - b) ** 2), bounds=(-9, 9), method="bounded", options={"xatol": 1e-9}
    )
    assert objective.quadratic_optimum(a, b, p) == pytest.approx(found.x, abs=1e-5)


def test_equal_curvatures_leave_the_weighted_mean_of_the_minimizers():
    assert objective.quadratic_optimum([3, 3], [0, 10], [0.9, 0.1]) == pytest.approx(1.0)


# Partial participation -------------------------------------------------------------------------------------


@given(sizes_lists, st.data())
def test_renormalized_weights_sum_to_one_in_every_round(sizes, data):
    m = data.draw(st.integers(1, len(sizes)))
    p = objective.shares(sizes)
    for drawn in combinations(range(len(sizes)), m):
        weights = objective.renormalized(p, drawn)
        assert weights.shape == p.shape and abs(weights.sum() - 1) < 1e-12
        assert set(np.flatnonzero(weights)) == set(drawn)
        # Equal rows give the same row whoever is drawn.
        assert np.allclose(weights @ np.full((len(sizes), 2), 3.0), 3.0)
        kept = np.array(drawn)
        assert np.allclose(weights[kept] / weights[kept[0]], p[kept] / p[kept[0]])


@given(sizes_lists, st.data())
def test_unbiased_weights_average_to_the_shares(sizes, data):
    m = data.draw(st.integers(1, len(sizes)))
    p = objective.shares(sizes)
    rounds = [objective.unbiased(p, drawn) for drawn in combinations(range(len(sizes)), m)]
    assert np.allclose(np.mean(rounds, axis=0), p, atol=1e-12)


def test_unbiased_weights_need_not_sum_to_one():
    assert objective.unbiased([0.75, 0.25], [0]).tolist() == [1.5, 0.0]
    assert objective.unbiased([0.75, 0.25], [1]).tolist() == [0.0, 0.5]
    assert objective.unbiased([0.5, 0.3, 0.2], [0, 2]).tolist() == pytest.approx([0.75, 0.0, 0.3])


def test_the_order_in_which_clients_are_drawn_is_irrelevant():
    p = objective.shares([5, 1, 9])
    for weights in (objective.renormalized, objective.unbiased):
        assert np.array_equal(weights(p, [2, 0]), weights(p, [0, 2]))


def test_drawing_everybody_gives_the_shares():
    p = objective.shares([5, 1, 9])
    assert np.allclose(objective.renormalized(p, [0, 1, 2]), p)
    assert np.allclose(objective.unbiased(p, [0, 1, 2]), p)


@pytest.mark.parametrize(("num_clients", "m"), [(1, 1), (4, 2), (6, 3), (5, 5)])
def test_all_draws_are_all_subsets(num_clients, m):
    draws = objective.all_draws(num_clients, m)
    assert len(set(map(frozenset, draws))) == len(draws) == comb(num_clients, m)
    assert all(len(set(drawn)) == m and set(drawn) <= set(range(num_clients)) for drawn in draws)


def test_expected_weights_of_two_clients_by_hand():
    # {0} and {1} are equally likely, and each gives weight 1.
    assert objective.expected_weights([9, 1], 1).tolist() == [0.5, 0.5]
    # Three rounds {0,1}, {0,2}, {1,2} of the split 7,000 / 7,000 / 36,000.
    a, b = 7 / 14, 7 / 43
    assert np.allclose(
        objective.expected_weights([7, 7, 36], 2), [(a + b) / 3, (a + b) / 3, 2 * (36 / 43) / 3]
    )


def test_expected_weights_by_simulation():
    sizes, m, rng = np.array([10, 20, 70, 5]), 2, np.random.default_rng(0)
    total = np.zeros(4)
    for _ in range(20_000):
        drawn = rng.choice(4, m, replace=False)
        total[drawn] += sizes[drawn] / sizes[drawn].sum()
    assert np.allclose(objective.expected_weights(sizes, m), total / 20_000, atol=0.012)


@given(sizes_lists)
def test_expected_weights_at_the_ends(sizes):
    N = len(sizes)
    assert np.allclose(objective.expected_weights(sizes, 1), 1 / N)
    assert np.allclose(objective.expected_weights(sizes, N), objective.shares(sizes))


@given(st.lists(st.integers(1, 50), min_size=3, max_size=5))
def test_rescaling_pulls_weights_toward_equality(sizes):
    assume(len(set(sizes)) > 1)
    p = objective.shares(sizes)
    distances = [np.abs(objective.expected_weights(sizes, m) - p).sum() for m in range(1, len(sizes) + 1)]
    assert all(after < before for before, after in zip(distances, distances[1:], strict=False))
    for m in range(1, len(sizes)):
        expected = objective.expected_weights(sizes, m)
        assert expected[np.argmin(p)] > p.min() and expected[np.argmax(p)] < p.max()


@given(st.integers(1, 40), st.integers(2, 5), st.data())
def test_equal_sizes_lose_nothing(size, num_clients, data):
    m = data.draw(st.integers(1, num_clients))
    assert np.allclose(objective.expected_weights([size] * num_clients, m), 1 / num_clients)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: objective.shares([]), "non-empty"),
        (lambda: objective.shares([0, 0]), "at least one sample"),
        (lambda: objective.shares([3, -1]), ">= 0"),
        (lambda: objective.shares([3, np.nan]), "finite"),
        (lambda: objective.shares([[1, 2]]), "vector"),
        (lambda: objective.weighted_mean([1, 2], [0.5, 0.6]), "sum to 1"),
        (lambda: objective.weighted_mean([1, 2], [1.5, -0.5]), ">= 0"),
        (lambda: objective.weighted_mean([1, 2, 3], [0.5, 0.5]), "K = 2"),
        (lambda: objective.weighted_mean(1.0, [1.0]), "K = 1"),
        (lambda: objective.quadratic_optimum([1, 0], [0, 1], [0.5, 0.5]), "positive"),
        (lambda: objective.quadratic_optimum([1, 4, 2], [0, 1], [0.5, 0.5]), "3, 2, 2"),
        (lambda: objective.quadratic_optimum([1, 4], [0, np.inf], [0.5, 0.5]), "finite"),
        (lambda: objective.renormalized([0.5, 0.5], []), "non-empty"),
        (lambda: objective.renormalized([0.5, 0.5], [2]), r"0\.\.1"),
        (lambda: objective.renormalized([0.5, 0.5], [0, 0]), "distinct"),
        (lambda: objective.renormalized([0.5, 0.5], [-1]), r"0\.\.1"),
        (lambda: objective.renormalized([1.0, 0.0, 0.0], [1, 2]), "no samples"),
        (lambda: objective.unbiased([0.5, 0.5], [0.0]), "client numbers"),
        (lambda: objective.unbiased([0.5, 0.5], [True, False]), "client numbers"),
        (lambda: objective.all_draws(3, 0), "between 1 and the 3"),
        (lambda: objective.all_draws(3, 4), "between 1 and the 3"),
        (lambda: objective.all_draws(100, 50), "too many"),
        (lambda: objective.expected_weights([1, 2], 3), "between 1 and the 2"),
        (lambda: objective.weighted_mean([1, np.nan], [0.5, 0.5]), "client 1's value is not finite, got nan"),
        (lambda: objective.weighted_mean([[1, 2], [np.inf, 2]], [1.0, 0.0]), "client 1's value is not finite"),
        (lambda: objective.weighted_mean([[1, 2], [3]], [0.5, 0.5]), "differ in length"),
        (lambda: objective.renormalized([1.0, 0.0, 0.0], np.array([1, 2])), r"clients \[1, 2\] have"),
        (lambda: objective.quadratic_optimum([1e200, 1], [1e200, 1], [0.5, 0.5]), "optimum is inf.*scale"),
        (lambda: objective.quadratic_optimum([5e-324, 5e-324], [1, 1], [0.5, 0.5]), "optimum is nan"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_bad_input_is_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: objective.all_draws(3, 2.0), "m must be a whole number, got 2.0"),
        (lambda: objective.all_draws(3.0, 2), "num_clients must be a whole number, got 3.0"),
        (lambda: objective.expected_weights([1, 2], 1.0), "m must be a whole number"),
        (lambda: objective.shares(["many", "few"]), "sizes must hold numbers only, got .*'many'"),
        (lambda: objective.weighted_mean([object()], [1.0]), "values must hold numbers only"),
    ],
)
def test_input_of_the_wrong_type_is_refused_with_a_reason(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_sizes_whose_sum_overflows_have_shares_all_the_same():
    with np.errstate(all="raise"):
        assert objective.shares([1e308, 1e308]).tolist() == [0.5, 0.5]
