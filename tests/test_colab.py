"""The setup cell as a stranger meets it: one notebook in an empty folder, a machine that already has torch.

No network is used.  git is told to take the repository's address for a local one, and pip to build with the
setuptools it has.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from project import NOTEBOOKS, PROJECT, REPOSITORY, ROOT, read, repository_files, tagged

WRITTEN = [path for path in NOTEBOOKS if tagged(read(path), "setup")]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))

# Runs the setup cell of the one notebook in this folder as a kernel would, in a namespace of its own.
KERNEL = """
import glob, json, subprocess, sys, types
(page,) = glob.glob("*.ipynb")
(cell,) = ["".join(cell["source"]) for cell in json.load(open(page))["cells"]
           if "setup" in cell["metadata"].get("tags", [])]
session = {"__name__": "__main__"}
def run_setup():
    exec(compile(cell, "setup", "exec"), session)
def pretend_colab():
    for name in ("google", "google.colab"):
        sys.modules[name] = types.ModuleType(name)
def forbid_programs():
    started = subprocess.Popen
    class Refuse(started):  # installers only: torch looks for its own libraries by starting a program
        def __init__(self, arguments, *more, **options):
            if any(word in str(arguments) for word in ("pip", "git")):
                raise AssertionError(f"started {arguments}")
            super().__init__(arguments, *more, **options)
    subprocess.Popen = Refuse
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return a bare repository with what is in this folder now, tagged as the version it says it is."""
    source, bare = (tmp_path_factory.mktemp("published") / name for name in ("source", "bare.git"))
    for name in repository_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    me = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all", "--force"],
        [*me, "commit", "--quiet", "--message", "all"],
        ["tag", f"v{PROJECT['version']}"],
        ["clone", "--quiet", "--bare", ".", str(bare)],
    ):
        subprocess.run(
            ["git", *command], cwd=source, check=True, capture_output=True, env=plain_environment()
        )
    return bare


def plain_environment(**more):
    """Return this environment without anything that would show where the library is, or change pip or git."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "GIT_"))
    }
    return kept | {"PYTHONDONTWRITEBYTECODE": "1", "GIT_TERMINAL_PROMPT": "0"} | more


def without_build_isolation(python):
    """Return the value of PIP_NO_BUILD_ISOLATION that means what it says; pip versions differ."""
    ask = (
        "from pip._internal.commands import create_command as c;"
        "print(c('install').parser.get_default_values().build_isolation)"
    )
    for value in ("0", "1"):
        environment = plain_environment(PIP_NO_BUILD_ISOLATION=value)
        told = subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, check=True, env=environment
        )
        if told.stdout.strip() in ("False", "0"):
            return value
    raise AssertionError("this pip cannot be told to build with what is installed")


class Stranger:
    """A machine with every package that this environment has, but not with the course's library."""

    def __init__(self, folder, repository):
        self.home, environment = folder / "home", folder / "environment"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        self.python = environment / "bin" / "python"
        (self.site_packages,) = environment.glob("lib/python*/site-packages")
        for path in SITE_PACKAGES.iterdir():
            if not path.name.startswith(("fedlib", "__editable__", "__pycache__")):
                (self.site_packages / path.name).symlink_to(path)
        self.environment = plain_environment(
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0=f"url.file://{repository}.insteadOf",
            GIT_CONFIG_VALUE_0=REPOSITORY,
            # Whatever pip would have to fetch is an error.
            PIP_NO_INDEX="1",
            PIP_NO_CACHE_DIR="1",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PIP_NO_BUILD_ISOLATION=without_build_isolation(self.python),
        )

    def run(self, *steps, notebook=WRITTEN[0]):
        for old in self.home.iterdir():
            old.unlink()
        shutil.copy(notebook, self.home)
        command = [self.python, "-c", "\n".join([KERNEL, *steps])]
        return subprocess.run(command, cwd=self.home, env=self.environment, capture_output=True, text=True)

    def installed(self):
        return {path.name for path in self.site_packages.iterdir()}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory, published):
    """A stranger on whose machine nothing is installed by the tests."""
    return Stranger(tmp_path_factory.mktemp("stranger"), published)


def test_the_strangers_machine_is_what_it_should_be(stranger):
    result = stranger.run("import numpy, torch, importlib.util as u; print(u.find_spec('fedlib'))")
    assert result.stdout.strip() == "None", result.stderr


def test_pip_would_install_this_library_and_nothing_else(stranger):
    """The command is the cell's own, with pip's option to report instead of install."""
    captured = stranger.run(
        "pretend_colab()",
        "def capture(command, **options):",
        "    print(json.dumps(command)); raise SystemExit",
        "subprocess.run = capture",
        "run_setup()",
    )
    command = json.loads(captured.stdout)
    assert command[:4] == [str(stranger.python), "-m", "pip", "install"]
    report = stranger.home / "report.json"
    result = subprocess.run(
        [*command, "--dry-run", "--report", report], env=stranger.environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    wanted = [(item["metadata"]["name"], item["metadata"]["version"]) for item in read(report)["install"]]
    assert wanted == [(PROJECT["name"], PROJECT["version"])]
    assert "fedlib" not in stranger.installed()


def test_on_colab_the_cell_installs_prints_one_line_and_the_second_time_does_nothing(tmp_path, published):
    stranger = Stranger(tmp_path, published)
    before = stranger.installed()
    result = stranger.run("pretend_colab()", "run_setup()", "forbid_programs()", "run_setup()")
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"fedlib {PROJECT['version']} · Python ") and "missing" not in line
    assert result.stderr == ""
    assert stranger.installed() - before == {"fedlib", f"fedlib_course-{PROJECT['version']}.dist-info"}
    assert before <= stranger.installed()
    assert (stranger.site_packages / "torch").is_symlink() and (stranger.site_packages / "numpy").is_symlink()

    # A new session finds the library, and all that the pages import and read is there, also the records.
    for path in WRITTEN:
        imports = [
            line
            for cell in read(path)["cells"]
            if cell["cell_type"] == "code"
            for line in "".join(cell["source"]).splitlines()
            if line.startswith(("from fedlib", "import fedlib"))
        ]
        result = stranger.run(
            "forbid_programs()",
            "run_setup()",
            *dict.fromkeys(imports),
            f"print(session['notebook'].cost({path.stem!r}))",
            notebook=path,
        )
        assert result.returncode == 0, result.stderr
        assert len(result.stdout.splitlines()) == 2 and result.stderr == ""
    for name in repository_files():
        if name.startswith("fedlib/"):
            assert (stranger.site_packages / name).is_file(), f"{name} is not part of the package"


def test_elsewhere_one_error_says_what_to_do(stranger):
    result = stranger.run("forbid_programs()", "run_setup()")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("Traceback") == 1, "the failed import is not shown as well"
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "README" in last and REPOSITORY in last


def test_without_a_network_there_is_one_line_and_no_noise(tmp_path, stranger):
    result = stranger.run(
        f"import os; os.environ['GIT_CONFIG_KEY_0'] = 'url.file://{tmp_path}/nowhere.insteadOf'",
        "pretend_colab()",
        "run_setup()",
    )
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("Traceback") == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "network" in last and REPOSITORY in last
    assert not any(word in result.stderr for word in ("fatal:", "subprocess-exited", "error: ", "WARNING"))
    assert "fedlib" not in stranger.installed()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_every_setup_cell_works_where_the_library_is_there(path, tmp_path):
    environment = plain_environment(PYTHONPATH=str(ROOT))
    shutil.copy(path, tmp_path)
    command = [sys.executable, "-c", KERNEL + "\nforbid_programs(); run_setup(); run_setup()"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1 and result.stderr == ""
