"""The planted faults can still be planted; `make mutants` plants them."""

from collections import Counter

import pytest
from mutants import MUTANTS
from project import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_place_of_a_fault_is_still_there(mutant):
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new and mutant.tests
    for node in mutant.tests:
        assert (ROOT / node.split("::")[0]).exists()


def test_the_mutated_files_are_python():
    """A mutant that does not compile would be killed by any test that imports it, which proves nothing."""
    for mutant in MUTANTS:
        code = (ROOT / mutant.file).read_text(encoding="utf-8").replace(mutant.old, mutant.new)
        compile(code, mutant.name, "exec")


def test_names_are_unique_and_every_module_has_mutants():
    assert max(Counter((mutant.file, mutant.name) for mutant in MUTANTS).values()) == 1
    modules = {"rng", "objective", "logreg", "hospitals", "metrics", "plots", "show", "notebook", "progress"}
    assert {f"fedlib/{name}.py" for name in modules} <= {mutant.file for mutant in MUTANTS}
