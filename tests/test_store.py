"""The client store: two slots a row, rows only for those who wrote, and nothing lost between two writes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.store import ClientStore


def row(value, d=3):
    return np.full(d, value, dtype=np.float32)


def test_a_row_is_readable_after_the_commit_and_not_before():
    store = ClientStore(5, 3)
    store.write(2, row(7))
    assert store.read(2) is None
    store.commit()
    assert store.read(2).tolist() == [7, 7, 7]
    store.write(2, row(8))
    assert store.read(2).tolist() == [7, 7, 7]
    store.commit()
    assert store.read(2).tolist() == [8, 8, 8]
    assert [store.read(k) for k in (0, 1, 3, 4)] == [None] * 4 and store.num_rows == 1


def test_what_is_read_is_a_copy():
    store = ClientStore(1, 3)
    store.write(0, row(1))
    store.commit()
    store.read(0)[:] = 99
    assert store.read(0).tolist() == [1, 1, 1]


operations = st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9, width=32), st.booleans()), max_size=40)


@settings(max_examples=60, deadline=None)
@given(operations=operations, limit=st.sampled_from([1, 50, 10**6]))
def test_the_store_behaves_like_a_dictionary_with_commits(operations, limit):
    store, committed, pending = ClientStore(6, 2, memory_limit=limit), {}, {}
    for client, value, commit in operations:
        store.write(client, row(value, 2))
        pending[client] = row(value, 2)
        if commit:
            store.commit()
            committed |= pending
            pending = {}
        for k in range(6):
            found = store.read(k)
            assert (found is None) == (k not in committed)
            assert found is None or np.array_equal(found, committed[k])


@settings(max_examples=30, deadline=None)
@given(before=operations, after=operations)
def test_an_old_index_finds_its_rows_until_the_second_commit_after_it(tmp_path_factory, before, after):
    path = tmp_path_factory.mktemp("store") / "rows.bin"
    store, expected = ClientStore(6, 2, path), {}
    for client, value, _ in before:
        store.write(client, row(value, 2))
        store.commit()
        expected[client] = row(value, 2)
    index = store.index
    for client, value, _ in after:  # a run that writes on and is killed, before its commit or just after
        store.write(client, row(value, 2))
    store.commit()
    again = ClientStore(6, 2, path)
    again.index = index
    assert again.num_rows == len(expected)
    for client, value in expected.items():
        assert np.array_equal(again.read(client), value)
    # Writing goes on from there without touching anybody else's row.
    newcomer = next((k for k in range(6) if k not in expected), None)
    if newcomer is not None:
        again.write(newcomer, row(1, 2))
        again.commit()
        for client, value in expected.items():
            assert np.array_equal(again.read(client), value)


def test_a_hundred_thousand_registered_clients_cost_what_a_hundred_cost(tmp_path):
    sizes = []
    for num_clients in (100, 100_000):
        path = tmp_path / f"{num_clients}.bin"
        store = ClientStore(num_clients, 1000, path)
        for client in (3, 50, 99, num_clients - 1):
            store.write(client, row(client, 1000))
        store.commit()
        sizes.append((path.stat().st_size, store.index.nbytes))
    assert sizes[0][0] <= sizes[1][0] <= 4 * 2 * 4000 and sizes[1][1] == 4 * 3 * 8


def test_rewriting_the_same_rows_does_not_grow_the_file(tmp_path):
    store = ClientStore(10, 100, tmp_path / "rows.bin")
    for value in range(50):
        for client in (1, 2):
            store.write(client, row(value, 100))
        store.commit()
    assert (tmp_path / "rows.bin").stat().st_size <= 2 * 2 * 400


def test_a_damaged_row_is_an_error_that_names_file_and_client(tmp_path):
    path = tmp_path / "rows.bin"
    store = ClientStore(4, 3, path)
    store.write(1, row(5))
    store.commit()
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="rows.bin.*client 1"):
        store.read(1)
    with pytest.raises(ValueError, match="rows.bin.*client 1"):
        ClientStore(4, 3, path).index = store.index


def test_a_full_disk_names_the_file(tmp_path):
    script = """
import resource, signal, sys
import numpy as np
from fedlib.store import ClientStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = ClientStore(10, 10_000, sys.argv[1])
for client in range(10):
    store.write(client, np.zeros(10_000, dtype=np.float32))
    store.commit()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "rows.bin"], capture_output=True, text=True,
                          env=environment)  # fmt: skip
    assert "rows.bin could not be written" in done.stderr and "make room" in done.stderr


@pytest.mark.parametrize(
    ("client", "vector", "message"),
    [
        (5, row(0), "client 5 is not registered"),
        (-1, row(0), "client -1 is not registered"),
        (0, row(0, 4), r"shape \(4,\)"),
        (0, np.zeros(3), "float64"),
    ],
)
def test_wrong_rows_are_refused(client, vector, message):
    with pytest.raises(ValueError, match=message):
        ClientStore(5, 3).write(client, vector)


def test_a_store_needs_clients_and_a_length():
    with pytest.raises(ValueError, match="0 and 3"):
        ClientStore(0, 3)
