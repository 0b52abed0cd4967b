"""Similarity weights against SciPy and scikit-learn, by hand, at their limits, and through the round loop."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import two_clients
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from sklearn.metrics.pairwise import cosine_similarity

from fedlib.experiment import run
from fedlib.executor import Workers
from fedlib.federation import Federation, begin, play_round
from fedlib.flat import FlatModel
from fedlib.local import LocalSGD
from fedlib.models import cnn, mlp
from fedlib.similarity import (
    Similarity,
    cosines,
    effective_clients,
    is_silent,
    marginalized,
    slices,
    softmax,
)


def context(sizes, w=None, d=3, layout=None):
    weights = np.asarray(sizes, dtype=float) / np.sum(sizes)
    w = torch.ones(d) if w is None else w
    return SimpleNamespace(weights=weights, clients=np.arange(len(sizes)), w=w, layout=layout)


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def randomly(seed, K=5, d=7):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(K, d)).astype(np.float32)), rng.integers(1, 50, K)


many = settings(max_examples=40, deadline=None)
seeds = given(st.integers(0, 10**6))


# Cosines ---------------------------------------------------------------------------------------------------


@many
@seeds
def test_cosines_agree_with_scikit_learn(seed):
    deltas, sizes = randomly(seed)
    p = sizes / sizes.sum()
    exact, w = deltas.double().numpy(), torch.from_numpy(np.random.default_rng(seed).normal(size=7)).float()
    mean = p @ exact
    np.testing.assert_allclose(cosines(deltas, p), cosine_similarity(exact, [mean])[:, 0], atol=1e-12)
    wanted = cosine_similarity(exact, [mean + w.double().numpy()])[:, 0]
    np.testing.assert_allclose(cosines(deltas, p, "parameters", w), wanted, atol=1e-12)
    for k, cosine in enumerate(cosines(deltas, p, "others")):
        rest = np.delete(np.arange(5), k)
        others = np.average(exact[rest], axis=0, weights=sizes[rest])
        assert cosine == pytest.approx(cosine_similarity([exact[k]], [others])[0, 0], abs=1e-12)


def test_orthonormal_rows_agree_with_themselves_only():
    eye, p = torch.eye(30), np.full(30, 1 / 30)
    assert cosines(eye, p) == pytest.approx(1 / np.sqrt(30))
    assert cosines(eye, p, "others") == pytest.approx(0, abs=1e-15)


def test_identical_rows_agree_whatever_their_sizes():
    same = rows([1, 2, 3]).repeat(3, 1)
    assert cosines(same, [0.7, 0.2, 0.1], "others") == pytest.approx(1)
    assert cosines(same, [0.7, 0.2, 0.1]) == pytest.approx(1)


@many
@seeds
def test_two_clients_always_agree_equally_with_each_other(seed):
    deltas, sizes = randomly(seed, K=2)
    first, second = cosines(deltas, sizes / sizes.sum(), "others")
    assert first == pytest.approx(second, abs=1e-12)


def test_cosines_are_accumulated_in_float64():
    # 1 − cos is 2e-8 here, and float32 knows nothing between 1 and 1 − 6e-8.
    found = cosines(rows([1e4, 1], [1e4, -1]), [0.5, 0.5], "others")
    assert 1 - found == pytest.approx(2e-8, rel=1e-3)
    assert found.dtype == np.float64
    # A long row hides a short one in a float32 mean.
    hidden = cosines(rows([1e8, 0], [-1e8, 0], [1.0, 1.0]), [1 / 3] * 3)
    assert hidden == pytest.approx([np.sqrt(0.5), -np.sqrt(0.5), 1])


def test_what_is_zero_has_cosine_zero():
    assert cosines(rows([0, 0], [1, 0]), [0.5, 0.5]).tolist() == [0, 1]
    assert cosines(rows([1, 0], [-1, 0]), [0.5, 0.5]).tolist() == [0, 0]  # the mean is zero
    assert cosines(rows([0, 0], [0, 0]), [0.5, 0.5]).tolist() == [0, 0]
    assert cosines(rows([1, 2]), [1.0], "others").tolist() == [0]  # there are no others


def test_a_cosine_never_leaves_its_range():
    for seed in range(50):
        deltas, _ = randomly(seed, K=1, d=50)
        assert -1 <= cosines(deltas, [1.0])[0] <= 1


# Softmax ---------------------------------------------------------------------------------------------------


@many
@seeds
def test_softmax_agrees_with_scipy(seed):
    rng = np.random.default_rng(seed)
    scores, sizes, tau = rng.uniform(-1, 1, 6), rng.integers(1, 9, 6), rng.uniform(0.01, 10)
    wanted = special.softmax(scores / tau + np.log(sizes))
    np.testing.assert_allclose(softmax(scores, tau, sizes), wanted, rtol=1e-9, atol=1e-300)


def test_the_limits_of_the_temperature():
    scores, sizes = [0.3, 0.9, 0.9, -1.0], [1, 1, 3, 5]
    assert softmax(scores, 1e12, sizes) == pytest.approx(np.array(sizes) / 10)
    for tau in (1e-3, 1e-9, 1e-300, 1e-320):
        assert softmax(scores, tau, sizes) == pytest.approx([0, 0.25, 0.75, 0])  # ties are shared, by size


def test_only_those_without_base_have_weight_exactly_zero():
    weights = softmax([1.0, -1.0, 0.9, 1.0], 1e-9, [1, 1, 0, 1])
    assert weights[2] == 0 and (weights[[0, 1, 3]] > 0).all()
    # The largest score belongs to one who has no say: the others are still told apart.
    assert softmax([0.5, 0.4, 1.0], 1e-4, [1, 1, 0]) == pytest.approx([1, 0, 0])
    assert softmax([0.4, 0.4, 1.0], 1e-4, [1, 3, 0]) == pytest.approx([0.25, 0.75, 0])


@pytest.mark.parametrize("tau", [0, -1, float("nan"), float("inf")])
def test_a_temperature_is_positive_and_finite(tau):
    with pytest.raises(ValueError, match="tau must be positive and finite"):
        Similarity(tau)
    with pytest.raises(ValueError, match="tau must be positive and finite"):
        softmax([1.0], tau, [1])


def test_scores_must_be_finite_and_fit():
    for scores in ([1.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="scores must be 2 finite numbers"):
            softmax(scores, 1, [1, 1])


# The aggregator --------------------------------------------------------------------------------------------


def test_by_hand():
    # The sizes make the mean (1, 0): cosines 1/√2, 1/√2; without sizes it is (3, −1)/2.
    deltas, e = rows([1, 1], [2, -2]), np.exp
    ctx = context([2, 1], d=2)
    update, weights = Similarity(0.5).combine(ctx, deltas)
    assert weights == pytest.approx([2 / 3, 1 / 3]) and update.tolist() == pytest.approx([4 / 3, 0])
    _, weights = Similarity(0.5, sizes=False).combine(ctx, deltas)
    scores = np.array([2, 8]) / np.sqrt([2 * 10, 8 * 10])
    assert weights == pytest.approx(e(2 * scores) / e(2 * scores).sum())


@many
@seeds
def test_weights_are_weights(seed):
    deltas, sizes = randomly(seed)
    for against in ("mean", "others"):
        method = Similarity(0.3, against=against)
        update, weights = method.combine(context(sizes, d=7), deltas)
        assert weights.sum() == pytest.approx(1) and (weights > 0).all()
        np.testing.assert_allclose(update.numpy(), weights @ deltas.double().numpy(), atol=1e-6)
        order = np.random.default_rng(seed).permutation(5)
        _, permuted = method.combine(context(sizes[order], d=7), deltas[torch.from_numpy(order)])
        np.testing.assert_allclose(permuted, weights[order], atol=1e-9)
        _, scaled = method.combine(context(sizes, d=7), 1000 * deltas)
        np.testing.assert_allclose(scaled, weights, atol=1e-6)
        _, share = Similarity(1e9, against=against).combine(context(sizes, d=7), deltas)
        np.testing.assert_allclose(share, sizes / sizes.sum(), atol=1e-8)


def test_who_takes_part_decides_whose_sizes_count():
    ctx = context([5, 2, 3], d=2)
    ctx.clients = np.array([0, 2])
    _, weights = Similarity(1e9).combine(ctx, rows([1, 0], [0, 1]))
    assert weights == pytest.approx([0.625, 0.375])


def test_against_parameters_weights_hardly_differ():
    rng = np.random.default_rng(0)
    deltas = torch.from_numpy(rng.normal(size=(4, 10_000)).astype(np.float32))
    w = torch.from_numpy(50 * rng.normal(size=10_000).astype(np.float32))
    ctx = context([1] * 4, w)
    _, weights = Similarity(0.2, against="parameters").combine(ctx, deltas)
    assert weights == pytest.approx(0.25, abs=0.04)  # a random cosine is about 1/√d = 0.01
    _, weights = Similarity(0.2, against="parameters").combine(context([1, 1], rows([1.0, 0.0])[0]), rows([9, 0], [-1, 0]))
    assert weights == pytest.approx(softmax([1, -1], 0.2, [1, 1]))  # w + Δ̄ = (5, 0)


def test_a_silent_client_is_kept_as_a_vote_to_stay_or_skipped_for_all_to_see():
    deltas, ctx = rows([0, 0, 0], [1, 1, 0]), context([1, 1])
    # Kept with cosine 0 against cosine 1; a huge tau gives the half that plain averaging gives.
    update, weights = Similarity(1e9).combine(ctx, deltas)
    assert update.tolist() == pytest.approx([0.5, 0.5, 0]) and weights == pytest.approx([0.5, 0.5])
    _, weights = Similarity(1.0).combine(ctx, deltas)
    assert weights == pytest.approx(softmax([0, 1], 1, [1, 1]))
    update, weights = Similarity(1.0, silent="skip").combine(ctx, deltas)
    assert update.tolist() == [1, 1, 0] and weights.tolist() == [0, 1]


def test_a_silent_client_does_not_hide_the_differences_between_the_others():
    deltas = rows([0, 0], [1, 0.1], [-1, 0.1], [-1, 0.2])
    _, weights = Similarity(1e-3, silent="skip").combine(context([1] * 4, d=2), deltas)
    assert weights[0] == 0 and weights.max() == pytest.approx(1)


def test_hardly_moving_is_silent_too_and_the_floor_is_relative():
    deltas, w = rows([1e-7, 0, 0], [0.1, 0.1, 0]), rows([1, 0, 0])[0]
    for scale in (1, 1e-4, 1e4):
        assert is_silent(scale * deltas, scale * w).tolist() == [True, False]
        _, weights = Similarity(silent="skip").combine(context([1, 1], scale * w), scale * deltas)
        assert weights.tolist() == [0, 1]
    # Kept, its cosine counts as 0, although a direction of 1e-7 has one.
    _, weights = Similarity(1.0).combine(context([1, 1], w), deltas)
    assert weights == pytest.approx(softmax([0, 1], 1, [1, 1]))
    assert is_silent(deltas, w, floor=1e-8).tolist() == [False, False]
    assert is_silent(rows([0.0, 0.0]), torch.zeros(2)).tolist() == [True]
    assert is_silent(rows([1e-30, 0.0]), torch.zeros(2)).tolist() == [False]


def test_when_all_are_silent_nobody_is_skipped():
    update, weights = Similarity(silent="skip").combine(context([1, 3]), torch.zeros(2, 3))
    assert update.tolist() == [0, 0, 0] and weights == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"against": "median"}, ValueError, "against must be one of"),
        ({"silent": "drop"}, ValueError, "silent must be one of"),
        ({"layers": "fc1"}, TypeError, "layers must be a tuple of names"),
        ({"layers": ()}, TypeError, "layers must be a tuple of names"),
        ({"floor": -1.0}, ValueError, "floor must lie in"),
        ({"floor": float("nan")}, ValueError, "floor must lie in"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, error, match):
    with pytest.raises(error, match=match):
        Similarity(**settings)


# Layers ----------------------------------------------------------------------------------------------------


def test_named_layers_are_compared_and_all_are_averaged():
    layout = FlatModel(mlp((8,), 4)).layout
    deltas = torch.from_numpy(np.random.default_rng(3).normal(size=(3, layout.size)).astype(np.float32))
    ctx = context([1, 1, 2], torch.ones(layout.size), layout=layout)
    update, weights = Similarity(0.1, layers=("3",)).combine(ctx, deltas)
    last = deltas[:, layout["3.weight"].start :]  # the last layer's weight and bias end the vector
    assert weights == pytest.approx(softmax(cosines(last, ctx.weights), 0.1, ctx.weights))
    np.testing.assert_allclose(update.numpy(), weights @ deltas.double().numpy(), atol=1e-6)
    _, everything = Similarity(0.1).combine(ctx, deltas)
    assert np.abs(everything - weights).max() > 1e-3
    _, both = Similarity(0.1, layers=("1", "3")).combine(ctx, deltas)
    assert both == pytest.approx(everything)


def test_how_many_parameters_the_named_layers_of_the_cnn_have():
    layout = FlatModel(cnn((3, 32, 32), 10)).layout

    def count(*layers):
        return sum(part.stop - part.start for part in slices(layout, layers))

    assert count("fc1", "fc2") == 1_051_402 and count("fc2") == 2_570 and count("fc2.bias") == 10
    assert count("fc1", "fc2") / layout.size == pytest.approx(0.98, abs=0.005)


def test_an_unknown_layer_is_named():
    layout = FlatModel(cnn((3, 32, 32), 10)).layout
    for name in ("fc", "fc3", "conv"):
        with pytest.raises(ValueError, match=f"no layer is called '{name}': the model has .*'fc1'"):
            slices(layout, (name,))


# Through the round loop ------------------------------------------------------------------------------------


def after(rounds, aggregate, sizes=(1, 1)):
    history = run(two_clients.laboratory(sizes), Federation(two_clients.local(), aggregate), rounds)
    return float(history.w), history


def test_the_server_of_the_laboratory_jumps_between_two_points():
    ends = [after(rounds, Similarity(1.0, sizes=False))[0] for rounds in (40, 41)]
    assert sorted(ends) == pytest.approx([0.5828, 0.8932], abs=5e-5)
    # In closed form: one map below the fixed point of FedAvg, another above it, and the point where both meet.
    s = 1 - (1 - 0.1 * two_clients.A) ** 5
    large = np.e / (np.e + 1 / np.e)
    up, down = np.array([1 - large, large]) * s, np.array([large, 1 - large]) * s
    high = (up[1] + (1 - up.sum()) * down[1]) / (1 - (1 - up.sum()) * (1 - down.sum()))
    low = (1 - down.sum()) * high + down[1]
    assert sorted(ends) == pytest.approx([low, high], abs=1e-6)


def test_two_clients_compared_with_each_other_are_fedavg_whatever_tau():
    for tau in (0.01, 1.0):
        end, history = after(60, Similarity(tau, against="others"))
        assert end == pytest.approx(0.6925023465, abs=1e-6)
        assert history.rounds[0]["weights"] == pytest.approx([0.5, 0.5])


def test_a_skipped_client_is_visible_in_the_record():
    # Client 0's loss is linear with slope 0: it never moves.
    task = two_clients.task_from([[0.0], [1.0]], [[0.0], [1.0]], (1, 1), two_clients.linear_loss)
    ends = {}
    for policy in ("keep", "skip"):
        history = run(task, Federation(LocalSGD(0.1, batch_size=None), Similarity(1e9, silent=policy)), 1)
        ends[policy] = float(history.w), history.rounds[0]["weights"], history.rounds[0]["clients"]
    assert ends["keep"][0] == pytest.approx(3 - 0.05) and ends["keep"][1] == pytest.approx([0.5, 0.5])
    assert ends["skip"][0] == pytest.approx(3 - 0.1) and ends["skip"][1:] == ([0, 1], [0, 1])


def test_a_part_of_the_round_sees_the_model_that_was_broadcast():
    seen = []

    class Looks:
        def combine(self, ctx, deltas):
            seen.append(float(ctx.w))
            return deltas[0], np.array([1.0, 0.0])

    task, method = two_clients.laboratory(), Federation(two_clients.local(), Looks())
    model = task.new_model(0)
    state = begin(task, method, model, 0)
    for _ in range(2):
        before = float(state.w)
        state, _ = play_round(task, method, Workers([model]), 0, state)
        assert seen[-1] == before
    assert seen[0] == 3 != seen[1]


# Counting --------------------------------------------------------------------------------------------------


def test_the_effective_number_of_clients():
    assert effective_clients(np.full(7, 1 / 7)) == pytest.approx(7)
    assert effective_clients([0, 1, 0]) == 1
    assert effective_clients([5, 5]) == pytest.approx(2)  # not normalized yet
    # The variance of a weighted mean of equally noisy clients is that of a plain mean over so many.
    p = np.array([0.5, 0.3, 0.2])
    noise = np.random.default_rng(0).normal(size=(200_000, 3)) @ p
    assert 1 / noise.var() == pytest.approx(effective_clients(p), rel=0.02)


def test_marginalized_means_the_same_for_few_and_for_many():
    p = np.array([0.05, 0.15, 0.8])
    assert marginalized(p).tolist() == [True, False, False]
    assert marginalized(np.repeat(p, 10) / 10).tolist() == np.repeat([True, False, False], 10).tolist()
    assert not marginalized(np.full(30, 1 / 30)).any()
    assert marginalized(p, threshold=0.5).tolist() == [True, True, False]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_and_named(broken):
    deltas = torch.tensor([[1.0, 2.0], [broken, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="no cosine for rows .*1"):
        cosines(deltas, np.full(3, 1 / 3))
    with pytest.raises(ValueError, match=r"no cosine for rows \[0, 1\]"):
        cosines(torch.eye(2), np.array([broken, 1.0]))
    with pytest.raises(ValueError, match="no cosine for rows"):
        cosines(torch.eye(2), np.full(2, 0.5), "parameters", torch.tensor([broken, 0.0]))


def test_what_a_delta_is_compared_with_must_be_known_and_there():
    with pytest.raises(ValueError, match="against must be one of .*, got 'other'"):
        cosines(torch.eye(2), np.full(2, 0.5), "other")
    with pytest.raises(ValueError, match="needs w"):
        cosines(torch.eye(2), np.full(2, 0.5), "parameters")
