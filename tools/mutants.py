"""Break the library in one place at a time and expect the tests to notice: mutants.py [NAME ...]."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def copy_project(folder):
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def run_tests(folder, nodes):
    """Return whether the tests pass with the library of ``folder``; stop if they cannot be run."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-p", "no:cacheprovider", *nodes]
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode not in (0, 1):
        sys.exit(f"{result.stdout}{result.stderr}\npytest could not run {nodes}")
    return result.returncode == 0


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
