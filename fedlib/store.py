"""What the server remembers for each client: one private row a client, kept outside main memory if large.

Stateful methods (control variates, error feedback, personal layers) need one vector for every client. With
100,000 registered clients of which a few hundred ever take part, a matrix ``[N, d]`` would be absurd. Here
a row exists from its first write on, and costs nothing before.
"""

import os
import tempfile
import threading
import zlib

import numpy as np

from fedlib.files import naming


class ClientStore:
    """Rows of ``d`` float32 numbers, one a client, that survive a kill between two writes.

    Each row owns two slots in a file. ``write`` fills the slot that is *not* in use; ``commit`` makes all
    rows written since then the valid ones. ``index`` says which slot is valid for which client: who saves
    the index (see ``record``) can go back to exactly that moment, because a committed slot is not touched
    until the next commit.

    Parameters
    ----------
    num_clients : int
        Number of registered clients N; ids run from 0 to N-1.
    d : int
        Length of a row.
    path : path-like, optional
        File that holds the rows.  By default an anonymous one, in memory up to ``memory_limit`` bytes.
    memory_limit : int
        Size in bytes above which an anonymous store moves from memory to disk.

    Notes ----- Plain reads and writes rather than a memory map: on a full disk they raise an error, a map
    kills the process.
    """

    def __init__(self, num_clients, d, path=None, memory_limit=2**28):
        if num_clients < 1 or d < 1:
            raise ValueError(f"num_clients and d must be at least 1, got {num_clients} and {d}")
        self.num_clients, self.d, self.path = num_clients, d, path
        self._name = path or "the temporary file of client rows"
        self._slots = {}  # client → (slot, checksum), as committed
        self._pending = {}  # the same, written but not committed
        self._allocated = 0
        self._lock = threading.Lock()  # clients side by side share one file position
        if path is None:
            self._file = tempfile.SpooledTemporaryFile(max_size=memory_limit)
        else:
            open(path, "ab").close()  # create it, but never truncate it
            self._file = open(path, "r+b")

    @property
    def num_rows(self):
        """Number of clients that have a committed row."""
        return len(self._slots)

    def read(self, client):
        """Return the committed row of ``client`` as a new array of shape ``[d]``, or None if it has none."""
        self._check(client)
        if client not in self._slots:
            return None
        slot, checksum = self._slots[client]
        row = np.empty(self.d, dtype=np.float32)
        with self._lock:
            self._file.seek(slot * row.nbytes)
            length = self._file.readinto(row.view(np.uint8))
        if length != row.nbytes or zlib.crc32(row) != checksum:
            raise ValueError(f"{self._name}: the row of client {client} is damaged or missing")
        return row

    def write(self, client, row):
        """Put ``row`` (shape ``[d]``, float32) aside for ``client``; it becomes readable at ``commit``."""
        self._check(client)
        row = np.ascontiguousarray(row)
        if row.shape != (self.d,) or row.dtype != np.float32:
            raise ValueError(
                f"a row must be float32 of shape ({self.d},), got {row.dtype} of shape {row.shape}"
            )
        if client in self._pending:
            slot = self._pending[client][0]
        elif client in self._slots:
            slot = self._slots[client][0] ^ 1  # slots 2i and 2i+1 belong together
        else:
            slot = 2 * self._allocated
            self._allocated += 1
        with self._lock, naming(self._name, "make room and run again"):
            self._file.seek(slot * row.nbytes)
            self._file.write(row)
        self._pending[client] = slot, zlib.crc32(row)

    def commit(self):
        """Make every row written since the last commit the valid one, and wait until it is on disk."""
        with naming(self._name, "make room and run again"):
            self._file.flush()
            if self.path is not None:
                os.fsync(self._file.fileno())
        self._slots.update(self._pending)
        self._pending.clear()

    @property
    def index(self):
        """The committed state as an int64 array of shape ``[rows, 3]``: client, slot, checksum."""
        table = [(client, slot, checksum) for client, (slot, checksum) in self._slots.items()]
        return np.array(table, dtype=np.int64).reshape(-1, 3)

    @index.setter
    def index(self, table):
        self._slots = {int(client): (int(slot), int(checksum)) for client, slot, checksum in table}
        self._pending.clear()
        self._allocated = 1 + max((slot // 2 for slot, _ in self._slots.values()), default=-1)
        for client in self._slots:
            self.read(client)  # raises if the file does not hold what the index promises

    def close(self):
        """Close the file; an anonymous store is gone with it."""
        self._file.close()

    def _check(self, client):
        if not 0 <= client < self.num_clients:
            raise ValueError(f"client {client} is not registered: ids run from 0 to {self.num_clients - 1}")
