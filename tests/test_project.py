"""The parts of the project that have to agree with each other: pins, addresses, versions, layers."""

import ast
import doctest
import importlib
import re

import pytest
import yaml
from project import (
    CONFIG,
    NOTEBOOKS,
    PROJECT,
    REPOSITORY,
    ROOT,
    python,
    read,
    repository_files,
    source,
    tagged,
)
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import fedlib

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "fedlib").rglob("*.py")
)

# A module may import only what stands in a row above its own, except inside `fedlib.check`.
LAYERS = [
    "rng progress files cutting shapes schedule augment",
    "objective metrics download record correction",
    "flat store",
    "comm",
    "data partition models hospitals heterogeneity warmstart",
    "context task",
    "logreg drift control ema prox aggregate memory compress leakage accounting audit secure byzantine personal",
    "selection server upload evaluate similarity",
    "stopping",
    "local privacy",
    "executor batched",
    "client",
    "federation",
    "experiment watch",
    "results",
    "plots show",
    "notebook check",
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row.split()}


def pins():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines if line}


# Versions --------------------------------------------------------------------------------------------------


def test_every_requirement_is_one_exact_pin():
    names = re.findall(r"^([A-Za-z0-9._-]+)", (ROOT / "requirements.txt").read_text(), flags=re.M)
    assert len(names) == len(set(map(canonicalize_name, names))) == len(pins())
    for requirement in pins().values():
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, requirement


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_the_pin_of_a_dependency_satisfies_its_bound(line):
    requirement = Requirement(line)
    (bound,) = requirement.specifier
    assert bound.operator == ">=", f"{line}: only lower bounds, or Colab would reinstall what it has"
    (pin,) = pins()[canonicalize_name(requirement.name)].specifier
    assert requirement.specifier.contains(pin.version), f"{line} against =={pin.version}"


def test_conda_users_get_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["name"]
    (from_pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert from_pip == ["-r requirements.txt", "-e ."], "no second list of pins"
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    assert sorted(re.match(r"[a-z]+", entry)[0] for entry in conda) == ["pip", "python"]
    # The Makefile recognizes the environment by its name.
    assert f"ifeq ($(CONDA_DEFAULT_ENV),{environment['name']})" in (ROOT / "Makefile").read_text()


def test_one_oldest_python_everywhere():
    oldest = PROJECT["requires-python"]
    assert SpecifierSet(oldest)
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert f"python{oldest}" in environment["dependencies"]
    version = oldest.removeprefix(">=")
    assert f"({', '.join(version.split('.'))})" in (ROOT / "Makefile").read_text()
    pages = [ROOT / "book" / "how_to_use.md", ROOT / "README.md"]
    for page in filter(lambda page: page.exists(), pages):
        mentioned = re.findall(r"Python (?:≥ ?|>= ?)?(3\.\d+)", page.read_text())
        assert mentioned and set(mentioned) == {version}, page


def test_the_version_is_the_same_everywhere():
    assert fedlib.__version__ == PROJECT["version"] == str(Version(PROJECT["version"]))
    for path in NOTEBOOKS:
        for cell in tagged(read(path), "setup"):
            assert re.findall(r"@v([^\"']+)", source(cell)) == [fedlib.__version__], path.name


# Addresses -------------------------------------------------------------------------------------------------


def test_the_repository_has_one_address():
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", REPOSITORY)
    owner_and_name = REPOSITORY.removeprefix("https://github.com/")
    own_name = REPOSITORY.rpartition("/")[2]
    found = 0
    for name in repository_files():
        if name.endswith((".md", ".ipynb", ".yml", ".toml", ".cfg", ".html")) and name != "_config.yml":
            text = (ROOT / name).read_text(encoding="utf-8")
            for address in re.findall(
                r"(?:github\.com|colab\.research\.google\.com/github)/([\w.-]+/[\w.-]+)", text
            ):
                address = address.removesuffix(".git").rstrip(".")
                if address.endswith("/" + own_name):
                    assert address == owner_and_name, f"{name} names another repository than _config.yml"
                    found += 1
    assert found >= len([path for path in NOTEBOOKS if tagged(read(path), "setup")]) * 2


def test_what_the_setup_cells_install_is_this_repository():
    for path in NOTEBOOKS:
        for cell in tagged(read(path), "setup"):
            assert re.findall(r'address = "(.*)"', source(cell)) == [REPOSITORY], path.name


def test_nobody_is_told_to_install_the_other_package_of_that_name():
    forbidden = re.compile("pip3? install" + r"\s+(-\S+\s+)*fedlib(?!-course)\b")
    for name in repository_files():
        if (ROOT / name).suffix in {".md", ".py", ".ipynb", ".yml", ".toml"}:
            assert not forbidden.search((ROOT / name).read_text(encoding="utf-8")), name


def test_every_page_is_in_the_table_of_contents():
    toc = (ROOT / "_toc.yml").read_text()
    listed = set(re.findall(r"(?:root|file): (\S+)", toc))
    exists = {str(p.relative_to(ROOT).with_suffix("")) for p in [*NOTEBOOKS, *(ROOT / "book").rglob("*.md")]}
    assert listed == exists
    assert CONFIG["only_build_toc_files"] is True


# The library -----------------------------------------------------------------------------------------------


def test_importing_the_library_is_cheap():
    heavy = ("torch", "sklearn", "matplotlib", "numpy", "pandas", "IPython", "scipy")
    code = f"import sys, fedlib; print([name for name in {heavy} if name in sys.modules])"
    result = python(code, cwd=ROOT)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def imports_of(path):
    """Yield the fedlib modules that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fedlib")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "fedlib":
                yield from (f"fedlib.{alias.name}" for alias in node.names)
            elif node.module.startswith("fedlib."):
                yield node.module


def part(module):
    return (module.split(".") + [""])[1]


def graph():
    edges = {}
    for module in MODULES:
        path = ROOT / (module.replace(".", "/") + ".py")
        path = path if path.exists() else ROOT / module.replace(".", "/") / "__init__.py"
        edges[module] = {name for name in imports_of(path) if name in MODULES and name != "fedlib"}
    return edges


def test_modules_import_only_from_the_layers_above_them():
    for module, imported in graph().items():
        if module == "fedlib":
            assert not imported
            continue
        assert part(module) in LEVEL, f"{module} has no layer: add it to LAYERS"
        for other in imported:
            if part(other) != part(module):
                assert LEVEL[part(other)] < LEVEL[part(module)], f"{module} must not import {other}"


def test_there_are_no_import_cycles():
    edges = graph()
    finished = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path, module])
        if module not in finished:
            for other in edges[module]:
                visit(other, [*path, module])
            finished.add(module)

    for module in edges:
        visit(module, [])


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


def test_there_are_examples_at_all():
    finder = doctest.DocTestFinder()
    tested = [m for m in MODULES if any(t.examples for t in finder.find(importlib.import_module(m)))]
    assert {"fedlib.rng", "fedlib.objective", "fedlib.hospitals"} <= set(tested)


def test_a_built_package_holds_every_module_and_record():
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "fedlib").rglob("*.py")}
    assert set(settings["packages"]) == folders
    for name in repository_files():
        if name.startswith("fedlib/") and not name.endswith(".py"):
            assert name.startswith("fedlib/records/"), f"{name} would not be installed"
            assert (ROOT / name).stat().st_size <= 100_000, f"{name} is too large for a committed record"


# What must not be in a repository --------------------------------------------------------------------------


def test_no_file_names_a_folder_of_somebodys_machine():
    folders = re.compile(r"(?<![\w.~)-])/" + r"(?:work|root|home/\w+|Users/\w+|tmp/\w+)/")
    for name in repository_files():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found = folders.search(text)
        assert not found, f"{name}: {text[max(0, found.start() - 30) : found.end() + 30]!r}"


def test_nothing_large_or_generated_is_committed():
    for name in repository_files():
        assert (ROOT / name).stat().st_size < 1_000_000, name
        assert not re.search(r"(^|/)(_build|\.venv|__pycache__|\.ipynb_checkpoints)/", name), name
