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
    gap = check_grad(
        lambda w: logreg.loss(w, X, y, l2), lambda w: logreg.gradient(w, X, y, l2), W, epsilon=1e-6
    )
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
    assert p @ [logreg.loss(W, *c, 0.1) for c in clients] == pytest.approx(
        logreg.loss(W, *pooled(clients), 0.1)
    )
    assert np.allclose(
        p @ [logreg.gradient(W, *c, 0.1) for c in clients], logreg.gradient(W, *pooled(clients), 0.1)
    )


# Local training --------------------------------------------------------------------------------------------


def test_one_epoch_is_one_step():
    X, y = hospital(20)
    stepped = logreg.local_train(W, X, y, lr=0.5, l2=0.1)
    assert np.allclose(stepped, W - 0.5 * logreg.gradient(W, X, y, 0.1))


def test_epochs_compose():
    X, y = hospital(20)
    halfway = logreg.local_train(W, X, y, 0.3, 2, 0.1)
    assert np.array_equal(
        logreg.local_train(W, X, y, 0.3, 5, 0.1), logreg.local_train(halfway, X, y, 0.3, 3, 0.1)
    )


def test_the_servers_model_is_left_as_it_is():
    X, y = hospital(20)
    w, kept = W.copy(), W.copy()
    trained = logreg.local_train(w, X, y, 0.3, 5)
    assert np.array_equal(w, kept) and not np.shares_memory(w, trained)
    logreg.fedavg_round(w, federation([5, 9]), 0.3, 5)
    assert np.array_equal(w, kept)


def test_many_steps_arrive_at_the_optimum():
    X, y = hospital(60)
    assert np.allclose(
        logreg.local_train(np.zeros(4), X, y, 1.0, 3000, 0.1), logreg.optimum(X, y, 0.1), atol=1e-5
    )


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


def test_a_large_offset_does_not_make_a_feature_constant():
    parts = [hospital(n, 2, seed)[0] + 1e6 for n, seed in ((200, 0), (100, 1))]
    mean, sd = logreg.federated_standardize([logreg.summary(X) for X in parts])
    assert np.allclose(sd, np.concatenate(parts).std(axis=0), rtol=1e-2) and np.allclose(mean, 1e6, rtol=1e-5)


@pytest.mark.parametrize("value", [0.1, 0.3, -3.7])
def test_a_constant_of_many_rows_is_constant(value):
    """Row after row, the rounding of 0.1 + 0.1 + … would grow with the number of rows."""
    parts = [np.full((n, 2), value) for n in (200_000, 77)]
    _, sd = logreg.federated_standardize([logreg.summary(X) for X in parts])
    assert sd.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, bool, list])
def test_a_summary_is_in_float64_whatever_the_data_are(dtype):
    X = np.array([[250, 3], [200, 1]])
    X = X.tolist() if dtype is list else X.astype(dtype)
    wanted = np.asarray(X, dtype=float)
    n, total, squares = logreg.summary(X)
    assert total.dtype == squares.dtype == float and n == 2
    assert np.array_equal(total, wanted.sum(axis=0)) and np.array_equal(squares, (wanted**2).sum(axis=0))


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ([], "no clients"),
        ([(2, [1.0], [4.0]), (0, [0.0], [0.0])], "client 1: n must be at least 1, got 0"),
        ([(np.nan, [1.0], [4.0])], "client 0: n must be finite"),
        ([(2, [1.0], [4.0]), (2, [np.nan], [1.0])], "client 1: a sum is not finite"),
        ([(2, [1.0], [np.inf])], "client 0: a sum is not finite"),
        ([(2, [1.0, 4.0], [4.0, 7.9])], "client 0: no 2 numbers have such sums, feature 1"),
        ([(2, [0.0], [-1.0])], "client 0: no 2 numbers"),
        ([(2, [1.0], [4.0]), (2, [1.0, 2.0], [4.0, 4.0])], r"client 1: the sums must be \[d\]"),
    ],
)
def test_sums_that_no_data_have_are_refused(stats, message):
    with pytest.raises(ValueError, match=message):
        logreg.federated_standardize(stats)


def test_a_summary_needs_a_table_of_finite_numbers():
    for X, message in (
        (np.ones(3), r"table \[n, d\].*\(3,\)"),
        (np.ones((0, 3)), "at least one row"),
        ([[np.nan]], "not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            logreg.summary(X)


# The optimum -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2", [0.01, 0.1, 3.0])
def test_the_optimum_is_where_the_gradient_vanishes(l2):
    X, y = hospital(80)
    best = logreg.optimum(X, y, l2)
    assert np.abs(logreg.gradient(best, X, y, l2)).max() < 1e-5
    found = minimize(
        lambda w: logreg.loss(w, X, y, l2),
        np.zeros(4),
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 10_000},
    )
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
    ("setting", "message"),
    [
        ({"lr": 0.0}, "lr must be positive, got 0"),
        ({"lr": -0.1}, "lr must be positive, got -0.1"),
        ({"lr": np.nan}, "lr must be finite, got nan"),
        ({"lr": np.inf}, "lr must be finite, got inf"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": -1}, "epochs must be at least 1, got -1"),
        ({"l2": -1.0}, "l2 must be at least 0, got -1"),
        ({"l2": np.inf}, "l2 must be finite, got inf"),
        ({"l2": np.nan}, "l2 must be finite, got nan"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    setting = {"lr": 0.1} | setting
    for train in (
        lambda: logreg.fedavg([GOOD], 0, **setting),
        lambda: logreg.fedavg_round(W, [GOOD], **setting),
        lambda: logreg.local_train(W, *GOOD, **setting),
    ):
        with pytest.raises(ValueError, match=message):
            train()


def test_a_setting_of_the_wrong_type_is_refused():
    with pytest.raises(ValueError, match="rounds must be at least 0, got -1"):
        logreg.fedavg([GOOD], -1, 0.1)
    with pytest.raises(TypeError, match="rounds must be a whole number, got 2.0"):
        logreg.fedavg([GOOD], 2.0, 0.1)
    with pytest.raises(TypeError, match="epochs must be a whole number, got 1.5"):
        logreg.local_train(W, *GOOD, 0.1, 1.5)
    with pytest.raises(TypeError, match="lr must be one number, got '0.1'"):
        logreg.local_train(W, *GOOD, "0.1")
    with pytest.raises(ValueError, match="l2 must be finite"):
        logreg.loss(W, *GOOD, np.inf)
    with pytest.raises(ValueError, match="l2 must be at least 0"):
        logreg.gradient(W, *GOOD, -0.1)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ((W, GOOD[0], GOOD[1][:, None]), ValueError, r"y must hold one label.*5 >= 1.*\(5, 1\)"),
        ((W, GOOD[0], GOOD[1][:3]), ValueError, r"y must hold one label.*\(3,\)"),
        ((W, GOOD[0][0], GOOD[1][:1]), ValueError, r"X must be a table \[n, d\], got shape \(3,\)"),
        ((W, 1.0, GOOD[1]), ValueError, r"X must be a table.*got shape \(\)"),
        ((W[:3], *GOOD), ValueError, r"w must be \[d \+ 1\] = \[4\].*got shape \(3,\)"),
        ((W, np.ones((0, 3)), np.ones(0)), ValueError, "0 >= 1 rows"),
        ((W, [["a", "b", "c"]], [1]), TypeError, "X must hold numbers only, got .*'a'"),
        ((W, [[1, 2, 3], [1, 2]], [1, 0]), ValueError, "X must be one array.*differ in length"),
    ],
)
def test_data_that_do_not_fit_are_refused_and_not_broadcast(bad, error, message):
    w, X, y = bad
    calls = (logreg.loss, logreg.gradient, lambda w, X, y: logreg.local_train(w, X, y, 0.1))
    for call in calls:
        with pytest.raises(error, match=message if call is not calls[2] else message.replace("5 >= 1.*", "")):
            call(w, X, y)


def test_lists_and_whole_numbers_are_converted():
    X, y = hospital(6)
    assert logreg.loss(W.tolist(), X.tolist(), y.tolist(), 0.1) == logreg.loss(W, X, y, 0.1)
    assert np.array_equal(logreg.gradient(W.tolist(), X.tolist(), y > 0.5), logreg.gradient(W, X, y))
    assert logreg.predict(W.tolist(), X[:1].tolist()) == pytest.approx(logreg.predict(W, X[:1]))
    zeros = logreg.local_train(np.zeros(4, dtype=int), X, y, 0.3)
    assert zeros.dtype == float and np.array_equal(zeros, logreg.local_train(np.zeros(4), X, y, 0.3))
    clients = federation([4, 6])
    lists = [(X.tolist(), y.tolist()) for X, y in clients]
    wanted = logreg.fedavg(clients, 3, 0.2)
    for form in (lists, tuple(clients), (client for client in clients)):
        assert np.array_equal(logreg.fedavg(form, 3, 0.2), wanted)
    again = logreg.fedavg_round(wanted[-2], (client for client in clients), 0.2)
    assert np.array_equal(again, wanted[-1])


def test_labels_of_minus_one_are_refused_wherever_a_model_is_trained():
    X, y = GOOD
    for train in (
        lambda: logreg.local_train(W, X, 2 * y - 1, 0.1),
        lambda: logreg.fedavg_round(W, [(X, 2 * y - 1)], 0.1),
        lambda: logreg.fedavg([(X, 2 * y - 1)], 1, 0.1),
    ):
        with pytest.raises(ValueError, match="labels must be 0 or 1, got .*-1"):
            train()


@pytest.mark.parametrize(
    ("clients", "error", "message"),
    [
        ([GOOD, (np.ones((0, 3)), np.ones(0))], ValueError, "client 1.*>= 1"),
        ([GOOD, (np.full((1, 3), np.inf), np.ones(1))], ValueError, "client 1.*not finite"),
        ([GOOD, "ab"], ValueError, r"client 1 must be a pair \(X, y\), got 'ab'"),
        (GOOD, ValueError, r"client 0 must be a pair"),
        ([GOOD, (GOOD[0], ["b"] * 5)], TypeError, "client 1: y must hold numbers only"),
        (3, TypeError, "clients must be a list of"),
        ([], ValueError, "no clients"),
    ],
)
def test_a_round_names_the_client_that_does_not_fit(clients, error, message):
    for train in (lambda: logreg.fedavg_round(W, clients, 0.1), lambda: logreg.fedavg(clients, 1, 0.1)):
        with pytest.raises(error, match=message):
            train()
    with pytest.raises(ValueError, match=r"w must be \[d \+ 1\]"):
        logreg.fedavg_round(W[:2], [GOOD], 0.1)
    with pytest.raises(ValueError, match="w holds a value that is not finite"):
        logreg.fedavg_round(W * np.nan, [GOOD], 0.1)


def test_validating_returns_the_number_of_features():
    assert logreg.validate(federation([3, 4], d=2)) == 2


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_local_training_that_overflows_names_the_learning_rate_and_a_large_model_is_left_alone():
    with pytest.raises(ValueError, match="not finite: lr = 100.0 .or l2 = 1.0. is too large"):
        logreg.local_train(W, *GOOD, 100.0, 2000, 1.0)
    assert np.abs(logreg.local_train(W, *GOOD, 1e28)).max() > 1e25


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a_model_that_overflows_is_an_error_that_names_the_round():
    with pytest.raises(ValueError, match=r"^round \d+: .*not finite.*lr = 100"):
        logreg.fedavg([GOOD], 2000, 100.0, 1, l2=1.0)


@pytest.mark.parametrize(
    ("y", "l2", "message"),
    [
        ([0, 1, 0, 1, 1], 0.0, "l2 must be positive, got 0"),
        ([0, 1, 0, 1, 1], np.inf, "l2 must be finite"),
        ([1, 1, 1, 1, 1], 0.1, "all labels are 1"),
        ([0, 1, 2, 1, 1], 0.1, "labels must be 0 or 1.*2"),
        ([0, 1], 0.1, "y must hold one label"),
    ],
)
def test_an_optimum_that_does_not_exist_is_refused(y, l2, message):
    with pytest.raises(ValueError, match=message):
        logreg.optimum(GOOD[0], y, l2)
