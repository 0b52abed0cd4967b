"""Logistic regression and FedAvg in plain NumPy (chapter 2).

A model is one vector ``w`` of shape [d + 1]: d coefficients, then the intercept.  A client is a pair
``(X, y)`` of its features [n_k, d] and its labels [n_k], each 0 or 1.  The algorithm is FederatedAveraging
of McMahan et al. (2017), Algorithm 1, with every client in every round.
"""

from math import isfinite
from numbers import Real

import numpy as np
from scipy.special import expit

from fedlib.objective import _numbers, _short, _whole, shares, weighted_mean


def predict(w, X):
    """Return the probability of label 1 for each row: σ(X w + intercept).

    Parameters
    ----------
    w : ndarray of shape [d + 1]
        Coefficients, then the intercept.
    X : ndarray of shape [n, d]

    Returns
    -------
    ndarray of shape [n], in [0, 1]
    """
    w, X = _fitting(w, X)
    return expit(X @ w[:-1] + w[-1])


def loss(w, X, y, l2=0.0):
    """Return the mean log loss plus l2/2 ‖coefficients‖²; the intercept is not penalized.

    Parameters
    ----------
    w : ndarray of shape [d + 1]
    X : ndarray of shape [n, d]
    y : ndarray of shape [n]
        Labels 0 or 1.
    l2 : float
        Strength of the penalty, >= 0.

    Returns
    -------
    float, in nats
    """
    w, X, y = _data(w, X, y, l2)
    z = X @ w[:-1] + w[-1]
    return np.mean(np.logaddexp(0, z) - y * z) + l2 / 2 * np.sum(w[:-1] ** 2)


def gradient(w, X, y, l2=0.0):
    """Return the gradient of ``loss`` at ``w``, of shape [d + 1] (same parameters)."""
    w, X, y = _data(w, X, y, l2)
    error = predict(w, X) - y
    return np.append(X.T @ error / len(y) + l2 * w[:-1], np.mean(error))


def local_train(w, X, y, lr, epochs=1, l2=0.0):
    """Return the model after ``epochs`` full-batch gradient steps on one client's data.

    Parameters
    ----------
    w : ndarray of shape [d + 1]
        The server's model; it is left as it is.
    X, y : ndarrays of shape [n_k, d] and [n_k]
        The client's own data.
    lr : float
        Learning rate η, > 0.
    epochs : int
        Local epochs E >= 1; with the full batch, an epoch is one step.
    l2 : float
        Strength of the penalty, >= 0.

    Returns
    -------
    ndarray of shape [d + 1]

    Raises
    ------
    ValueError
        For data that do not fit or are not labeled 0/1, a setting out of range, or a model that overflowed.
    """
    w, X, y = _training(w, X, y, lr, epochs, l2)
    w_k = w.copy()
    for _ in range(epochs):
        w_k -= lr * gradient(w_k, X, y, l2)
    return _finite(w_k, lr, l2)


def fedavg_round(w, clients, lr, epochs=1, l2=0.0):
    """Return the model after one round: every client trains from ``w``, the server averages.

    Parameters
    ----------
    w : ndarray of shape [d + 1]
    clients : list of (X, y)
    lr, epochs, l2
        As in ``local_train``.

    Returns
    -------
    ndarray of shape [d + 1]
        Σ_k (n_k/n) w_k.

    Raises
    ------
    ValueError
        Naming the client whose data do not fit, and as in ``local_train``.
    """
    clients = _clients(clients)
    p = shares([len(y) for _, y in clients])
    results = [local_train(w, X, y, lr, epochs, l2) for X, y in clients]
    return weighted_mean(results, p)


def fedavg(clients, rounds, lr, epochs=1, l2=0.0):
    """Run FedAvg from the zero model and return every model on the way.

    Parameters
    ----------
    clients : list of (X, y)
    rounds : int
        Rounds T.
    lr, epochs, l2
        As in ``local_train``.

    Returns
    -------
    ndarray of shape [T + 1, d + 1]
        Row t is the server's model after t rounds.

    Raises
    ------
    ValueError
        For clients that do not fit together, a setting out of range, or a model that overflowed.
    """
    if _whole("rounds", rounds) < 0:
        raise ValueError(f"rounds must be at least 0, got {rounds}")
    _settings(lr, epochs, l2)
    clients = _clients(clients)
    path = [np.zeros(clients[0][0].shape[1] + 1)]
    for t in range(rounds):
        try:
            path.append(fedavg_round(path[-1], clients, lr, epochs, l2))
        except _Overflow as error:
            raise ValueError(f"round {t + 1}: {error}") from None
    return np.array(path)


def validate(clients):
    """Check that clients can be averaged, and return their number of features d.

    Parameters
    ----------
    clients : list of (X, y)

    Raises
    ------
    ValueError
        Naming the first client whose data are empty, not finite, mis-shaped or not labeled 0/1.
    """
    return _clients(clients)[0][0].shape[1]


def summary(X):
    """Return what a client sends for standardization: (n, Σx, Σx²), the sums of shape [d], in float64."""
    X = _columns(X)
    return len(X), X.sum(axis=0), (X**2).sum(axis=0)


def federated_standardize(stats):
    """Return the pooled mean and standard deviation from clients' sums alone.

    Parameters
    ----------
    stats : list of (n_k, Σx, Σx²)
        What ``summary`` returns for each client.

    Returns
    -------
    mean, sd : ndarrays of shape [d]
        With the divisor n; a feature that never varies gets sd 1, so that dividing by it is harmless.

    Raises
    ------
    ValueError
        For no clients, a client without rows, or sums that no data have.

    Notes
    -----
    Σx²/n − mean² subtracts two numbers that agree in their leading digits if the mean is large against the
    sd: of some 16 digits, 2 log10(|mean|/sd) are lost.  A variation of less than about 1.5e-7 times the mean
    drowns in rounding and counts as none.
    """
    stats = _stats(stats)
    n = sum(n_k for n_k, _, _ in stats)
    mean = sum(s for _, s, _ in stats) / n
    variance = sum(q for _, _, q in stats) / n - mean**2
    # Σx²/n − mean² cancels for a constant feature and leaves rounding noise instead of zero.
    constant = variance <= 100 * np.finfo(float).eps * mean**2
    return mean, np.sqrt(np.where(constant, 1.0, variance))


def optimum(X, y, l2):
    """Return the minimizer of ``loss`` by scikit-learn, for comparison.

    scikit-learn minimizes C Σ log loss + ½‖coefficients‖², so C = 1/(n l2) is the same problem.

    Parameters
    ----------
    X, y : ndarrays of shape [n, d] and [n]
        Both labels must occur.
    l2 : float
        Must be positive: without it separable data have no minimizer.

    Returns
    -------
    ndarray of shape [d + 1]
    """
    if not _real("l2", l2) > 0:
        raise ValueError(f"l2 must be positive, got {l2}: without a penalty separable data have no optimum")
    X, y = _client(X, y)
    if y.min() == y.max():
        raise ValueError(f"all labels are {y[0]:g}: no minimum exists, the intercept grows forever")
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(C=1 / (len(y) * l2), tol=1e-10, max_iter=10_000).fit(X, y)
    return np.append(fit.coef_[0], fit.intercept_)


class _Overflow(ValueError):
    """A model that is not finite, although all that went in was."""


def _fitting(w, X):
    w, X = _numbers("w", w), _numbers("X", X)
    if X.ndim != 2:
        raise ValueError(f"X must be a table [n, d], got shape {X.shape}: give a single row as X[None, :]")
    if w.shape != (X.shape[1] + 1,):
        raise ValueError(
            f"w must be [d + 1] = [{X.shape[1] + 1}], coefficients and intercept, got shape {w.shape}"
        )
    return w, X


def _data(w, X, y, l2):
    # Called for each gradient, so it looks at shapes and not at values.
    w, X = _fitting(w, X)
    y = _numbers("y", y)
    if y.shape != (len(X),) or len(y) == 0:
        raise ValueError(f"y must hold one label for each of the {len(X)} >= 1 rows, got shape {y.shape}")
    if not _real("l2", l2) >= 0:
        raise ValueError(f"l2 must be at least 0, got {l2}")
    return w, X, y


def _training(w, X, y, lr, epochs, l2):
    _settings(lr, epochs, l2)
    X, y = _client(X, y)
    w, X = _fitting(w, X)
    if not np.isfinite(w).all():
        raise ValueError("w holds a value that is not finite: training cannot start there")
    return w, X, y


def _settings(lr, epochs, l2):
    if not _real("lr", lr) > 0:
        raise ValueError(f"lr must be positive, got {lr}")
    if _whole("epochs", epochs) < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if not _real("l2", l2) >= 0:
        raise ValueError(f"l2 must be at least 0, got {l2}")


def _real(name, number):
    if not isinstance(number, Real):
        raise TypeError(f"{name} must be one number, got {_short(number)}")
    if not isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def _finite(w_k, lr, l2):
    if not np.isfinite(w_k).all():
        penalty = f" (or l2 = {l2})" if l2 else ""
        raise _Overflow(f"the trained model is not finite: lr = {lr}{penalty} is too large for this data")
    return w_k


def _clients(clients):
    """Return checked clients, as float arrays; a list that has been checked before is not checked again."""
    if isinstance(clients, _Checked):
        return clients
    try:
        clients = list(clients)
    except TypeError:
        raise TypeError(f"clients must be a list of (X, y) pairs, got {_short(clients)}") from None
    if not clients:
        raise ValueError("no clients: give a list of (X, y) pairs")
    checked = _Checked()
    for k, pair in enumerate(clients):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"client {k} must be a pair (X, y), got {_short(pair)}: one client is [(X, y)]")
        checked.append(_client(*pair, f"client {k}: ", checked[0][0].shape[1] if checked else None))
    return checked


class _Checked(list):
    pass


def _client(X, y, who="", d=None):
    X, y = _numbers(f"{who}X", X), _numbers(f"{who}y", y)
    if X.ndim != 2:
        raise ValueError(f"{who}X must be a table [n, {d or 'd'}], got shape {X.shape}")
    if d is not None and X.shape[1] != d:
        raise ValueError(f"{who}X must be [n, {d}] as for client 0, got {X.shape}")
    if y.shape != (len(X),) or len(y) == 0:
        raise ValueError(f"{who}y must hold one label for each of the {len(X)} >= 1 rows, got {y.shape}")
    if not np.isfinite(X).all():
        raise ValueError(f"{who}X holds a value that is not finite: drop or impute those rows")
    if not ((y == 0) | (y == 1)).all():
        raise ValueError(f"{who}labels must be 0 or 1, got {np.unique(y).tolist()[:5]}: recode them")
    return X, y


def _columns(X):
    X = _numbers("X", X)
    if X.ndim != 2 or len(X) == 0:
        raise ValueError(f"X must be a table [n, d] of at least one row, got shape {X.shape}")
    if not np.isfinite(X).all():
        raise ValueError("X holds a value that is not finite: drop or impute those rows")
    # Each column in one piece: then NumPy adds pairwise, and rounding does not grow with n.
    return np.asfortranarray(X)


def _stats(stats):
    checked = []
    for k, (n_k, s, q) in enumerate(stats):
        s, q = _numbers(f"client {k}: Σx", s), _numbers(f"client {k}: Σx²", q)
        if not _real(f"client {k}: n", n_k) >= 1:
            raise ValueError(f"client {k}: n must be at least 1, got {n_k}: leave out a client without rows")
        if s.ndim > 1 or s.shape != q.shape or (checked and s.shape != checked[0][1].shape):
            raise ValueError(f"client {k}: the sums must be [d] for all clients, got {s.shape}, {q.shape}")
        if not (np.isfinite(s).all() and np.isfinite(q).all()):
            raise ValueError(f"client {k}: a sum is not finite: drop or impute rows, or scale the feature")
        # (Σx)² <= n Σx² for all numbers; what is beyond rounding was no sum of squares, or of other rows.
        wrong = np.flatnonzero(s / n_k * s > q * (1 + 1e-9))
        if len(wrong):
            raise ValueError(
                f"client {k}: no {n_k} numbers have such sums, feature {wrong[0]} would vary negatively"
            )
        checked.append((n_k, s, q))
    if not checked:
        raise ValueError("no clients: give a list of (n, Σx, Σx²), one entry a client")
    return checked
