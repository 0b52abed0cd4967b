"""A run on disk: enough to look at it later, and to continue it after a crash as if nothing had happened.

A record is a folder with four kinds of files.

``config.json``       what was run, and on which machine
``rounds.jsonl``      one line of JSON a round
``checkpoint.npz``    the state after the last completed round; replaced atomically, it is the authority
``rows-*.bin``        the clients' private rows, if the method keeps any

The order of writing is rows, line, checkpoint. A kill at any moment leaves the old checkpoint or the new
one, and whatever the old one refers to is still there: its rows in their other slots, its lines at the head
of the file.
"""

import hashlib
import json
import os
import shutil

import numpy as np

from fedlib.files import atomic_file, naming

CONFIG, LINES, CHECKPOINT = "config.json", "rounds.jsonl", "checkpoint.npz"


class Record:
    """An open record.  Use ``create`` or ``open_record``, not the constructor.

    Attributes
    ----------
    folder : Path
    lines : list of dicts
        The rounds that the checkpoint vouches for.
    """

    def __init__(self, folder, lines, size, digest):
        self.folder, self.lines, self._size, self._digest = folder, lines, size, digest

    def append(self, line, arrays):
        """Add one round: its ``line`` (a dict) and the state after it (named arrays).

        Raises
        ------
        OSError
            If the disk is full, for example; the record then still stands at the previous round.
        """
        text = (json.dumps(line, allow_nan=False) + "\n").encode()
        advice = f"make room and run again; the record stands at round {len(self.lines)}"
        with naming(self.folder / LINES, advice), open(self.folder / LINES, "r+b") as file:
            file.seek(self._size)
            file.truncate()  # whatever a killed run wrote after its last checkpoint
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(text)
        self._size += len(text)
        with naming(self.folder / CHECKPOINT, advice):
            for stray in self.folder.glob(CHECKPOINT + "?*"):  # a killed run's unfinished checkpoint
                stray.unlink()
            _save_checkpoint(self.folder / CHECKPOINT, arrays, self._size, self._digest)
        self.lines.append(line)


def create(folder, config, start):
    """Create a record; it appears under its name as a whole or not at all.

    Parameters
    ----------
    folder : Path
        Must not exist, or be empty.
    config : dict
    start : callable
        ``start(folder)`` returns the state before round 0 as named arrays, and may put row files into
        ``folder``.
    """
    work = folder.with_name(folder.name + ".new")
    with naming(folder, "make room, or choose another folder"):
        shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed while it created the record
        work.mkdir(parents=True)
        arrays = start(work)
        (work / LINES).touch()
        (work / CONFIG).write_text(json.dumps(config, indent=1))
        _save_checkpoint(work / CHECKPOINT, arrays, 0, hashlib.sha256())
        os.replace(work, folder)


def open_record(folder, config):
    """Open an existing record to continue it; nothing on disk is changed.

    Returns
    -------
    Record
    dict of arrays
        The state at the checkpoint.

    Raises
    ------
    ValueError
        Naming the file that is missing, damaged, or belongs to another experiment than ``config`` describes.
    """
    missing = [name for name in (CONFIG, LINES, CHECKPOINT) if not (folder / name).exists()]
    if missing:
        raise _damaged(folder / missing[0], "missing")
    _compare(folder / CONFIG, config)
    arrays = _load_checkpoint(folder / CHECKPOINT)
    size, expected = int(arrays.pop("lines_size")), str(arrays.pop("lines_sha256"))
    text = (folder / LINES).read_bytes()[:size]  # a line after that is from a round that was not completed
    digest = hashlib.sha256(text)
    if digest.hexdigest() != expected:
        raise _damaged(folder / LINES, "not what the checkpoint vouches for")
    return Record(folder, [json.loads(line) for line in text.splitlines()], size, digest), arrays


def is_empty(folder):
    """Return whether there is nothing at ``folder`` that a new record could overwrite."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _save_checkpoint(path, arrays, size, digest):
    with atomic_file(path) as file:
        np.savez(file, **arrays, lines_size=size, lines_sha256=digest.hexdigest())


def _load_checkpoint(path):
    try:
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy each have their own ways to say "damaged"
        raise _damaged(path, error) from error


def _compare(path, config):
    try:
        stored = json.loads(path.read_text())
    except ValueError as error:
        raise _damaged(path, error) from error
    here = json.loads(json.dumps(config))
    for name in ("task", "method", "seed", "evaluate_every"):
        if stored.get(name) != here[name]:
            raise ValueError(
                f"{path} belongs to another experiment: its {name} is {stored.get(name)}, yours is "
                f"{here[name]}. Choose another record folder"
            )


def _damaged(path, reason):
    return ValueError(
        f"{path} is damaged ({reason}): the run cannot be continued. Restore the file, or use another folder"
    )
