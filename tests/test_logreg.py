"""Logistic regression and FedAvg against finite differences, scikit-learn and the pooled problem."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from fedlib import hospitals, logreg


def hospital(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + seed
    return X, (rng.random(n) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)


def federation(sizes, d=3):
    return [hospital(n, d, seed=k) for k, n in enumerate(sizes)]


def pooled(clients):
    return tuple(np.concatenate(part) for part in zip(*clients, strict=True))


W = np.array([0.4, -1.0, 0.2, 0.3])


# Loss and gradient -----------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_log_loss():
    X, y = hospital(50)
    assert logreg.loss(W, X, y) == pytest.approx(log_loss(y, logreg.predict(W, X), labels=[0, 1]), abs=1e-12)
    assert logreg.loss(np.zeros(4), X, y) == pytest.approx(np.log(2))


def test_probabilities_by_hand():
    # Both features on, weights ln 3 and −1, intercept 1: the odds are 3 to 1.
    assert logreg.predict(np.array([np.log(3), -1.0, 1.0]), np.array([[1.0, 1.0]])) == pytest.approx([0.75])


def test_the_penalty_is_half_the_squared_norm_without_the_intercept():
    X, y = hospital(50)
    extra = logreg.loss(W, X, y, l2=0.6) - logreg.loss(W, X, y)
    assert extra == pytest.approx(0.3 * (0.4**2 + 1.0**2 + 0.2**2))


@pytest.mark.parametrize("l2", [0.0, 0.7])
def test_the_gradient_is_the_slope_of_the_loss(l2):
    X, y = hospital(20)
    gap = check_grad(lambda w: logreg.loss(w, X, y, l2), lambda w: logreg.gradient(w, X, y, l2), W, epsilon=1e-6)
    assert gap < 1e-5


def test_the_intercept_is_not_penalized():
    X, y = hospital(20)
    difference = logreg.gradient(W, X, y, l2=2.0) - logreg.gradient(W, X, y, l2=0.0)
    assert difference == pytest.approx([0.8, -2.0, 0.4, 0.0])


def test_far_from_the_data_nothing_overflows():
    X, y = np.array([[1000.0], [-1000.0]]), np.array([0.0, 1.0])
    w = np.array([50.0, 0.0])
    with np.errstate(all="raise", under="ignore"):
        assert logreg.loss(w, X, y) == pytest.approx(50_000)
        assert np.isfinite(logreg.gradient(w, X, y)).all()
        assert logreg.loss(-w, X, y) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_weighted_losses_and_gradients_are_the_pooled_ones(sizes):
    clients, p = federation(sizes), np.array(sizes) / sum(sizes)
    assert p @ [logreg.loss(W, *c, 0.1) for c in clients] == pytest.approx(logreg.loss(W, *pooled(clients), 0.1))
    assert np.allclose(p @ [logreg.gradient(W, *c, 0.1) for c in clients],
                       logreg.gradient(W, *pooled(clients), 0.1))  # fmt: skip


# Local training --------------------------------------------------------------------------------------------


def test_one_epoch_is_one_step():
    X, y = hospital(20)
    stepped = logreg.local_train(W, X, y, lr=0.5, l2=0.1)
    assert np.allclose(stepped, W - 0.5 * logreg.gradient(W, X, y, 0.1))


def test_epochs_compose():
    X, y = hospital(20)
    halfway = logreg.local_train(W, X, y, 0.3, 2, 0.1)
    assert np.array_equal(logreg.local_train(W, X, y, 0.3, 5, 0.1), logreg.local_train(halfway, X, y, 0.3, 3, 0.1))


def test_the_servers_model_is_left_as_it_is():
    X, y = hospital(20)
    w, kept = W.copy(), W.copy()
    trained = logreg.local_train(w, X, y, 0.3, 5)
    assert np.array_equal(w, kept) and not np.shares_memory(w, trained)
    logreg.fedavg_round(w, federation([5, 9]), 0.3, 5)
    assert np.array_equal(w, kept)


def test_many_steps_arrive_at_the_optimum():
    X, y = hospital(60)
    assert np.allclose(logreg.local_train(np.zeros(4), X, y, 1.0, 3000, 0.1), logreg.optimum(X, y, 0.1), atol=1e-5)


# Rounds ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_one_epoch_each_is_one_centralized_step(sizes):
    clients = federation(sizes)
    centralized = W - 0.4 * logreg.gradient(W, *pooled(clients), 0.05)
    assert np.allclose(logreg.fedavg_round(W, clients, 0.4, 1, 0.05), centralized, atol=1e-12)


def test_fedsgd_follows_centralized_descent_for_many_rounds():
    clients = federation([40, 7, 1])
    path, w = logreg.fedavg(clients, 50, 0.3, 1, 0.02), np.zeros(4)
    for model in path:
        assert np.allclose(model, w, atol=1e-12)
        w = w - 0.3 * logreg.gradient(w, *pooled(clients), 0.02)


def test_local_epochs_leave_the_centralized_path():
    clients = federation([40, 7, 20])
    several = logreg.fedavg_round(np.zeros(4), clients, 0.5, 10)
    assert not np.allclose(several, logreg.local_train(np.zeros(4), *pooled(clients), 0.5, 10), atol=1e-3)


@pytest.mark.parametrize("epochs", [1, 5])
def test_a_round_by_hand(epochs):
    clients = federation([12, 4])
    first, second = (logreg.local_train(W, *client, 0.3, epochs, 0.1) for client in clients)
    assert np.allclose(logreg.fedavg_round(W, clients, 0.3, epochs, 0.1), (12 * first + 4 * second) / 16)


def test_identical_clients_act_like_one():
    client = hospital(15)
    alone = logreg.local_train(W, *client, 0.3, 5)
    assert np.allclose(logreg.fedavg_round(W, [client] * 3, 0.3, 5), alone, atol=1e-12)


def test_clients_do_not_train_one_after_the_other():
    clients = federation([10, 3, 25])
    rounds = [logreg.fedavg_round(W, list(order), 0.5, 5) for order in permutations(clients)]
    assert np.allclose(rounds, rounds[0], atol=1e-12)


def test_a_client_of_one_patient_and_one_of_one_class():
    clients = [hospital(30), (np.ones((1, 3)), np.ones(1)), (np.ones((4, 3)), np.zeros(4))]
    path = logreg.fedavg(clients, 20, 0.3, 3, 0.01)
    assert path.shape == (21, 4) and np.isfinite(path).all()


def test_the_path_starts_at_zero_and_holds_every_round():
    clients = federation([10, 5])
    path = logreg.fedavg(clients, 4, 0.3, 2, 0.1)
    assert path.shape == (5, 4) and not path[0].any()
    for before, after in zip(path, path[1:], strict=False):
        assert np.array_equal(after, logreg.fedavg_round(before, clients, 0.3, 2, 0.1))
    assert logreg.fedavg(clients, 0, 0.3).shape == (1, 4)


def test_averaging_one_epoch_arrives_at_the_pooled_optimum_and_many_epochs_do_not():
    clients = federation([40, 10, 25])
    best = logreg.optimum(*pooled(clients), 0.1)
    assert np.allclose(logreg.fedavg(clients, 3000, 0.5, 1, 0.1)[-1], best, atol=1e-5)
    assert np.linalg.norm(logreg.fedavg(clients, 3000, 0.5, 20, 0.1)[-1] - best) > 1e-2


# Standardization -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_federated_standardization_is_scikit_learns_on_the_pooled_table(sizes):
    clients = [X for X, _ in federation(sizes)]
    mean, sd = logreg.federated_standardize([logreg.summary(X) for X in clients])
    scaler = StandardScaler().fit(np.concatenate(clients))
    assert np.allclose(mean, scaler.mean_)
    if sum(sizes) > 1:
        assert np.allclose(sd, scaler.scale_, atol=1e-6)


def test_hospitals_far_apart_have_a_spread_between_them():
    """Inside each hospital nothing varies, so an average of local deviations would say zero."""
    parts = [np.zeros((3, 1)), np.full((1, 1), 4.0)]
    mean, sd = logreg.federated_standardize([logreg.summary(X) for X in parts])
    assert mean == pytest.approx([1.0]) and sd == pytest.approx([np.sqrt(3.0)])


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e6])
def test_a_constant_feature_gets_one_and_not_rounding_noise(value):
    parts = [np.column_stack([np.full(n, value), np.arange(float(n))]) for n in (7, 3)]
    mean, sd = logreg.federated_standardize([logreg.summary(X) for X in parts])
    assert sd[0] == 1.0 and mean[0] == pytest.approx(value) and sd[1] > 1


def test_the_real_hospitals_are_standardized_like_one_table():
    clients, _ = hospitals.split(seed=0)
    mean, sd = logreg.federated_standardize([logreg.summary(X) for X, _ in clients])
    scaler = StandardScaler().fit(pooled(clients)[0])
    assert np.allclose(mean, scaler.mean_) and np.allclose(sd, scaler.scale_, rtol=1e-6)


def test_a_summary_is_three_sums():
    n, total, squares = logreg.summary(np.array([[1.0, 2.0], [3.0, 5.0]]))
    assert (n, total.tolist(), squares.tolist()) == (2, [4.0, 7.0], [10.0, 29.0])


# The optimum -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2", [0.01, 0.1, 3.0])
def test_the_optimum_is_where_the_gradient_vanishes(l2):
    X, y = hospital(80)
    best = logreg.optimum(X, y, l2)
    assert np.abs(logreg.gradient(best, X, y, l2)).max() < 1e-5
    found = minimize(lambda w: logreg.loss(w, X, y, l2), np.zeros(4), method="Nelder-Mead",
                     options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 10_000})  # fmt: skip
    assert np.allclose(best, found.x, atol=1e-4)


def test_the_optimum_is_scikit_learns_for_the_same_problem():
    X, y = hospital(80)
    fit = LogisticRegression(C=1 / (80 * 0.1), tol=1e-10, max_iter=10_000).fit(X, y)
    assert np.allclose(logreg.optimum(X, y, 0.1), [*fit.coef_[0], *fit.intercept_], atol=1e-6)


# Bad input -------------------------------------------------------------------------------------------------

GOOD = hospital(5)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "no clients"),
        ([GOOD, (np.ones((2, 4)), np.ones(2))], r"client 1.*\[n, 3\]"),
        ([GOOD, (np.ones(3), np.ones(3))], "client 1"),
        ([GOOD, (np.ones((0, 3)), np.ones(0))], "client 1.*>= 1"),
        ([GOOD, (np.ones((2, 3)), np.ones(3))], "client 1.*one label for each"),
        ([(np.full((2, 3), np.nan), np.ones(2))], "client 0.*not finite"),
        ([GOOD, GOOD, (np.ones((2, 3)), np.array([1.0, -1.0]))], "client 2.*0 or 1"),
        ([(np.ones((2, 3)), np.array([1.0, np.nan]))], "client 0.*0 or 1"),
    ],
)
def test_clients_that_do_not_fit_are_named(clients, message):
    with pytest.raises(ValueError, match=message):
        logreg.fedavg(clients, 1, 0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": -1, "lr": 0.1},
        {"rounds": 1, "lr": 0.0},
        {"rounds": 1, "lr": -0.1},
        {"rounds": 1, "lr": np.nan},
        {"rounds": 1, "lr": 0.1, "epochs": 0},
        {"rounds": 1, "lr": 0.1, "l2": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="rounds >= 0, epochs >= 1, lr > 0"):
        logreg.fedavg([GOOD], **settings)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a_model_that_overflows_is_an_error_that_names_the_round():
    with pytest.raises(ValueError, match=r"after round \d+.*lr = 100"):
        logreg.fedavg([GOOD], 2000, 100.0, 1, l2=1.0)


def test_an_optimum_without_a_penalty_is_refused():
    with pytest.raises(ValueError, match="l2 must be positive, got 0"):
        logreg.optimum(*GOOD, 0.0)
