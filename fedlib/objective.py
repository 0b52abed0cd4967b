"""The weighted objective, and the weights that partial participation really gives (chapter 1).

The federated objective of McMahan et al. (2017), eq. (1)–(2), is

    f(w) = Σ_k p_k f_k(w),   p_k = n_k / n,

and one round turns client results into one by a weighted mean with those p_k.  Everything here
is a pure function on NumPy arrays.
"""

import operator
from itertools import combinations
from math import comb

import numpy as np


def shares(sizes):
    """Return every client's share of the samples, p_k = n_k / n.

    Parameters
    ----------
    sizes : array_like of shape [K]
        Samples held by each client, n_k >= 0, at least one of them positive.

    Returns
    -------
    ndarray of shape [K], float64
        Weights that sum to 1.

    Raises
    ------
    ValueError
        If a size is negative or not finite, or if there are no samples at all.

    Examples
    --------
    >>> shares([300, 100])
    array([0.75, 0.25])
    """
    n = _sizes(sizes)
    return n / n.sum()


def weighted_mean(values, p):
    """Return Σ_k p_k v_k, the objective of losses, its gradient, or the new model of a round.

    Parameters
    ----------
    values : array_like of shape [K] or [K, d]
        One number or one vector for each client.
    p : array_like of shape [K]
        Weights that sum to 1.

    Returns
    -------
    float or ndarray of shape [d]

    Raises
    ------
    ValueError
        If the weights do not sum to 1, their number is not that of the values, or a value is not finite.

    Examples
    --------
    >>> weighted_mean([[0.0, 4.0], [8.0, 0.0]], [0.75, 0.25])
    array([2., 3.])
    """
    p = _weights(p)
    return p @ _one_for_each(values, p)


def quadratic_optimum(a, b, p):
    """Return the minimizer of Σ_k p_k a_k/2 (w − b_k)², the clients of the course's laboratory.

    Setting the gradient Σ_k p_k a_k (w − b_k) to zero gives Σ p a b / Σ p a: steep clients pull more.

    Parameters
    ----------
    a, b : array_like of shape [K]
        Curvatures (positive) and minimizers of the clients' losses.
    p : array_like of shape [K]
        Weights that sum to 1.

    Returns
    -------
    float

    Examples
    --------
    >>> quadratic_optimum([1, 4], [0, 1], [0.5, 0.5])
    0.8
    """
    a, b, p = _vector("a", a), _vector("b", b), _weights(p)
    if not len(a) == len(b) == len(p):
        raise ValueError(f"a, b and p must have one entry a client, got {len(a)}, {len(b)}, {len(p)}")
    if (a <= 0).any():
        raise ValueError(f"curvatures must be positive, got {a}: a flat or concave loss has no minimum")
    return _in_range(np.sum(p * a * b) / np.sum(p * a))


def renormalized(p, drawn):
    """Return the weights p_k / Σ_{j drawn} p_j of the drawn clients, and zero for all others.

    In every round they sum to 1.  On average over the draws they are *not* p, see ``expected_weights``.

    Parameters
    ----------
    p : array_like of shape [N]
        The objective's weights, summing to 1.
    drawn : sequence of int
        The distinct clients that take part in the round.

    Returns
    -------
    ndarray of shape [N]
    """
    p, drawn = _weights(p), _drawn(drawn, p)
    weights = np.zeros_like(p)
    weights[drawn] = p[drawn] / _positive(p[drawn].sum(), drawn)
    return weights


def unbiased(p, drawn):
    """Return the weights (N/m) p_k of the m drawn clients, and zero for all others.

    Over all equally likely draws of m clients they average to p exactly, because each client is drawn
    with probability m/N.  In a single round their sum may be far from 1: that is the price.

    Parameters
    ----------
    p : array_like of shape [N]
        The objective's weights, summing to 1.
    drawn : sequence of int
        The m distinct clients that take part in the round.

    Returns
    -------
    ndarray of shape [N]
    """
    p, drawn = _weights(p), _drawn(drawn, p)
    N, m = len(p), len(drawn)
    weights = np.zeros_like(p)
    weights[drawn] = N / m * p[drawn]
    return weights


def all_draws(num_clients, m):
    """Return every subset of m of N clients, the equally likely draws of a round.

    Parameters
    ----------
    num_clients, m : int
        N registered clients, 1 <= m <= N drawn.

    Returns
    -------
    list of tuple of int

    Raises
    ------
    ValueError
        If m is outside [1, N], or if there are more than a million subsets.
    TypeError
        If a number is not whole.
    """
    num_clients, m = _whole("num_clients", num_clients), _whole("m", m)
    if not 1 <= m <= num_clients:
        raise ValueError(f"m must lie between 1 and the {num_clients} registered clients, got {m}")
    if comb(num_clients, m) > 1_000_000:
        raise ValueError(f"{comb(num_clients, m):,} subsets of {m} from {num_clients} are too many to list: "
                         "average over random draws instead")  # fmt: skip
    return list(combinations(range(num_clients), m))


def expected_weights(sizes, m):
    """Return each client's mean weight when m of N are drawn uniformly and weights are renormalized.

    Computed exactly, over all subsets.  It equals n_k/n only if m = N or all sizes are equal; otherwise
    small clients weigh more than their share, because whoever is drawn alone has weight 1.

    Parameters
    ----------
    sizes : array_like of shape [N]
        Samples held by each client, all positive.
    m : int
        Clients drawn in a round.

    Returns
    -------
    ndarray of shape [N]

    Examples
    --------
    >>> expected_weights([9, 1], 1)
    array([0.5, 0.5])
    """
    p = shares(sizes)
    return np.mean([renormalized(p, drawn) for drawn in all_draws(len(p), m)], axis=0)


def _numbers(name, values):
    """Return ``values`` as an array of float64, the array itself if it is one."""
    if type(values) is np.ndarray and values.dtype == float:
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be one array of numbers: its rows differ in length") from None
    if array.dtype.kind not in "biufO":
        raise TypeError(f"{name} must hold numbers only, got {_short(values)}: convert it first")
    try:
        return array.astype(float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers only, got {_short(values)}: convert it first") from None


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _whole(name, number):
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {_short(number)}: write 2, not 2.0") from None


def _vector(name, values):
    values = _numbers(name, values)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(f"{name} must be a non-empty vector of finite numbers, got {values}")
    return values


def _sizes(sizes):
    sizes = _vector("sizes", sizes)
    if (sizes < 0).any() or not sizes.any():
        raise ValueError(f"sizes must be >= 0 with at least one sample in all, got {sizes}")
    return sizes if sizes.max() < 1e300 else sizes / sizes.max()  # their sum would overflow


def _weights(p):
    p = _vector("p", p)
    if (p < 0).any() or abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"weights must be >= 0 and sum to 1, got a sum of {p.sum():.6g}: divide by it first")
    return p


def _one_for_each(values, p):
    values = _numbers("values", values)
    if values.ndim not in (1, 2) or len(values) != len(p):
        raise ValueError(f"values must be [K] or [K, d] with K = {len(p)} weights, got shape {values.shape}")
    if not np.isfinite(values).all():
        k = int(np.argmin(np.isfinite(values.reshape(len(values), -1)).all(axis=1)))
        raise ValueError(f"client {k}'s value is not finite, got {values[k]}: it would spoil the mean")
    return values


def _drawn(drawn, p):
    drawn = np.asarray(drawn)
    if drawn.ndim != 1 or len(drawn) == 0 or drawn.dtype.kind not in "iu":
        raise ValueError(f"drawn must be a non-empty list of client numbers, got {drawn}")
    if len(set(drawn.tolist())) < len(drawn) or drawn.min() < 0 or drawn.max() >= len(p):
        raise ValueError(f"drawn must be distinct clients in 0..{len(p) - 1}, got {drawn.tolist()}")
    return drawn


def _positive(total, drawn):
    if total == 0:
        raise ValueError(
            f"clients {drawn.tolist()} have no samples between them: draw others, or skip the round"
        )
    return total


def _in_range(w):
    if not np.isfinite(w):
        raise ValueError(f"the optimum is {w}: a and b are too large or too small for floats, scale them")
    return float(w)
