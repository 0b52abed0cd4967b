"""`make book` does what changed and nothing else: a small project, driven by the real Makefile."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from project import ROOT

CHAPTER = "notebooks/01_weighted_objective.ipynb"
SECOND = "notebooks/02_other.ipynb"
EXECUTED = f"_build/quick/src/{CHAPTER}"
PAGE = "_build/quick/_build/html/book/index.html"


def notebook(*cells):
    """Return the smallest notebook: a parameters cell, then these."""

    def code(text, tags=()):
        return {
            "cell_type": "code",
            "id": f"c{abs(hash(text))}",
            "metadata": {"tags": list(tags)},
            "outputs": [],
            "execution_count": None,
            "source": text,
        }

    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# A chapter"}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    body = [title, code('SCALE = "quick"', ["parameters"]), *map(code, cells)]
    return json.dumps({"cells": body, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


# The first page shows the first slider figure of chapter 1, so there has to be one.
SLIDER = """from IPython.display import HTML
import fedlib.rng
print("ran at", SCALE)
HTML('<div class="fed-slider">a figure</div>')"""


FAKE_PAPERMILL = """import json

def execute_notebook(source, target, parameters, **options):
    notebook = json.load(open(source))
    notebook["metadata"]["ran with"] = parameters
    json.dump(notebook, open(target, "w"))
"""


class Project:
    """A course of one page and one chapter, in a folder of its own, using this environment."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("Makefile", "_config.yml", "requirements.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        for name in ("tools", "fedlib"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "book" / "_static", folder / "book" / "_static")
        # What the Makefile asks of an environment: a Python, the programs beside it, and the mark "ready".
        (folder / ".venv" / "bin").mkdir(parents=True)
        for program in ("python", "jupyter-book"):
            self.write(f".venv/bin/{program}", f'#!/bin/sh\nexec "{programs()}/{program}" "$@"\n')
            (folder / ".venv" / "bin" / program).chmod(0o755)
        self.write(
            "_toc.yml",
            f"format: jb-book\nroot: book/index\nchapters:\n  - file: {CHAPTER[:-6]}\n  - file: book/extra\n",
        )
        self.write("book/index.md", f"# Home\n\nThe first sentence. See [the chapter](../{CHAPTER}).\n")
        self.write("book/extra.md", "# Extra\n")
        self.write("book/references.bib", "")
        self.write(CHAPTER, notebook(SLIDER))
        self.write(".venv/ready", "")

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def edit(self, name, old, new):
        text = (self.folder / name).read_text()
        assert text.count(old) == 1, f"{old!r} in {name}"
        self.write(name, text.replace(old, new))

    def make(self, *arguments, succeeds=True, **more):
        (self.folder / ".venv" / "ready").touch()  # nothing here may install anything
        kept = {
            k: v
            for k, v in os.environ.items()
            if k not in ("MAKEFLAGS", "MAKELEVEL", "CONDA_DEFAULT_ENV", "SCALE")
        }
        command = ["make", *(arguments or ["book"])]
        result = subprocess.run(command, cwd=self.folder, env=kept | more, capture_output=True, text=True)
        said = result.stdout + result.stderr
        assert (result.returncode == 0) == succeeds, said
        return said

    def page(self, scale="quick"):
        return (self.folder / PAGE.replace("quick", scale)).read_text()

    def times(self):
        """Return when each executed notebook and each page was written."""
        build = self.folder / "_build" / "quick"
        files = [
            *build.glob("src/notebooks/*"),
            *build.glob("_build/html/**/*.html"),
            *build.glob("stamps/*"),
        ]
        return {str(path.relative_to(build)): path.stat().st_mtime_ns for path in files}


def programs():
    return os.path.dirname(sys.executable)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project with its book built once; each test leaves it built."""
    project = Project(tmp_path_factory.mktemp("project"))
    said = project.make()
    assert f"executing {CHAPTER}" in said and "The book is in _build/quick/_build/html/index.html" in said
    return project


def executed(said):
    return said.count("executing notebooks/")


def test_changing_nothing_does_nothing(project):
    before = project.times()
    said = project.make()
    assert executed(said) == 0 and "The book is in" in said
    assert project.times() == before
    assert len(said.strip().splitlines()) == 2, "and says nothing but where the book is"


def test_touching_a_file_without_a_change_does_nothing(project):
    before = project.times()
    for name in (CHAPTER, "fedlib/rng.py", "book/index.md", "tools/execute.py"):
        (project.folder / name).touch()
    assert executed(project.make()) == 0
    assert project.times() == before


def test_prose_is_rebuilt_without_executing_anything(project):
    """A page was edited and another one taken out of the book."""
    before = project.times()
    project.edit("book/index.md", "The first sentence.", "A better sentence.")
    (project.folder / "book/extra.md").unlink()
    project.edit("_toc.yml", "  - file: book/extra\n", "")
    assert executed(project.make()) == 0
    assert "A better sentence." in project.page()
    changed = {name for name, time in project.times().items() if before.get(name) != time}
    assert "_build/html/book/index.html" in changed and not any(name.startswith("src/") for name in changed)
    assert not any("extra" in name for name in project.times())
    assert not (project.folder / "_build/quick/src/book/extra.md").exists()


def test_an_edited_line_of_the_library_runs_the_notebooks_again(project):
    project.edit("fedlib/rng.py", '"toy": 8', '"toy": 80')
    assert executed(project.make(EXECUTED)) == 1
    assert executed(project.make(EXECUTED)) == 0


@pytest.fixture
def instantly(project):
    """Execute by noting the scale, which is quick, where the question is only whether a notebook runs."""
    project.write("papermill.py", FAKE_PAPERMILL)
    yield
    (project.folder / "papermill.py").unlink()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("fedlib/check/chapter01.py", 'rng = stream(0, "check", 101)', 'rng = stream(1, "check", 101)'),
        ("requirements.txt", "# The notebooks", "# The notebooks, with other pins"),
        (CHAPTER, "ran at", "was run at"),
    ],
    ids=["library", "pins", "source"],
)
def test_what_a_notebook_depends_on_makes_it_run_again(project, instantly, name, old, new):
    """A hash is compared, no time, so each is tried on its own and the others stay as they are."""
    project.edit(name, old, new)
    assert executed(project.make(EXECUTED)) == 1
    assert executed(project.make(EXECUTED)) == 0


def test_a_new_record_makes_it_run_again(project, instantly):
    project.write("fedlib/records/new.json", "{}")
    assert executed(project.make(EXECUTED)) == 1


def test_the_data_source_makes_it_run_again(project):
    """The source is whatever `fedlib.notebook.data_source` says, so here it says something else."""
    code = (
        "import sys, pathlib; sys.path.insert(0, 'tools'); import execute;"
        f"print(execute.fingerprint(pathlib.Path({CHAPTER!r}), 'quick'))"
    )
    change = "from fedlib import notebook; notebook.data_source = lambda: {!r};"
    prints = set()
    for source in ("one", "two", "one"):
        command = [sys.executable, "-c", change.format(source) + code]
        result = subprocess.run(
            command,
            cwd=project.folder,
            env=os.environ | {"PYTHONPATH": str(project.folder)},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        prints.add(result.stdout)
    assert len(prints) == 2


def test_scales_are_built_side_by_side(project, instantly):
    before = project.times()
    full = EXECUTED.replace("quick", "full")
    assert "SCALE=full" in project.make("SCALE=full", full)
    assert project.times() == before
    assert '"SCALE": "full"' in (project.folder / full).read_text()
    assert executed(project.make("SCALE=full", full)) == 0
    said = project.make("book", "SCALE=medium", succeeds=False)
    assert "SCALE must be one of" in said and "'medium'" in said


def test_two_jobs_side_by_side(project):
    project.write(SECOND, notebook("import os; print(os.environ.get('OMP_NUM_THREADS'))"))
    project.edit(
        "_toc.yml", f"  - file: {CHAPTER[:-6]}\n", f"  - file: {CHAPTER[:-6]}\n  - file: {SECOND[:-6]}\n"
    )
    project.edit("fedlib/rng.py", '"check": 9', '"check": 90')
    said = project.make("book", "-j2")
    assert executed(said) == 2
    assert said.index("The book is in") > max(said.index(f"executed {name}") for name in (CHAPTER, SECOND))
    output = json.loads((project.folder / "_build/quick/src" / SECOND).read_text())
    assert "1\\n" in json.dumps(output["cells"][-1]["outputs"]), (
        "one thread a kernel when two run side by side"
    )


BROKEN = {
    "[a link](nowhere.md)": "nowhere.md",
    "[a link](#no-such-heading)": "no-such-heading",
    "```{nonsense}\n```": "nonsense",
    "![](no_picture.png)": "no_picture.png",
    "{cite}`nobody2020`": "nobody2020",
}


def test_a_warning_is_an_error_and_nothing_looks_finished(project):
    good = (project.folder / "book/index.md").read_text()
    project.write("book/index.md", "\n\n".join([good, "A broken sentence.", *BROKEN]))
    said = project.make(succeeds=False)
    for complaint in BROKEN.values():
        assert complaint in said
    assert "The book is in" not in said and "not built" in said
    # The stamp of the last good build must not vouch for what the failed one left.
    project.write("book/index.md", good)
    assert "The book is in" in project.make()
    assert "A broken sentence" not in project.page()


def test_a_notebook_that_fails_leaves_no_page_that_looks_up_to_date(project):
    good = (project.folder / CHAPTER).read_text()
    project.make(EXECUTED)
    output = project.folder / EXECUTED
    kept = output.read_bytes()
    project.write(CHAPTER, notebook("raise RuntimeError('on purpose')", SLIDER))
    for _ in range(2):
        said = project.make(succeeds=False)
        assert executed(said) == 1 and "on purpose" in said and "The book is in" not in said
        assert output.read_bytes() == kept, "no half of a new page"
    project.write(CHAPTER, good)
    assert executed(project.make(EXECUTED)) == 0, "what was there before is still good"
    project.make()
    assert not (project.folder / "_build/quick/src/notebooks/01_weighted_objective.running.ipynb").exists()
