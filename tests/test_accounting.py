"""ε against published and independently computed values, closed forms and numerical integration."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from two_clients import laboratory, local

from fedlib import accounting
from fedlib.aggregate import FixedMean
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.privacy import Clip, Noisy, PrivateScaffold
from fedlib.selection import Poisson

# (q, z, T, δ): PLD and, by integer orders, the improved and the classic conversion.
TABLE = {
    (0.01, 4, 10_000, 1e-5): (0.946999, 1.035490, 1.258575),
    (0.1, 1, 100, 1e-5): (7.046603, 7.972922, 8.927693),
    (0.1, 1, 1, 1e-5): (1.684544, 2.133006, 2.673679),
    (1, 1, 1, 1e-5): (4.377178, 4.752728, 5.302585),
}


@pytest.mark.parametrize("setting", TABLE)
def test_the_formula_gives_the_table_with_both_conversions(setting):
    _, improved, classic = TABLE[setting]
    assert accounting.epsilon_by_hand(*setting) == pytest.approx(improved, abs=2e-6)
    assert accounting.epsilon_by_hand(*setting, "classic") == pytest.approx(classic, abs=2e-6)


@pytest.mark.parametrize("setting", TABLE)
def test_what_is_reported_is_the_table_from_above(setting):
    exact = TABLE[setting][0]
    assert exact - 1e-6 <= accounting.epsilon(*setting) <= 1.02 * exact
    assert accounting.epsilon(*setting) < accounting.epsilon_by_hand(*setting)


def test_the_default_accountant_of_the_package_lies_between():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=range(2, 257)).compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1)), 100)
    assert accounting.epsilon_by_hand(0.1, 1, 100, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize(("q", "z", "order"), [(0.1, 1.0, 2), (0.3, 0.7, 3), (0.02, 2.0, 8), (1, 1.5, 5)])
def test_the_divergence_is_the_integral_that_defines_it(q, z, order):
    def integrand(x):
        ratio = 1 - q + q * np.exp((2 * x - 1) / (2 * z**2))
        return stats.norm.pdf(x, 0, z) * ratio**order

    integral, _ = quad(integrand, -20 * z, 20 * z + order, limit=500)
    assert accounting.rdp(q, z, order) == pytest.approx(np.log(integral) / (order - 1), rel=1e-6)


@pytest.mark.parametrize(("z", "rounds"), [(1, 1), (2, 9), (0.7, 1)])
def test_without_sampling_it_is_the_gaussian_closed_form(z, rounds):
    """Balle and Wang (2018): δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), with μ = √T / z."""
    eps, mu = accounting.epsilon(1, z, rounds, 1e-5), rounds**0.5 / z
    delta = stats.norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
    assert delta == pytest.approx(1e-5, rel=0.01)
    assert accounting.epsilon_by_hand(1, z, rounds, 1e-5) > eps


def test_schemes_under_one_kind_of_neighbors():
    assert accounting.epsilon(0.1, 1, 100, 1e-5, "replace") == pytest.approx(10.52, abs=0.005)
    low, high = accounting.epsilon_fixed_size(100, 10, 1, 100, 1e-5)
    assert (low, high) == pytest.approx((31.32, 83.94), abs=0.02)


def test_whoever_is_always_drawn_is_replaced_alike_however_the_draw_is_called():
    """With m = N both draws are none at all, so the bounds must enclose the value that needs no sampling."""
    low, high = accounting.epsilon_fixed_size(50, 50, 1, 1, 1e-5)
    exact = accounting.epsilon(1, 1, 1, 1e-5, "replace")
    assert low == pytest.approx(exact, rel=2e-3) and low <= exact <= high


@pytest.mark.parametrize(("m", "z"), [(10, 1.0), (30, 2.0)])
def test_a_fixed_number_leaks_at_least_what_two_neighbors_show_by_integration(m, z):
    """All send +S but one, who sends +S or −S: N(0, z²) against a mixture with N(−2, z²), of weight m/100."""
    share = m / 100

    def densities(x):
        other = stats.norm.pdf(x, 0, z)
        return other, (1 - share) * other + share * stats.norm.pdf(x, -2, z)

    def delta_at(epsilon, one, two):
        def excess(x):
            pair = densities(x)
            return max(0.0, pair[one] - np.exp(epsilon) * pair[two])

        return quad(excess, -12 * z - 2, 12 * z, limit=2_000, points=np.linspace(-6 * z - 2, 6 * z, 40))[0]

    low, high = accounting.epsilon_fixed_size(100, m, z, 1, 1e-5)
    assert max(delta_at(low, 0, 1), delta_at(low, 1, 0)) == pytest.approx(1e-5, rel=0.02)
    assert high > low > accounting.epsilon(share, z, 1, 1e-5, "replace")


def test_thousands_of_rounds_that_lose_next_to_nothing_are_not_counted_by_the_grid():
    setting = (0.001, 50, 100_000, 1e-5)
    assert accounting.epsilon(*setting) <= accounting.epsilon_by_hand(*setting) < 0.05


def test_a_delta_below_the_grids_own_accuracy_still_has_an_epsilon():
    assert accounting.epsilon(0.1, 1, 10, 1e-16) == accounting.epsilon_by_hand(0.1, 1, 10, 1e-16) < 10


def test_little_noise_takes_no_more_memory_than_much():
    """For large μ = 1/z the second term of the closed form vanishes: Φ(μ/2 − ε/μ) = δ."""
    assert accounting.epsilon(1, 0.02, 1, 1e-5) == pytest.approx(50**2 / 2 + 50 * stats.norm.isf(1e-5), rel=0.01)


def test_two_releases_from_one_draw():
    joint = accounting.epsilon(0.1, 2**-0.5, 100, 1e-5)
    assert joint == pytest.approx(14.27, abs=0.01)
    assert joint > accounting.epsilon(0.1, 1, 200, 1e-5) == pytest.approx(9.97, abs=0.01)


def test_it_grows_with_rate_and_rounds_and_falls_with_noise_and_delta():
    for epsilon in (accounting.epsilon, accounting.epsilon_by_hand):
        base = epsilon(0.1, 1, 20, 1e-5)
        assert epsilon(0.2, 1, 20, 1e-5) > base and epsilon(0.1, 1, 21, 1e-5) > base
        assert epsilon(0.1, 1.1, 20, 1e-5) < base and epsilon(0.1, 1, 20, 1e-4) < base
        assert epsilon(0.1, 1, 0, 1e-5) == 0
        assert epsilon(0.1, 50, 1, 0.5) == 0, "never negative"


@pytest.mark.parametrize("target", [0.5, 1.5, 2.0, 3.0, 8.0])
def test_noise_for_a_target_is_the_least_of_three_digits_that_is_enough(target):
    z = accounting.noise_for(target, 0.1, 50, 1e-5)
    less = z - 10.0 ** (np.floor(np.log10(z)) - 2)
    assert accounting.epsilon(0.1, z, 50, 1e-5) <= target < accounting.epsilon(0.1, less, 50, 1e-5)
    assert z == float(f"{z:.3g}")


@pytest.mark.parametrize(("just_above", "z"), [(1.2301, 1.24), (1.5602, 1.57), (2.3401, 2.35)])
def test_noise_a_little_too_small_is_not_enough(just_above, z):
    assert accounting.noise_for(accounting.epsilon(0.1, just_above, 50, 1e-5), 0.1, 50, 1e-5) == z


def test_noise_for_the_gaussian():
    assert accounting.noise_for(4.38, 1, 1, 1e-5) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 1e-5), "sampling rate .* got 0"),
        ((1.2, 1, 1, 1e-5), "sampling rate .* got 1.2"),
        ((0.1, 0, 1, 1e-5), "without noise ε is infinite"),
        ((0.1, np.inf, 1, 1e-5), "positive and finite, got inf"),
        ((0.1, 1, -1, 1e-5), "rounds .* got -1"),
        ((0.1, 1, 1.5, 1e-5), "rounds .* got 1.5"),
        ((0.1, 1, np.nan, 1e-5), "rounds .* got nan"),
        ((0.1, 1, np.inf, 1e-5), "rounds .* got inf"),
        ((0.1, 1, 1, 0), "delta .* got 0"),
        ((0.1, 1, 1, 1), "delta .* got 1"),
    ],
)
def test_settings_without_a_meaning_are_refused(arguments, message):
    for epsilon in (accounting.epsilon, accounting.epsilon_by_hand):
        with pytest.raises(ValueError, match=message):
            epsilon(*arguments)


def test_other_mistakes_are_named():
    with pytest.raises(ValueError, match="conversion must be .* got 'best'"):
        accounting.epsilon_by_hand(0.1, 1, 1, 1e-5, "best")
    with pytest.raises(ValueError, match="neighbors must be .* got 'add'"):
        accounting.epsilon(0.1, 1, 1, 1e-5, "add")
    for target in (0, -1, np.inf):
        with pytest.raises(ValueError, match="target ε must be positive"):
            accounting.noise_for(target, 0.1, 1, 1e-5)
    for counts in ((100, 0), (100, 101), (100, 10.5), (0, 0), (-100, -10)):
        with pytest.raises(ValueError, match="m of N clients are drawn"):
            accounting.epsilon_fixed_size(*counts, 1, 10, 1e-5)
    assert accounting.epsilon_fixed_size(100, 10, 1, 0, 1e-5) == (0, 0)
    for order in (1, 2.5):
        with pytest.raises(ValueError, match=f"order .* got {order}"):
            accounting.rdp(0.1, 1, order)
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        accounting.noise_for(1, 0.1, 0, 1e-5)
    with pytest.raises(ValueError, match="ask for more"):
        accounting.noise_for(1e-9, 1, 1000, 1e-9)


# From the executed log


def history(rate=0.3, z=1.0, rounds=8, epochs=1, correction=None):
    aggregate = Noisy(FixedMean(rate), 1.0, z)
    control = correction.clip if correction else None
    method = Federation(
        local(correction, steps=epochs), select=Poisson(rate), upload=Clip(1.0, control), aggregate=aggregate, min_clients=0
    )
    return run(laboratory(), method, rounds, evaluate_every=0)


def test_what_was_spent_grows_with_every_round_played_also_with_empty_ones():
    played = history()
    assert [] in [line["clients"] for line in played.rounds]
    rounds, spent = accounting.spent(played, 1e-5)
    assert rounds.tolist() == list(range(1, 9)) and (np.diff(spent) > 0).all()
    assert spent[-1] == accounting.epsilon(0.3, 1.0, 8, 1e-5)


def test_what_was_spent_does_not_depend_on_local_epochs_and_is_taken_from_the_log():
    (_, one), (_, five) = (accounting.spent(history(epochs=epochs), 1e-5) for epochs in (1, 5))
    assert one.tolist() == five.tolist()
    interrupted = history()
    interrupted.rounds = interrupted.rounds[:3]
    assert accounting.spent(interrupted, 1e-5)[1].tolist() == one[:3].tolist()
    assert accounting.spent(interrupted, 1e-5, every=2)[0].tolist() == [2, 3], "the last round is never left out"
    assert accounting.spent(interrupted, 1e-5, every=5)[0].tolist() == [3]
    for every in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"every must be .* got {every}"):
            accounting.spent(interrupted, 1e-5, every=every)


def test_a_round_whose_result_was_not_used_counts_too():
    played = history()
    played.rounds[4]["skipped"] = "the new model would not be finite"
    assert len(accounting.spent(played, 1e-5)[0]) == 8


def test_noisy_control_variates_of_the_same_draw_are_counted_together():
    correction = PrivateScaffold(clip=1.0, noise_multiplier=1.0)
    _, spent = accounting.spent(history(correction=correction), 1e-5)
    assert spent[-1] == pytest.approx(accounting.epsilon(0.3, 2**-0.5, 8, 1e-5), rel=1e-6)


@pytest.mark.parametrize("select", ["Poisson", "All"])
def test_no_epsilon_is_given_to_a_run_that_was_not_private(select):
    played = run(laboratory(), Federation(local()), 1, evaluate_every=0)
    played.config["method"]["select"]["is"] = select
    with pytest.raises(ValueError, match="no ε is true of a run with WeightedMean"):
        accounting.spent(played, 1e-5)
