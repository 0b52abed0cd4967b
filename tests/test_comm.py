"""The wire format and the ledger."""

import io
import math
import pickle
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from two_clients import Scaffold, laboratory, local

from fedlib import comm, federation, models, partition
from fedlib.comm import dense_bytes, gather, header, megabytes, megabytes_to, pack, unpack
from fedlib.compress import Quantize, TopK
from fedlib.context import Context
from fedlib.control import Scaffold as LibraryScaffold
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.executor import Workers
from fedlib.experiment import run
from fedlib.federation import Federation, begin, play_round
from fedlib.flat import Layout, Segment
from fedlib.selection import Uniform
from fedlib.task import Task
from fedlib.upload import Compress, Dense, ErrorFeedback, num_bytes

KINDS = (torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64)
ARRAY = st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2**32)).map(
    lambda drawn: torch.from_numpy(np.asarray(np.random.default_rng(drawn[2]).integers(0, 200, drawn[1]))).to(drawn[0])
)
NAME = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


# The layout ------------------------------------------------------------------------------------------------


@given(st.dictionaries(NAME, ARRAY, max_size=5))
def test_what_is_packed_is_unpacked(arrays):
    back = unpack(pack(arrays))
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and torch.equal(back[name], array)


def test_the_layout_byte_by_byte():
    arrays = {"ab": torch.tensor([[1, 2, 3]], dtype=torch.uint8), "c": torch.tensor(-1.5)}
    by_hand = (
        b"fed1" + b"\x02"
        + b"\x02ab" + b"\x02" + b"\x02" + b"\x01\0\0\0" + b"\x03\0\0\0"
        + b"\x01c" + b"\x00" + b"\x00"
        + b"\x01\x02\x03" + struct.pack("<f", -1.5)
    )  # fmt: skip
    assert pack(arrays) == by_hand
    assert header(arrays) == by_hand[:-7]
    assert num_bytes(arrays) == 7


def test_numbers_are_little_endian_whatever_they_are():
    values = {torch.float32: "<f", torch.float64: "<d", torch.int32: "<i", torch.int64: "<q", torch.uint8: "<B"}
    for kind, form in values.items():
        assert pack({"x": torch.tensor([3], dtype=kind)}).endswith(struct.pack(form, 3))


def test_the_header_does_not_grow_with_the_arrays():
    assert len(header({"delta": torch.zeros(10)})) == len(header({"delta": torch.zeros(10**6)})) == 17


def test_parts_of_larger_tensors_and_transposed_ones_are_packed_as_they_read():
    table = torch.arange(6.0).view(2, 3)
    back = unpack(pack({"column": table[:, 1], "turned": table.T}))
    assert back["column"].tolist() == [1, 4] and back["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_what_is_unpacked_can_be_written_to_and_shares_nothing():
    data = bytearray(pack({"x": torch.ones(3)}))
    back = unpack(bytes(data))["x"]
    back += 1
    assert unpack(bytes(data))["x"].tolist() == [1, 1, 1]
    # Python keeps one object for all bytes of length one that are equal.
    single = pack({"x": torch.tensor([7], dtype=torch.uint8)})
    back = unpack(single)["x"]
    back += 1
    assert unpack(single)["x"].tolist() == [7]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": torch.zeros(2, dtype=torch.bool)}, "'x' holds torch.bool"),
        ({"x": torch.zeros(2, dtype=torch.bfloat16)}, "bfloat16"),
        ({"": torch.zeros(2)}, "1 to 255 ASCII"),
        ({"Δ": torch.zeros(2)}, "'Δ'"),
        ({"x" * 256: torch.zeros(2)}, "1 to 255"),
        ({f"x{i}": torch.zeros(1) for i in range(256)}, "at most 255 arrays, got 256"),
    ],
)
def test_what_has_no_place_in_the_layout_is_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        pack(arrays)


# Suspicion -------------------------------------------------------------------------------------------------

D = 40
CTX = Context(0, 0, np.arange(1), np.arange(1), np.ones(1), Layout([Segment("w", 0, D, (D,), False)]), None, client=0)
UPLOADS = [
    Dense(), Compress(Quantize(8)), Compress(Quantize(2, "stochastic", chunk=7)), Compress(TopK(0.2)),
    ErrorFeedback(TopK(0.2), Quantize(4)),
]  # fmt: skip
VECTOR = torch.randn(D, generator=torch.Generator().manual_seed(0))
MESSAGES = [
    pack(upload.encode(CTX, {"delta": VECTOR, "length": torch.tensor([0.5])}, None)[0]) for upload in UPLOADS
]
WHICH = st.integers(0, len(UPLOADS) - 1)


def received(which, data):
    return UPLOADS[which].decode(CTX, [unpack(data)])


@pytest.mark.parametrize("which", range(len(UPLOADS)))
def test_untouched_messages_are_accepted(which):
    assert received(which, MESSAGES[which])["delta"].shape == (1, D)


malformed = st.one_of(
    st.tuples(WHICH, st.binary(max_size=200)),
    st.tuples(WHICH, st.binary(max_size=200).map(lambda tail: b"fed1" + tail)),
    st.tuples(WHICH, st.floats(0, 1, exclude_max=True)).map(
        lambda drawn: (drawn[0], MESSAGES[drawn[0]][: int(drawn[1] * len(MESSAGES[drawn[0]]))])
    ),
    st.tuples(WHICH, st.binary(min_size=1, max_size=50)).map(
        lambda drawn: (drawn[0], MESSAGES[drawn[0]] + drawn[1])
    ),
    # A message that is well formed, but made by another chain.
    st.tuples(WHICH, WHICH).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: (pair[0], MESSAGES[pair[1]])),
)  # fmt: skip


@settings(max_examples=2500)
@given(malformed)
def test_malformed_messages_raise_nothing_but_value_errors(case):
    with pytest.raises(ValueError):
        received(*case)


@settings(max_examples=2500)
@given(WHICH, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_overwritten_bytes_are_noticed_or_leave_finite_numbers(which, changes):
    data = bytearray(MESSAGES[which])
    for position, value in changes:
        data[position % len(data)] = value
    try:
        matrices = received(which, bytes(data))
    except ValueError:
        return
    assert matrices["delta"].shape == (1, D)
    assert all(torch.isfinite(matrix).all() for matrix in matrices.values())


def test_a_message_cut_anywhere_is_refused():
    for which, message in enumerate(MESSAGES):
        for end in range(len(message)):
            with pytest.raises(ValueError):
                received(which, message[:end])


def test_a_name_that_comes_twice_is_refused():
    one = b"\x01x\x02\x01\x01\0\0\0"
    assert unpack(b"fed1\x01" + one + b"\x07")["x"].tolist() == [7]
    with pytest.raises(ValueError, match="damaged near array 'x'"):
        unpack(b"fed1\x02" + one + one + b"\x07\x07")


def test_a_kind_or_name_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="kind 5"):
        unpack(b"fed1\x01" + b"\x01x\x05\x01\x01\0\0\0" + b"\x07" * 8)
    with pytest.raises(ValueError, match="damaged"):
        unpack(b"fed1\x01" + b"\x01\xe4\x02\x01\x01\0\0\0" + b"\x07")
    with pytest.raises(ValueError, match="damaged"):
        unpack(b"fed1\x01" + b"\x00\x02\x01\x01\0\0\0" + b"\x07")


def test_a_forged_length_costs_no_memory():
    forged = b"fed1\x01" + b"\x01x\x00\x02" + b"\xff" * 8
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"announces \d{20} bytes"):
        unpack(forged)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_nothing_is_unpickled():
    class Bomb:
        def __reduce__(self):
            return (print, ("boom",))

    buffer = io.BytesIO()
    torch.save({"delta": torch.zeros(3)}, buffer)
    for data in (pickle.dumps(Bomb()), buffer.getvalue()):
        with pytest.raises(ValueError, match="not a message"):
            unpack(data)


def test_messages_that_disagree_are_refused():
    good = {"delta": torch.ones(3), "length": torch.ones(1)}
    assert gather([good, good], ("delta",), 3)["delta"].shape == (2, 3)
    for bad in (
        {"delta": torch.ones(3)},
        {**good, "more": torch.ones(1)},
        {**good, "delta": torch.ones(4)},
        {**good, "length": torch.ones(2)},
        {**good, "length": torch.tensor([math.nan])},
        {**good, "delta": torch.tensor([1, math.inf, 1])},
        {**good, "delta": torch.ones(3, dtype=torch.int32)},
        {**good, "delta": torch.ones(3, dtype=torch.float64)},
    ):
        with pytest.raises(ValueError, match="holds|finite"):
            gather([good, bad], ("delta",), 3)
    with pytest.raises(ValueError, match=r"holds .*float32, 3\).*expected .*float32, 4\)"):
        gather([good], ("delta",), 4)
    with pytest.raises(ValueError, match="'delta' must hold finite numbers, got torch.int32"):
        gather([{"delta": torch.ones(3, dtype=torch.int32)}], ("delta",), 3)
    for without in ({}, {"length": torch.ones(1)}):
        with pytest.raises(ValueError, match="a message holds"):
            gather([without], ("delta",), 4)


# The ledger ------------------------------------------------------------------------------------------------


CORRECTIONS = {
    "plain": Correction(), "of the tests": Scaffold(), "scaffold": LibraryScaffold(),
    "renewed in every other round": LibraryScaffold(refresh_every=2), "rebuilt": LibraryScaffold(rebuild=True),
}  # fmt: skip


def three_clients():
    random = np.random.default_rng(0)
    x, y = torch.from_numpy(random.normal(size=(60, 4))).float(), torch.from_numpy(random.integers(0, 2, 60))
    return Task(models.mlp, Dataset("noise", x[:50], y[:50], x[50:], y[50:], 2), partition.iid(num_clients=3))


@pytest.mark.parametrize("side_by_side", ["in sequence", "three workers", "batched"])
@pytest.mark.parametrize("upload", [*UPLOADS, ErrorFeedback(Quantize(8))], ids=repr)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_ledger_is_the_length_of_what_was_packed(monkeypatch, correction, upload, side_by_side):
    lengths = []
    monkeypatch.setattr(comm, "unpack", lambda data, device: lengths.append(len(data)) or unpack(data, device))
    task, settings = three_clients(), replace(local(CORRECTIONS[correction]), batched=side_by_side == "batched")
    method = Federation(settings, upload=upload, select=Uniform(2))
    networks = [task.new_model(0) for _ in range(3 if side_by_side == "three workers" else 1)]
    state = begin(task, method, networks[0], 0)
    with Workers(networks) as workers:
        for t in range(3):
            broadcast = {"w": state.w} | {f"server.{name}": tensor for name, tensor in state.server.items()}
            state, line = play_round(task, method, workers, 0, state)
            assert line["clients"] and not line["dropped"]
            assert line["bytes_up"] + line["header_up"] == sum(lengths[2 * t :])
            assert line["bytes_down"] + line["header_down"] == 2 * len(pack(broadcast))
            assert line["bytes_down"] == 2 * num_bytes(broadcast)
    assert len(lengths) == 6


@pytest.mark.parametrize("m", [1, 2, 3])
def test_uncompressed_traffic_is_rounds_times_clients_times_model(m):
    task = three_clients()
    history = run(task, Federation(local(), select=Uniform(m)), 5)
    size = task.new_model(0).layout.size
    for way in ("up", "down"):
        assert sum(line[f"bytes_{way}"] for line in history.rounds) == dense_bytes(5, m, size) == 5 * m * size * 4


def test_a_dropped_client_received_the_model_and_sent_nothing():
    task = laboratory((3, 1))
    method, model = Federation(local()), task.new_model(0)
    state = begin(task, method, model, 0)
    state = federation.replace(state, w=torch.full_like(state.w, 3e38))
    _, line = play_round(task, method, Workers([model]), 0, state)
    assert set(line["dropped"]) and line["bytes_down"] == 2 * 4
    assert line["bytes_up"] == 4 * len(line["clients"])


LINES = [
    {"bytes_up": 1_000_000, "header_up": 500_000, "bytes_down": 2_000_000, "header_down": 0, "accuracy": 0.3},
    {"bytes_up": 1_000_000, "header_up": 500_000, "bytes_down": 2_000_000, "header_down": 0},
    {"bytes_up": 0, "bytes_down": 4_000_000, "accuracy": 0.5},
]


def test_megabytes_by_hand():
    assert megabytes(LINES).tolist() == [3.5, 7.0, 11.0]
    assert megabytes(LINES, ("up",)).tolist() == [1.5, 3.0, 3.0]
    assert megabytes(LINES, ("down",)).tolist() == [2.0, 4.0, 8.0]


def test_megabytes_to_a_target_by_hand():
    assert megabytes_to(LINES, 0.3) == 3.5
    assert megabytes_to(LINES, 0.31) == 11.0
    assert megabytes_to(LINES, 0.5, ("up",)) == 3.0
    assert megabytes_to(LINES, 0.51) == math.inf
