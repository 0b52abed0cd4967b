"""Break the library in one place at a time and expect the tests to notice: mutants.py [NAME ...]."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Imported once, before the children are forked.
import hypothesis  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.linear_model  # noqa: F401
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from mutants import MUTANTS  # noqa: E402

# What the tests named in the list need; nothing of the built book.
COPIED = (
    "fedlib",
    "tests",
    "notebooks",
    "book",
    "tools",
    "_config.yml",
    "pyproject.toml",
    "requirements.txt",
    "Makefile",
)

TIMEOUT = 300  # seconds


def copy_project(folder):
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def run_tests(folder, nodes):
    """Return whether the tests pass with the library of ``folder``; stop if they cannot be run."""
    # A forked child inherits the large packages, which costs nothing; it imports the library itself anew.
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        os.environ.pop("FEDLIB_DATA", None)
        sys.path[:] = [str(folder), *(path for path in sys.path if not path.startswith(str(ROOT / "tests")))]
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name == "common" or name.startswith("mutants")]:
            del sys.modules[name]
        with open(folder / "output", "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        signal.alarm(TIMEOUT)  # a mutant may make a loop endless
        code = pytest.main(["-x", "-p", "no:cacheprovider", *nodes])
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1, -signal.SIGALRM):
        sys.exit(f"{(folder / 'output').read_text()}\npytest could not run {nodes}: exit status {code}")
    return code == 0


def survives(folder, mutant):
    """Say whether the tests pass in spite of a mutant; afterwards the copy is whole again."""
    path = folder / mutant.file
    code = path.read_text(encoding="utf-8")
    if code.count(mutant.old) != 1:
        sys.exit(
            f"{mutant.name}: {mutant.old!r} occurs {code.count(mutant.old)} times in {mutant.file}, not once"
        )
    try:
        path.write_text(code.replace(mutant.old, mutant.new), encoding="utf-8")
        return run_tests(folder, mutant.tests)
    finally:
        path.write_text(code, encoding="utf-8")


def main(*names):
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        copy_project(folder)
        # A test that fails anyway would kill every mutant.
        if not run_tests(folder, sorted({node for mutant in chosen for node in mutant.tests})):
            sys.exit("some of the tests fail without any mutant: run `make test` first")
        for mutant in chosen:
            lives = survives(folder, mutant)
            survivors += [mutant.name] * lives
            print(f"{'SURVIVED' if lives else 'killed  '} {mutant.file}: {mutant.name}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    if survivors:
        sys.exit(f"survived: {', '.join(survivors)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
