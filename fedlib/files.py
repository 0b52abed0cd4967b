"""Write files so that a reader sees all or nothing, and a failure says which file and what to do."""

import contextlib
import os
import tempfile
from pathlib import Path


@contextlib.contextmanager
def atomic_file(path):
    """Open a file that becomes ``path`` only if the block succeeds; after an error nothing is left."""
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


@contextlib.contextmanager
def naming(path, advice):
    """Turn an ``OSError`` (a full disk, say) into one that names ``path`` and ends in ``advice``."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{path} could not be written ({error.strerror}): {advice}") from error
