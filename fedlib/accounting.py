"""How much privacy a run has spent: ε after T rounds, at a fixed δ (chapter 10).

The unit is the client and neighbors differ by adding or removing one. ``epsilon`` reports what ``dp-accounting``
computes; ``rdp`` and ``epsilon_by_hand`` are the formula to look at: ten lines, an upper bound, a little larger.
"""

import math
from functools import cache

import numpy as np
from scipy.special import gammaln, logsumexp

STEP = 1e-3  # of the grid that privacy losses are rounded up to; the library's 1e-4 takes ten times as long


def rdp(rate, noise_multiplier, order):
    """Return the Rényi divergence that one round spends, at an integer order ν ≥ 2.

    1/(ν−1) · log Σ_{j=0}^{ν} C(ν, j) (1−q)^{ν−j} q^j exp(j(j−1)/(2z²)), for Poisson sampling with rate q and a
    Gaussian of noise multiplier z (Mironov, Talwar and Zhang 2019, section 3.3).  Rounds add up.
    """
    q, z, nu = rate, noise_multiplier, order
    if nu != int(nu) or nu < 2:
        raise ValueError(f"the order must be a whole number of at least 2, got {order}: for others the sum is no divergence")
    if q == 1:
        return nu / (2 * z**2)
    j = np.arange(nu + 1)
    log_binomial = gammaln(nu + 1) - gammaln(j + 1) - gammaln(nu - j + 1)
    terms = log_binomial + (nu - j) * math.log1p(-q) + j * math.log(q) + j * (j - 1) / (2 * z**2)
    return logsumexp(terms) / (nu - 1)


def epsilon_by_hand(rate, noise_multiplier, rounds, delta, conversion="improved"):
    """Return ε of all rounds together from ``rdp``, at the best order.

    Parameters
    ----------
    rate, noise_multiplier : float
        q in (0, 1] and z > 0.
    rounds : int
    delta : float
        In (0, 1); well below one over the number of clients.
    conversion : {"improved", "classic"}
        From divergence to ε: "classic" is Mironov (2017), proposition 3; "improved" is Canonne, Kamath and Steinke
        (2020), proposition 12.

    Examples
    --------
    >>> round(epsilon_by_hand(0.1, 1, 1, 1e-5), 4)
    2.133
    """
    _check(rate, noise_multiplier, rounds, delta)
    if conversion not in ("improved", "classic"):
        raise ValueError(f'conversion must be "improved" or "classic", got {conversion!r}')
    if not rounds:
        return 0.0
    found = []
    for nu in range(2, 257):
        extra = math.log1p(-1 / nu) - math.log(nu) / (nu - 1) if conversion == "improved" else 0.0
        found.append(rounds * rdp(rate, noise_multiplier, nu) - math.log(delta) / (nu - 1) + extra)
    return max(0.0, float(min(found)))


def epsilon(rate, noise_multiplier, rounds, delta, neighbors="add or remove"):
    """Return ε of all rounds together, as ``dp-accounting`` computes it from privacy loss distributions.

    Those are rounded up to a grid, which is too coarse where thousands of rounds lose next to nothing each. There the
    formula is closer, so of the two upper bounds the smaller is returned.

    Parameters
    ----------
    rate, noise_multiplier, rounds, delta
        As for ``epsilon_by_hand``.
    neighbors : {"add or remove", "replace"}
        What two neighboring federations differ by: one client more, or one client another.

    Returns
    -------
    float
        An upper bound, at most two percent above the exact value at the settings of this course.

    Examples
    --------
    >>> round(epsilon(1, 1, 1, 1e-5), 2)
    4.38
    """
    _check(rate, noise_multiplier, rounds, delta)
    if neighbors not in ("add or remove", "replace"):
        raise ValueError(f'neighbors must be "add or remove" or "replace", got {neighbors!r}')
    if not rounds:
        return 0.0
    found = float(_losses(rate, noise_multiplier, neighbors).self_compose(int(rounds)).get_epsilon_for_delta(delta))
    return min(found, epsilon_by_hand(rate, noise_multiplier, rounds, delta)) if neighbors == "add or remove" else found


@cache
def _losses(rate, noise_multiplier, neighbors, from_above=True):
    # Imported here: it takes two seconds, and most pages do without.
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    relation = {"add or remove": "ADD_OR_REMOVE_ONE", "replace": "REPLACE_ONE"}[neighbors]
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        # Losses grow with 1/z²; their grid must not grow beyond memory.
        value_discretization_interval=STEP * max(1, 0.01 / noise_multiplier**2),
        sampling_prob=rate,
        pessimistic_estimate=from_above,
        use_connect_dots=from_above,
        neighboring_relation=NeighboringRelation[relation],
    )


def epsilon_fixed_size(num_clients, m, noise_multiplier, rounds, delta):
    """Return two numbers between which ε lies if exactly m of N clients are drawn; neighbors differ by *replacing* one.

    The unit of ``noise_multiplier`` is the clip norm S, and a client that is replaced moves the sum by up to 2S.

    The lower number is the ε of two neighbors that exist: all clients send the same vector of length S, but for one,
    who sends it or its opposite. In the first case every draw has the same sum; in the second the sum is shorter by 2S
    with probability m/N, because this client then has taken the place of another. The upper number is the only bound
    that ``dp-accounting`` has for such draws, by Rényi divergence (Wang, Balle and Kasiviswanathan 2019).

    Returns
    -------
    low, high : float
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    if not (num_clients == int(num_clients) and m == int(m) and 1 <= m <= num_clients):
        raise ValueError(f"m of N clients are drawn, whole numbers with 1 ≤ m ≤ N, got m = {m} and N = {num_clients}")
    _check(m / num_clients, noise_multiplier, rounds, delta)
    if not rounds:
        return 0.0, 0.0
    z = noise_multiplier / 2
    low = _losses(m / num_clients, z, "add or remove", from_above=False).self_compose(int(rounds))
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(SampledWithoutReplacementDpEvent(num_clients, m, GaussianDpEvent(z)), int(rounds))
    return float(low.get_epsilon_for_delta(delta)), float(accountant.get_epsilon(delta))


def noise_for(target, rate, rounds, delta):
    """Return the smallest noise multiplier z whose ε is at most ``target``, to three digits, rounded up.

    Examples
    --------
    >>> noise_for(4.38, 1, 1, 1e-5)
    1.0
    """
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"the target ε must be positive and finite, got {target}")
    if not rounds:
        raise ValueError("without a round nothing is spent, and no noise is needed: rounds must be at least 1")
    high = 1.0
    while epsilon_by_hand(rate, high, rounds, delta) > target:  # an upper bound, so this z is enough
        high *= 2
        if high > 1e6:
            raise ValueError(f"no noise up to 10⁶ gives ε = {target} at δ = {delta}: ask for more")
    low = high / 2
    while epsilon(rate, low, rounds, delta) <= target:
        low, high = low / 2, low
    while high - low > 5e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(rate, middle, rounds, delta) > target else (low, middle)
    scale = 10 ** (2 - math.floor(math.log10(low)))
    found = math.floor(low * scale) + 1  # the first number of three digits above one that is not enough
    while epsilon(rate, found / scale, rounds, delta) > target:
        found += 1
    return found / scale


def spent(history, delta, every=1):
    """Return ε after each round that was played, from the run's own record.

    Every round counts, also one in which nobody was drawn or whose result was not used; local epochs do not. The last
    round is always among those looked at.

    Parameters
    ----------
    history : History
        Of a run with ``Noisy`` aggregation.
    delta : float
    every : int
        Look after every so many rounds only.

    Returns
    -------
    rounds, epsilons : arrays

    Raises
    ------
    ValueError
        If the run was not private, so that no ε is true of it.
    """
    if every != int(every) or every < 1:
        raise ValueError(f"every must be a whole number of at least 1, got {every}")
    rate, noise_multiplier = released(history.config["method"])
    played = len(history.rounds)
    rounds = np.unique(np.append(np.arange(every, played + 1, every), played)).astype(int)
    return rounds, np.array([epsilon(rate, noise_multiplier, int(t), delta) for t in rounds])


def released(method):
    """Return sampling rate and noise multiplier of what a round releases, from a recorded method.

    A method that also releases noisy control variates has less noise: both come from the same draw.
    """
    aggregate, select, correction = method["aggregate"], method["select"], method["local"]["correction"]
    if aggregate["is"] != "Noisy" or select["is"] != "Poisson":
        raise ValueError(
            f"no ε is true of a run with {aggregate['is']} and {select['is']}: use Noisy aggregation and Poisson sampling"
        )
    multipliers = [aggregate["noise_multiplier"]]
    if correction["is"] == "PrivateScaffold":
        multipliers.append(correction["noise_multiplier"])
    return select["rate"], sum(z**-2 for z in multipliers) ** -0.5


def _check(rate, noise_multiplier, rounds, delta):
    if not 0 < rate <= 1:
        raise ValueError(f"the sampling rate must lie in (0, 1], got {rate}")
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ValueError(f"the noise multiplier must be positive and finite, got {noise_multiplier}: without noise ε is infinite")
    if not (math.isfinite(rounds) and rounds >= 0 and rounds == int(rounds)):
        raise ValueError(f"rounds must be a whole number of at least 0, got {rounds}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
