"""The drift laboratory against simulation, hand-computed values and the real round loop; cosines against NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from two_clients import LR, STEPS, A, B, laboratory, local, task_from

from fedlib import drift, models, partition
from fedlib.aggregate import StepNormalized, WeightedMean
from fedlib.data import Dataset
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.flat import Layout, Segment
from fedlib.local import LocalSGD
from fedlib.objective import quadratic_optimum
from fedlib.task import Task

HALF = np.array([0.5, 0.5])

laboratories = st.integers(1, 4).flatmap(
    lambda K: st.tuples(
        st.lists(st.floats(0.2, 4), min_size=K, max_size=K),
        st.lists(st.floats(-3, 3), min_size=K, max_size=K),
        st.lists(st.integers(1, 9), min_size=K, max_size=K),
        st.lists(st.integers(1, 12), min_size=K, max_size=K),
        st.floats(0.05, 0.45),
        st.booleans(),
    )
)


def long_run(a, b, p, lr, H, normalized, start=3.0):
    """FedAvg in plain Python, one step after the other, until it stands still."""
    w = start
    for _ in range(20_000):
        before, total, mean_steps = w, 0.0, sum(p_k * h for p_k, h in zip(p, H, strict=True))
        for a_k, b_k, p_k, h in zip(a, b, p, H, strict=True):
            y = w
            for _ in range(h):
                y -= lr * a_k * (y - b_k)
            total += p_k * (y - w) * (mean_steps / h if normalized else 1)
        w += total
        if abs(w - before) < 1e-14:
            break
    return w


# The fixed point -------------------------------------------------------------------------------------------


def test_the_laboratory_ends_where_it_was_computed_to_end():
    assert drift.fixed_point(A, B, HALF, LR, STEPS) == pytest.approx(0.6925023465, abs=5e-11)


@pytest.mark.parametrize(("lr", "bias"), [(0.1, 0.1075), (0.05, 0.0518), (0.01, 0.0098)])
def test_the_bias_shrinks_with_the_learning_rate(lr, bias):
    assert 0.8 - drift.fixed_point(A, B, HALF, lr, STEPS) == pytest.approx(bias, abs=5e-5)


@settings(max_examples=60, deadline=None)
@given(laboratories)
def test_the_fixed_point_is_where_plain_loops_come_to_rest(drawn):
    a, b, sizes, H, lr, normalized = drawn
    p = np.array(sizes) / sum(sizes)
    if normalized:
        # Dividing short rounds by their few steps lengthens them: the server itself must not overshoot.
        H = [max(H)] * len(H) if lr * max(a) * max(H) > 1 else H
    wanted = long_run(a, b, p, lr, H, normalized)
    assert drift.fixed_point(a, b, p, lr, H, normalized) == pytest.approx(wanted, abs=1e-8)


def test_one_step_has_no_bias_and_many_steps_forget_the_curvature():
    p = np.array([0.75, 0.25])
    assert drift.fixed_point(A, B, p, 0.3, 1) == pytest.approx(quadratic_optimum(A, B, p), abs=1e-12)
    assert drift.fixed_point(A, B, p, 0.3, 500) == pytest.approx(p @ B, abs=1e-9)
    assert drift.fixed_point([2, 2], B, p, 0.3, 7) == pytest.approx(p @ B)  # equally curved: no bias


def test_the_bias_moves_and_scales_with_the_minimizers():
    def bias(b):
        return quadratic_optimum(A, b, HALF) - drift.fixed_point(A, b, HALF, LR, STEPS)

    assert bias(B + 5) == pytest.approx(bias(B))
    assert bias(10 * B) == pytest.approx(10 * bias(B))


def test_unequal_steps_lead_elsewhere_and_dividing_by_them_leads_back():
    H = [10, 5]
    assert drift.fixed_point(A, B, HALF, 1e-4, H) == pytest.approx(0.6666, abs=5e-5)
    assert drift.fixed_point(A, B, HALF, 1e-7, H) == pytest.approx(2 / 3, abs=1e-6)
    assert drift.fixed_point(A, B, HALF, 1e-7, H, normalized=True) == pytest.approx(0.8, abs=1e-6)
    # The drift of larger steps is another matter, which the division does not cure.
    assert drift.fixed_point(A, B, HALF, 0.1, H, normalized=True) < 0.75


# The simulation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("H", [1, 5, [10, 5], [1, 7]])
def test_the_simulation_walks_the_path_of_a_plain_loop(H, normalized):
    each = H if isinstance(H, list) else [H, H]
    path = drift.simulate(A, B, [0.75, 0.25], 0.05, H, 6, start=3.0, normalized=normalized)
    assert path.shape == (7,) and path[0] == 3.0
    w = 3.0
    for after in path[1:]:
        ends = []
        for k in range(2):
            y = w
            for _ in range(each[k]):
                y -= 0.05 * A[k] * (y - B[k])
            ends.append((y - w) / (each[k] if normalized else 1))
        mean_steps = 0.75 * each[0] + 0.25 * each[1] if normalized else 1
        w += (0.75 * ends[0] + 0.25 * ends[1]) * mean_steps
        assert after == pytest.approx(w, abs=1e-12)


def test_more_rounds_do_not_help_and_a_decaying_learning_rate_does():
    path = drift.simulate(A, B, HALF, 0.1, 5, 5000, start=20.0)
    assert path[200] == pytest.approx(path[5000], abs=1e-10)
    assert path[5000] == pytest.approx(0.6925023465, abs=1e-9)
    decayed = drift.simulate(A, B, HALF, lambda t: 0.1 / (1 + t / 50), 5, 5000, start=20.0)
    assert abs(decayed[-1] - 0.8) < 5e-3
    halved = drift.simulate(A, B, HALF, lambda t: 0.1 * 0.5**t, 5, 5000, start=20.0)
    assert abs(halved[-1] - 0.8) > 0.5


def test_the_local_paths_are_the_points_on_the_way():
    paths = drift.local_paths(A, B, 0.1, 5, 3.0)
    w_k = np.full(2, 3.0)
    for h in range(6):
        np.testing.assert_allclose(paths[h], w_k, atol=1e-12)
        w_k = w_k - 0.1 * A * (w_k - B)
    assert paths[-1].mean() == pytest.approx(drift.simulate(A, B, HALF, 0.1, 5, 1, start=3.0)[1])


def test_the_real_round_loop_agrees():
    history = run(laboratory((3, 1)), Federation(local()), 60)
    assert history.w.item() == pytest.approx(drift.fixed_point(A, B, [0.75, 0.25], LR, STEPS), abs=1e-6)


BAD = [
    (dict(lr=0.5), "lr must lie in"),
    (dict(lr=0.0), "lr must lie in"),
    (dict(lr=float("nan")), "lr must lie in"),
    (dict(H=0), "whole number of at least 1"),
    (dict(H=2.5), "whole number of at least 1"),
    (dict(H=[1, 2, 3]), "one for each of 2 clients"),
    (dict(a=[1, -4]), "curvatures must be positive"),
    (dict(a=[1]), "one entry a client"),
    (dict(p=[1, 1]), "sum to 1"),
    (dict(p=[1.5, -0.5]), ">= 0"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_impossible_laboratories_are_refused(bad, message):
    setting = {"a": A, "b": B, "p": HALF, "lr": 0.1, "H": 5, **bad}
    with pytest.raises(ValueError, match=message):
        drift.fixed_point(**setting)
    with pytest.raises(ValueError, match=message):
        drift.simulate(**setting, rounds=1)


# Unequal steps ---------------------------------------------------------------------------------------------


def test_the_say_of_the_three_parties():
    sizes = np.array([7_000, 7_000, 36_000])
    say = drift.effective_weights(sizes, np.ceil(sizes / 32))
    np.testing.assert_allclose(say, [0.035, 0.035, 0.93], atol=5e-4)
    assert say.sum() == pytest.approx(1)


def test_effective_weights_predict_where_small_steps_end():
    sizes, H = np.array([3, 1]), np.array([2, 9])
    q = drift.effective_weights(sizes, H)
    wanted = quadratic_optimum(A, B, q)
    assert drift.fixed_point(A, B, sizes / 4, 1e-7, H) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("steps", [[0, 5], [np.nan, 5], [1, 2, 3]])
def test_steps_that_nobody_took_are_refused(steps):
    with pytest.raises(ValueError, match="at least one step|one entry a client"):
        drift.effective_weights([1, 1], steps)


def unequal(lr, sizes=(2, 1), **parts):
    """Batches of one sample: a client of size n takes n steps an epoch."""
    root = np.sqrt(A)[:, None]
    task = task_from(root, root * B[:, None], sizes)
    return run(task, Federation(LocalSGD(lr=lr, epochs=5, batch_size=1), **parts), rounds=round(2 / lr))


@pytest.mark.parametrize("normalized", [False, True])
def test_the_round_loop_counts_the_steps_for_the_aggregator(normalized):
    history = unequal(0.02, aggregate=StepNormalized() if normalized else WeightedMean())
    assert history.rounds[0]["steps"] == [10, 5]
    wanted = drift.fixed_point(A, B, [2 / 3, 1 / 3], 0.02, [10, 5], normalized)
    assert history.w.item() == pytest.approx(wanted, abs=1e-5)


def test_with_equal_steps_normalizing_changes_nothing():
    plain = run(laboratory((3, 1)), Federation(local()), 4)
    normalized = run(laboratory((3, 1)), Federation(local(), aggregate=StepNormalized()), 4)
    assert normalized.w.item() == pytest.approx(plain.w.item(), abs=1e-6)


def test_a_client_without_samples_leaves_the_others_and_their_steps_in_step():
    """Its row is missing from the deltas, so its steps must be missing too."""
    rows, targets = [[1.0], [1.0], [2.0]], [[0.0], [0.0], [2.0]]
    history = run(
        task_from(rows, targets, [2, 0, 1]),
        Federation(LocalSGD(lr=0.02, epochs=5, batch_size=1), aggregate=StepNormalized()), 100,
    )  # fmt: skip
    assert history.rounds[0]["dropped"] == {"1": "no samples"}
    wanted = drift.fixed_point(A, B, [2 / 3, 1 / 3], 0.02, [10, 5], normalized=True)
    assert history.w.item() == pytest.approx(wanted, abs=1e-5)


def test_the_weights_of_normalized_deltas_by_hand():
    history = unequal(0.02, aggregate=StepNormalized())
    # p = (2/3, 1/3), H = (10, 5), mean number of steps 25/3: 2/3 · (25/3)/10 and 1/3 · (25/3)/5.
    assert history.rounds[0]["weights"] == pytest.approx([5 / 9, 5 / 9])


# Cosines ---------------------------------------------------------------------------------------------------


def test_cosines_agree_with_numpy():
    deltas = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    mean = deltas.mean(0)
    x, m = deltas.double().numpy(), mean.double().numpy()
    wanted = x @ m / np.linalg.norm(x, axis=1) / np.linalg.norm(m)
    np.testing.assert_allclose(drift.cosines(deltas, mean), wanted, rtol=1e-12)
    np.testing.assert_allclose(drift.norms(deltas), np.linalg.norm(x, axis=1), rtol=1e-12)


def test_orthonormal_rows_and_rows_that_do_not_move():
    rows = torch.eye(4, 9)
    np.testing.assert_allclose(drift.cosines(rows, rows.mean(0)), 1 / np.sqrt(4))
    rows = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]])
    np.testing.assert_array_equal(drift.cosines(rows, rows.mean(0)), [0, 0, 0])
    np.testing.assert_allclose(drift.cosines(rows, rows[0]), [1, -1, 0], atol=1e-12)
    assert np.abs(drift.cosines(1e-30 * rows, rows[0])) == pytest.approx([1, 1, 0])


def test_long_sums_stay_exact():
    """Ones behind a large entry vanish from a sum in single precision."""
    row = torch.ones(1, 3_000_000)
    row[0, 0] = 3e4
    assert drift.norms(row)[0] == pytest.approx(np.sqrt(9e8 + 2_999_999), rel=1e-12)
    other = torch.ones(3_000_000)
    wanted = (3e4 + 2_999_999) / np.sqrt(9e8 + 2_999_999) / np.sqrt(3e6)
    assert drift.cosines(row, other)[0] == pytest.approx(wanted, rel=1e-12)


def test_layers_are_slices():
    layout = Layout([Segment("first", 0, 2, (2,), False), Segment("second", 2, 3, (1,), False)])
    deltas = torch.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, -5.0]])
    found = drift.by_layer(layout, deltas, torch.tensor([1.0, 0.0, -1.0]))
    assert list(found) == ["first", "second"]
    np.testing.assert_allclose(found["first"], [1, 0])
    np.testing.assert_allclose(found["second"], [-1, 1])
    with pytest.raises(ValueError, match="3 entries, but the rows have 2"):
        drift.by_layer(layout, deltas[:, :2], torch.ones(2))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\[K, d\]"):
        drift.cosines(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"\[K, d\]"):
        drift.cosines(torch.ones(2, 3), torch.ones(2))


def test_the_cosine_of_parameters_is_bounded_by_length_alone():
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(50, generator=generator)
    deltas = torch.randn(200, 50, generator=generator)
    deltas *= 0.1 * w.norm() / deltas.norm(dim=1, keepdim=True)
    assert drift.parameter_cosines(deltas, w).min() >= 0.99498
    # The bound is reached by the delta that is perpendicular to the client's own parameters.
    v = torch.randn(50, generator=generator)
    v -= v @ w / (w @ w) * w
    v /= v.norm()
    worst = 0.1 * w.norm() * (np.sqrt(0.99) * v - 0.1 * w / w.norm())
    assert drift.parameter_cosines(worst[None], w)[0] == pytest.approx(np.sqrt(0.99), abs=1e-6)
    np.testing.assert_allclose(drift.parameter_cosines(-deltas, -w), drift.parameter_cosines(deltas, w))


def test_parameters_far_from_zero_agree_whatever_the_deltas_say():
    deltas = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert drift.parameter_cosines(deltas, torch.full((2,), 1000.0)).min() > 0.999999
    assert drift.parameter_cosines(deltas, torch.zeros(2)).tolist() == [0, 0]
    assert drift.parameter_cosines(torch.tensor([[-2.0]]), torch.ones(1))[0] == -1


def test_clients_with_one_class_each_disagree_more_than_shuffled_ones():
    """On real training: the measure tells a heterogeneous split from a homogeneous one."""
    from fedlib.watch import watch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    y = x[:, :4].argmax(1)
    data = Dataset("argmax", x, y, x[:50], y[:50], 4)
    means = []
    for cut in (partition.iid(num_clients=4), partition.shards(num_clients=4, per_client=1)):
        seen = list(watch(Task(models.mlp, data, cut), Federation(LocalSGD(lr=0.1)), rounds=5))
        means.append(np.mean([drift.cosines(s.deltas, s.mean) for s in seen]))
    assert means[0] > means[1] + 0.1
