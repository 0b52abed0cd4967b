"""Write a file so that a reader sees all of it or nothing."""

import contextlib
import os
import tempfile
from pathlib import Path


@contextlib.contextmanager
def atomic_file(path):
    """Open a file for writing that becomes ``path`` only if the block succeeds; on any error nothing is left."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
