"""Progress bars: seen in a terminal and in a live notebook, absent from pages and log files."""

import os
import pty
import select
import subprocess
import sys
import termios

import pytest
from project import ROOT, python

from fedlib import progress

CODE = "from fedlib.progress import progress; print(sum(progress(range(5), 'rounds')))"


@pytest.fixture(autouse=True)
def no_setting(monkeypatch):
    monkeypatch.delenv("FEDLIB_PROGRESS", raising=False)


def in_a_terminal(**settings):
    """Run CODE with a terminal as its error stream, and return (output, what the terminal saw)."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))  # in a terminal without columns there is no room for a bar
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    result = subprocess.run([sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    seen = b""
    while select.select([ours], [], [], 0)[0]:
        seen += os.read(ours, 4096)
    os.close(theirs)
    os.close(ours)
    return result.stdout.decode(), seen.decode()


def test_a_log_file_gets_no_bar():
    result = python(CODE, cwd=ROOT)
    assert (result.stdout, result.stderr) == ("10\n", "")


def test_a_terminal_gets_a_bar_with_its_description():
    out, seen = in_a_terminal()
    assert out == "10\n"
    assert "rounds" in seen and "0/5" in seen and "\r" in seen


def test_the_setting_of_the_books_build_silences_it_everywhere():
    assert in_a_terminal(FEDLIB_PROGRESS="0") == ("10\n", "")


def test_a_live_notebook_gets_a_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    bar = progress.progress([1, 2], "rounds")
    assert type(bar).__name__.startswith("tqdm")
    bar.close()
    monkeypatch.setenv("FEDLIB_PROGRESS", "0")
    assert progress.progress([1, 2], "rounds") == [1, 2]


def test_items_pass_through_unchanged():
    assert list(progress.progress((x for x in "abc"), "letters", total=3)) == ["a", "b", "c"]
