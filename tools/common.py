"""What the build scripts share: where things are and what a page depends on."""

import hashlib
import sys
from pathlib import Path

SCALES = ("quick", "full")


def parse_scale(text):
    if text not in SCALES:
        sys.exit(f"SCALE must be one of {SCALES}, got {text!r}: try `make book SCALE=full`")
    return text


def build_folder(scale):
    """The folder of one scale: src/ is what Jupyter Book reads, html/ what it writes, stamps/ what is up to date."""
    return Path("_build") / scale


def digest(paths, *words):
    """Return a hash of the names and contents of files, and of some words."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    for word in words:
        total.update(f"{word}\0".encode())
    return total.hexdigest()


def files_below(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def up_to_date(stamp, fingerprint, output):
    return output.exists() and stamp.exists() and stamp.read_text() == fingerprint


def write_stamp(stamp, fingerprint):
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(fingerprint)
