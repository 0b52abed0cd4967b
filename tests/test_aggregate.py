"""Aggregation: means stay means, whatever the subset, the order, and the sizes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.aggregate import Unbiased, UniformMean, WeightedMean, normalized, weighted_sum


def context(weights, clients, drawn=None):
    clients = np.asarray(clients)
    drawn = clients if drawn is None else np.asarray(drawn)
    return SimpleNamespace(
        weights=np.asarray(weights), clients=clients, drawn=drawn, num_clients=len(weights)
    )


DELTAS = torch.tensor([[1.0, 0.0], [0.0, 4.0]])


def test_by_hand():
    ctx = context([0.5, 0.2, 0.3], [0, 2], drawn=[0, 1, 2])
    update, weights = WeightedMean().combine(ctx, DELTAS)
    assert weights == pytest.approx([0.625, 0.375]) and update.tolist() == pytest.approx([0.625, 1.5])
    update, weights = UniformMean().combine(ctx, DELTAS)
    assert weights.tolist() == [0.5, 0.5] and update.tolist() == [0.5, 2.0]
    update, weights = Unbiased().combine(context([0.5, 0.2, 0.3], [0, 2]), DELTAS)
    assert weights == pytest.approx([0.75, 0.45])  # N/m = 3/2
    update, weights = Unbiased().combine(ctx, DELTAS)  # a third client was drawn and lost: not replaced
    assert weights == pytest.approx([0.5, 0.3])


clients = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 100), min_size=n, max_size=n), st.integers(0, 2**n - 1), st.integers(0, 99)
    )
)


@settings(max_examples=80, deadline=None)
@given(clients)
def test_the_mean_of_a_subset(drawn):
    sizes, mask, seed = drawn
    chosen = [k for k in range(len(sizes)) if mask >> k & 1] or [0]
    p = np.array(sizes) / sum(sizes)
    deltas = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(chosen), 3)).astype(np.float32))
    update, weights = WeightedMean().combine(context(p, chosen), deltas)
    # The mean over samples, each sample repeating its client's delta, is an independent way to say it.
    repeated = np.repeat(deltas.numpy().astype(np.float64), [sizes[k] for k in chosen], axis=0)
    np.testing.assert_allclose(update.numpy(), repeated.mean(0), atol=1e-6)
    assert weights.sum() == pytest.approx(1)
    order = np.random.default_rng(seed).permutation(len(chosen))
    shuffled, _ = WeightedMean().combine(context(p, np.array(chosen)[order]), deltas[torch.from_numpy(order)])
    torch.testing.assert_close(shuffled, update, atol=1e-6, rtol=1e-6)
    constant, _ = WeightedMean().combine(context(p, chosen), torch.full((len(chosen), 3), 0.1))
    assert torch.equal(constant, torch.full((3,), 0.1))


def test_sums_run_in_float64():
    # In float32 1e8 + 1 is 1e8, and the second row would be lost.
    deltas = torch.tensor([[1e8], [1.0], [-1e8]])
    assert weighted_sum([1, 1, 1], deltas).item() == 1.0
    assert weighted_sum([1, 1, 1], deltas).dtype == torch.float32


@pytest.mark.parametrize("weights", [[0, 0], [-1, 2], [float("nan"), 1]])
def test_weights_that_cannot_be_normalized_are_refused(weights):
    with pytest.raises(ValueError, match="not all zero"):
        normalized(weights)


def test_weights_and_rows_must_fit():
    with pytest.raises(ValueError, match="3 weights do not fit 2 deltas"):
        weighted_sum([1, 1, 1], DELTAS)
