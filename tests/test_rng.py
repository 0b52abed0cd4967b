"""Random streams: addresses, independence, and nothing global read or changed."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from project import ROOT, python

from fedlib.rng import PURPOSES, stream

ids = st.integers(0, 2**32 - 1)


def draw(*address):
    return tuple(stream(*address).integers(2**62, size=4).tolist())


def test_equal_addresses_give_equal_numbers():
    assert draw(3, "batches", 5, 7) == draw(3, "batches", 5, 7)


def test_every_coordinate_matters():
    addresses = [
        (seed, purpose, *ids)
        for seed in range(3)
        for purpose in PURPOSES
        for ids in [(), *((t,) for t in range(3)), *((t, k) for t in range(3) for k in range(3))]
    ]
    assert len({draw(*address) for address in addresses}) == len(addresses)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((0, "noise"), (0, "noise", 0)),
        ((0, "noise", 0), (0, "noise", 0, 0)),
        ((0, "noise", 1), (0, "noise", 1, 0)),
        ((0, "noise", 1, 0), (0, "noise", 0, 1)),
        ((1, "noise", 0, 0), (0, "noise", 1, 0)),
        # seed + client is the popular recipe: it gives client 1 of seed 0 the numbers of client 0 of seed 1
        ((0, "batches", 0, 1), (1, "batches", 0, 0)),
    ],
)
def test_addresses_that_simpler_recipes_confuse(one, two):
    assert draw(*one) != draw(*two)


@given(ids, ids, ids, ids, ids, ids)
def test_different_addresses_differ(seed1, t1, k1, seed2, t2, k2):
    if (seed1, t1, k1) != (seed2, t2, k2):
        assert draw(seed1, "batches", t1, k1) != draw(seed2, "batches", t2, k2)


def test_streams_are_uncorrelated():
    """Over 40,000 pairs a correlation has a standard deviation of 0.005; five of them is a lot."""
    base = stream(0, "batches", 0, 0).normal(size=40_000)
    for address in [(0, "batches", 0, 1), (0, "batches", 1, 0), (1, "batches", 0, 0), (0, "noise", 0, 0)]:
        assert abs(np.corrcoef(base, stream(*address).normal(size=40_000))[0, 1]) < 0.025


def test_the_numbers_are_the_same_in_every_process():
    """No hash of a string is involved: Python salts those anew in every process."""
    code = "from fedlib.rng import stream; print(stream(3, 'select', 2, 1).integers(2**62, size=4).tolist())"
    for salt in ("0", "1"):
        result = python(code, cwd=ROOT, env={"PYTHONHASHSEED": salt, "PYTHONPATH": str(ROOT), "PATH": ""})
        assert result.stdout.strip() == str(list(draw(3, "select", 2, 1))), result.stderr


def test_recorded_numbers_stay_what_they_are():
    """Results that were published with a seed must be reproducible by the next version of the library."""
    assert stream(0, "batches").integers(1000, size=5).tolist() == [286, 242, 913, 112, 63]
    assert stream(7, "select", 3, 2).integers(1000, size=5).tolist() == [446, 377, 799, 983, 878]


def test_purposes_are_distinct_and_not_zero():
    assert len(set(PURPOSES.values())) == len(PURPOSES)
    assert all(isinstance(number, int) and number > 0 for number in PURPOSES.values())


def test_nothing_global_is_read_or_changed():
    def state():
        return np.random.get_state()[1].tolist(), random.getstate()

    drawn = []
    for seed in (100, 200):
        np.random.seed(seed)
        random.seed(seed)
        kept = state()
        drawn.append(draw(0, "batches"))
        assert state() == kept
    assert drawn[0] == drawn[1]


def test_a_stream_is_fresh_each_time():
    one, two = stream(0, "noise"), stream(0, "noise")
    one.normal(size=100)
    assert two.normal() == stream(0, "noise").normal()


def test_numpy_integers_are_integers():
    assert draw(np.int64(3), "batches", np.uint8(2), np.int32(1)) == draw(3, "batches", 2, 1)


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ((0, "luck"), ValueError, "'luck'.*batches"),
        ((0, "noise", 1, 2, 3), ValueError, "at most two"),
        ((-1, "noise"), ValueError, "-1"),
        ((0, "noise", 2**32), ValueError, "smaller"),
        ((0.5, "noise"), TypeError, "0.5"),
        ((0, "noise", "one"), TypeError, "'one'"),
        ((None, "noise"), TypeError, "None"),
        ((0, "noise", 1.0), TypeError, "float"),
    ],
)
def test_bad_addresses_are_refused(address, error, message):
    with pytest.raises(error, match=message):
        stream(*address)
