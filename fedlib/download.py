"""Download an archive: a half-finished attempt is never mistaken for data and never waits for ever."""

import hashlib
import http.client
import os
import socket
import tarfile
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

CONNECT_SECONDS = 5  # until the server answers the phone
STALL_SECONDS = 20  # of silence during the transfer
TOTAL_SECONDS = 1800  # altogether, against a server that drips


class DownloadError(OSError):
    """The data could not be downloaded; the message says why and what to do instead."""


def fetch_archive(url, sha256, folder):
    """Download the .tar.gz at ``url``, verify it, and unpack its top folder as ``folder``.

    ``folder`` appears in one atomic rename, after the checksum of the whole archive was found right.

    Raises
    ------
    DownloadError
        If the server cannot be reached, stalls, or sends anything but the expected archive.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="download-") as work:
        archive = Path(work, "archive.tar.gz")
        try:
            _require_answer(url)
            digest = _transfer(url, archive)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise DownloadError(_advice(url, f"{type(error).__name__}: {error}", folder)) from error
        if digest != sha256:
            start = archive.open("rb").read(15)
            raise DownloadError(_advice(url, f"wrong checksum (the file starts with {start!r})", folder))
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        if not folder.exists():  # another process may have been faster
            os.rename(Path(work, folder.name), folder)


def _require_answer(url):
    """Connect once in a thread that may be abandoned: looking up a host name knows no time-out of its own."""
    parts = urllib.parse.urlsplit(url)
    if not urllib.request.proxy_bypass(parts.hostname):
        parts = urllib.parse.urlsplit(urllib.request.getproxies().get(parts.scheme) or url)
    port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    outcome = [TimeoutError(f"no answer within {CONNECT_SECONDS} s")]

    def connect():
        try:
            socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS).close()
            outcome[0] = None
        except OSError as error:
            outcome[0] = error

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if outcome[0]:
        raise outcome[0]


def _transfer(url, path):
    from tqdm import tqdm

    digest, deadline = hashlib.sha256(), time.monotonic() + TOTAL_SECONDS
    with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response, open(path, "wb") as file:
        size = int(response.headers.get("Content-Length") or 0)
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name) as bar:
            while chunk := response.read1(
                2**16
            ):  # read1 returns what is there; read would wait for all of it
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not finished after {TOTAL_SECONDS} s")
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
    return digest.hexdigest()


def _advice(url, reason, folder):
    return (
        f"could not download {url}: {reason}. Put the unpacked archive in {folder}, or name the folder that "
        f"contains {folder.name} in the environment variable FEDLIB_DATA"
    )
