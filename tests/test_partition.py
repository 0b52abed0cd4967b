"""Partitions: every sample once, the stated skew, and clear errors for what cannot be done."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma

from fedlib import partition
from fedlib.cutting import cut_by_shares, dirichlet_shares
from fedlib.heterogeneity import label_distance, label_entropy, label_table, size_spread
from fedlib.partition import by_class, dirichlet, feature_skew, iid, quantity, shards, three_party
from fedlib.rng import stream

CIFAR_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))

recipes = st.one_of(
    st.builds(lambda n, s: iid(num_clients=n, seed=s), st.integers(1, 8), st.integers(0, 99)),
    st.builds(lambda n, s: shards(num_clients=n, seed=s), st.integers(1, 8), st.integers(0, 99)),
    st.builds(
        lambda n, s, a, per: dirichlet(num_clients=n, seed=s, alpha=a, per=per),
        st.integers(1, 8),
        st.integers(0, 99),
        st.sampled_from([0.01, 0.1, 1.0, 100.0]),
        st.sampled_from(["class", "client"]),
    ),
    st.builds(
        lambda n, s, a: quantity(num_clients=n, seed=s, alpha=a),
        st.integers(1, 8),
        st.integers(0, 99),
        st.sampled_from([0.01, 0.5, 10.0]),
    ),
    st.builds(
        lambda n, s, x: feature_skew(num_clients=n, seed=s, strength=x),
        st.integers(1, 8),
        st.integers(0, 99),
        st.floats(0, 1),
    ),
)


@settings(max_examples=150, deadline=None)
@given(recipe=recipes, labels=st.lists(st.integers(0, 4), min_size=8, max_size=80))
def test_every_sample_belongs_to_exactly_one_client_and_nobody_is_empty(recipe, labels):
    labels = np.array(labels)
    features = np.random.default_rng(0).normal(size=(len(labels), 2, 3))
    parts = recipe(labels, features)
    assert len(parts) == recipe.num_clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(len(part) >= 1 and np.all(np.diff(part) > 0) and part.dtype == np.int64 for part in parts)
    again = recipe(labels, features)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))


def test_seeds_differ_and_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].tolist()
    a, b = (iid(num_clients=2, seed=seed)(CIFAR_LABELS)[0] for seed in (0, 1))
    assert not np.array_equal(a, b)
    assert np.random.get_state()[1].tolist() == before


def table_of(recipe, labels=CIFAR_LABELS):
    return label_table(recipe(labels), labels, 10)


def test_iid_clients_are_equal_in_size_and_alike():
    table = table_of(iid(num_clients=10))
    assert table.sum(1).tolist() == [5000] * 10
    # Counts are hypergeometric: 500 expected, sd = sqrt(5000 · 0.1 · 0.9 · 0.9) ≈ 20.
    assert np.abs(table - 500).max() < 5 * 20.1


def test_shards_give_about_two_classes_each():
    table = table_of(shards(num_clients=100))
    assert table.sum(1).tolist() == [500] * 100
    assert (table > 0).sum(1).max() == 2  # 5000 a class is a multiple of 250 a shard, so no shard is mixed
    assert len({tuple(row) for row in table}) > 20  # dealt at random, not in order


def test_more_shards_a_client_means_more_classes():
    assert (table_of(shards(num_clients=10, per_client=5)) > 0).sum(1).mean() > 3


def test_cutting_by_shares_takes_floors_of_cumulative_sums():
    # By hand: 7 · (0.5, 0.5+0.3) = (3.5, 5.6) → cuts at 3 and 5.
    pieces = cut_by_shares(np.arange(10, 17), np.array([0.5, 0.3, 0.2]))
    assert [piece.tolist() for piece in pieces] == [[10, 11, 12], [13, 14], [15, 16]]


def test_cuts_agree_with_flwr_datasets():
    # Its DirichletPartitioner (0.6.1; alpha 0.5, seed 3, no balancing, no minimum) on 7 and 11 samples.
    shares = np.random.default_rng(3).dirichlet([0.5] * 3, 2)
    table = [
        [len(piece) for piece in cut_by_shares(np.arange(n), share)] for n, share in zip((7, 11), shares)
    ]
    assert np.array(table).T.tolist() == [[0, 7], [6, 1], [1, 3]]


def test_dirichlet_by_class_cuts_each_class_by_the_drawn_shares():
    recipe = dirichlet(alpha=0.5, num_clients=4, seed=5, min_size=0)
    rng = stream(5, "partition", 0)
    for _ in range(10):
        rng.permutation(5000)  # the recipe shuffles the ten classes first
    shares = rng.dirichlet([0.5] * 4, 10)
    floors = np.floor(np.cumsum(shares, axis=1) * 5000 + 1e-9).astype(int)
    floors[:, -1] = 5000
    expected = np.diff(floors, axis=1, prepend=0).T
    assert np.array_equal(table_of(recipe), expected)


@pytest.mark.parametrize(("alpha", "entropy"), [(0.1, 0.96), (0.5, 1.73), (1.0, 1.97)])
def test_dirichlet_by_class_has_the_published_label_entropy(alpha, entropy):
    values = [
        label_entropy(table_of(dirichlet(alpha=alpha, num_clients=10, seed=s, min_size=0))) for s in range(40)
    ]
    assert np.mean(values) == pytest.approx(entropy, abs=0.03)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_dirichlet_by_client_draws_mixes_with_the_closed_form_entropy(alpha):
    expected = digamma(10 * alpha + 1) - digamma(alpha + 1)
    labels, values = np.arange(20_000) % 10, []
    for seed in range(150):
        parts = dirichlet(alpha=alpha, num_clients=40, per="client", seed=seed)(labels)
        rng = stream(seed, "partition", 0)
        for _ in range(10):
            rng.permutation(2000)
        rng.dirichlet([alpha] * 10, 40)
        first = rng.permutation(40)[
            :2
        ]  # whoever chooses first finds full pools and gets the mix that it drew
        values.append(label_entropy(label_table([parts[k] for k in first], labels, 10)))
    assert np.mean(values) == pytest.approx(expected, abs=0.05)


def test_dirichlet_by_client_gives_equal_sizes():
    assert set(table_of(dirichlet(alpha=0.1, num_clients=10, per="client")).sum(1)) == {5000}


def test_larger_alpha_is_closer_to_iid_and_one_is_not_homogeneous():
    distances = [
        label_distance(table_of(dirichlet(alpha=a, num_clients=10))) for a in (0.1, 1.0, 10.0, 1000.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[1] > 0.3 and distances[-1] < 0.05


def test_the_three_party_split():
    table = table_of(three_party())
    assert table.sum(1).tolist() == [7000, 7000, 36000]
    assert table[0, [3, 5]].tolist() == [3500, 3500] and table[1, [2, 0]].tolist() == [3500, 3500]
    assert table[2].tolist() == [1500, 5000, 1500, 1500, 5000, 1500, 5000, 5000, 5000, 5000]


def test_by_class_without_rest_leaves_samples_unused():
    parts = by_class(shares=({0: 0.5}, {0: 0.25, 1: 1.0}), rest=False)(CIFAR_LABELS)
    assert [len(part) for part in parts] == [2500, 6250]


def test_quantity_skew_changes_sizes_but_not_labels():
    table = table_of(quantity(num_clients=10, alpha=0.5, min_size=200))
    assert size_spread(table) > 0.5 and label_distance(table) < 0.05
    assert size_spread(table_of(iid(num_clients=10))) == 0


def test_feature_skew_sorts_by_what_pictures_look_like():
    features = torch.from_numpy(np.random.default_rng(0).random((1000, 3, 4, 4)).astype(np.float32))
    labels, means = np.zeros(1000, dtype=int), features.mean((1, 2, 3)).numpy()

    def spread(strength):
        return np.std(
            [means[part].mean() for part in feature_skew(num_clients=5, strength=strength)(labels, features)]
        )

    parts = feature_skew(num_clients=5, strength=1)(labels, features)
    assert all(means[a].max() <= means[b].min() for a, b in zip(parts, parts[1:]))
    assert spread(0) < spread(0.5) < spread(1) and spread(0) < spread(1) / 5


# FAULT 19: bounded, then repaired or refused.


def test_an_unmet_minimum_is_repaired_by_moving_from_the_largest():
    recipe = dirichlet(alpha=0.1, num_clients=100, min_size=10)
    parts = recipe(CIFAR_LABELS[:5000])
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() >= 10 and sizes.sum() == 5000
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(5000))


def test_an_unmet_minimum_is_refused_when_repair_is_off_naming_the_clients():
    with pytest.raises(ValueError, match=r"clients \[\d+.*fewer than min_size=10"):
        dirichlet(alpha=0.01, num_clients=100, min_size=10, repair=False)(CIFAR_LABELS[:5000])


def test_retries_are_bounded():
    calls = []

    class Stubborn(iid):
        def split(self, labels, features, rng):
            calls.append(rng.integers(2**30))
            return [np.arange(len(labels)), np.arange(0)]

    parts = Stubborn(num_clients=2)(np.zeros(5, dtype=int))
    assert len(calls) == partition.MAX_TRIES and len(set(calls)) == len(calls)
    assert sorted(len(part) for part in parts) == [1, 4]


def test_the_fallback_does_not_put_everything_in_the_last_client():
    # With α this small a class belongs to a single client; nobody but its owner may swallow the rest.
    sizes = [len(part) for part in dirichlet(alpha=0.001, num_clients=10, min_size=0, seed=3)(CIFAR_LABELS)]
    assert sum(sizes) == 50_000 and sizes[-1] < 25_000


def test_empty_clients_only_when_asked_for():
    labels = np.arange(3)
    with pytest.raises(ValueError, match="3 samples cannot give 5 clients 1 each.*min_size=0"):
        iid(num_clients=5)(labels)
    assert sorted(len(part) for part in iid(num_clients=5, min_size=0)(labels)) == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("alpha", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("recipe", [dirichlet, quantity])
def test_a_useless_alpha_is_refused(recipe, alpha):
    with pytest.raises(ValueError, match=f"alpha must be positive and finite, got {alpha}"):
        recipe(num_clients=2, alpha=alpha)


@pytest.mark.parametrize("shares", [({0: 0.7}, {0: 0.4}), ({0: -0.1},), ({0: math.nan},)])
def test_shares_that_do_not_add_up_are_refused(shares):
    with pytest.raises(ValueError, match="class 0 must be at least 0 and sum to at most 1"):
        by_class(shares=shares)


def test_shares_of_an_unknown_class_are_refused():
    with pytest.raises(ValueError, match=r"\[11\]"):
        by_class(shares=({11: 0.5},))(CIFAR_LABELS)


def test_a_contradictory_number_of_clients_is_refused():
    with pytest.raises(ValueError, match="do not make 5 clients"):
        by_class(num_clients=5, shares=({0: 0.5},))


@pytest.mark.parametrize("labels", [np.array([0.0, 1.0]), np.array([[0, 1]]), np.array(["cat", "dog"])])
def test_labels_must_be_a_list_of_integers(labels):
    with pytest.raises(TypeError, match="1-D array of integers"):
        iid(num_clients=1)(labels)


@pytest.mark.parametrize(
    ("name", "value"), [("num_clients", 0), ("num_clients", 2.5), ("min_size", -1), ("per_client", 0)]
)
def test_impossible_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer.*{value}"):
        shards(**{"num_clients": 2, name: value})


def test_an_alpha_beyond_floating_point_is_refused_instead_of_giving_nan():
    class Broken:
        def dirichlet(self, alpha, count):
            return np.full((count, len(alpha)), np.nan)

    with pytest.raises(ValueError, match="too small"):
        dirichlet_shares(Broken(), np.array([1e-300, 1e-300]), 2)


def test_other_wrong_settings_are_refused():
    with pytest.raises(ValueError, match='"class" or "client", got \'clients\''):
        dirichlet(num_clients=2, alpha=1.0, per="clients")
    with pytest.raises(ValueError, match="strength.*got 2"):
        feature_skew(num_clients=2, strength=2)
    with pytest.raises(ValueError, match="needs the samples"):
        feature_skew(num_clients=2, strength=1)(np.arange(4))
