"""Logistic regression and FedAvg in plain NumPy (chapter 2).

A model is one vector ``w`` of shape [d + 1]: d coefficients, then the intercept.  A client is a pair
``(X, y)`` of its features [n_k, d] and its labels [n_k], each 0 or 1.  The algorithm is FederatedAveraging
of McMahan et al. (2017), Algorithm 1, with every client in every round.
"""

import numpy as np
from scipy.special import expit

from fedlib.objective import shares, weighted_mean


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
    z = X @ w[:-1] + w[-1]
    return np.mean(np.logaddexp(0, z) - y * z) + l2 / 2 * np.sum(w[:-1] ** 2)


def gradient(w, X, y, l2=0.0):
    """Return the gradient of ``loss`` at ``w``, of shape [d + 1] (same parameters)."""
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
        Learning rate η.
    epochs : int
        Local epochs E; with the full batch, an epoch is one step.
    l2 : float
        Strength of the penalty.

    Returns
    -------
    ndarray of shape [d + 1]
    """
    w_k = w.copy()
    for _ in range(epochs):
        w_k -= lr * gradient(w_k, X, y, l2)
    return w_k


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
    """
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
    d = validate(clients)
    if rounds < 0 or epochs < 1 or not lr > 0 or not l2 >= 0:
        raise ValueError(f"need rounds >= 0, epochs >= 1, lr > 0, l2 >= 0; got {rounds}, {epochs}, {lr}, {l2}")
    path = [np.zeros(d + 1)]
    for t in range(rounds):
        path.append(fedavg_round(path[-1], clients, lr, epochs, l2))
        if not np.isfinite(path[-1]).all():
            raise ValueError(f"the model is not finite after round {t + 1}: lr = {lr} is too large for this data")
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
    if not clients:
        raise ValueError("no clients: give a list of (X, y) pairs")
    d = np.shape(clients[0][0])[-1]
    for k, (X, y) in enumerate(clients):
        X, y = np.asarray(X), np.asarray(y)
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"client {k}: X must be [n, {d}] as for client 0, got {X.shape}")
        if y.shape != (len(X),) or len(y) == 0:
            raise ValueError(f"client {k}: y must hold one label for each of the {len(X)} >= 1 rows, got {y.shape}")
        if not np.isfinite(X).all():
            raise ValueError(f"client {k}: X holds a value that is not finite: drop or impute those rows")
        if not np.isin(y, (0, 1)).all():
            raise ValueError(f"client {k}: labels must be 0 or 1, got {np.unique(y)}")
    return d


def summary(X):
    """Return what a client sends for standardization: (n, Σx, Σx²), the sums of shape [d]."""
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
    """
    n = sum(n_k for n_k, _, _ in stats)
    mean = sum(s for _, s, _ in stats) / n
    variance = sum(q for _, _, q in stats) / n - mean**2
    # Σx²/n − mean² cancels for a constant feature and leaves rounding noise instead of zero.
    constant = variance <= 1e-12 * np.maximum(mean**2, 1e-300)
    return mean, np.sqrt(np.where(constant, 1.0, variance))


def optimum(X, y, l2):
    """Return the minimizer of ``loss`` by scikit-learn, for comparison.

    scikit-learn minimizes C Σ log loss + ½‖coefficients‖², so C = 1/(n l2) is the same problem.

    Parameters
    ----------
    X, y : ndarrays of shape [n, d] and [n]
    l2 : float
        Must be positive: without it separable data have no minimizer.

    Returns
    -------
    ndarray of shape [d + 1]
    """
    if not l2 > 0:
        raise ValueError(f"l2 must be positive, got {l2}: without a penalty separable data have no optimum")
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(C=1 / (len(y) * l2), tol=1e-10, max_iter=10_000).fit(X, y)
    return np.append(fit.coef_[0], fit.intercept_)
