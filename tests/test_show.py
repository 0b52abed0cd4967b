"""The helper that prints the library's own source, and tables."""

import ast
import inspect

import pandas as pd
import pytest

from fedlib import logreg, metrics, objective, rng, show


@pytest.fixture
def shown(monkeypatch):
    pages = []
    monkeypatch.setattr(show, "display", lambda thing: pages.append(thing.data))
    return pages


def code_in(page):
    return page.split("```python\n")[1].split("\n```")[0]


def without_docstrings(code):
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


@pytest.mark.parametrize(
    "function",
    [objective.shares, objective.unbiased, logreg.local_train, logreg.federated_standardize, rng.stream],
)
def test_what_is_printed_is_the_code_that_runs_without_its_docstring(shown, function):
    show.source(function)
    code = code_in(shown[0])
    assert without_docstrings(code) == without_docstrings(inspect.getsource(function))
    assert '"""' not in code
    for line in code.splitlines():
        assert line in inspect.getsource(function).splitlines(), "comments and layout are kept"
    assert f"`{function.__module__.replace('.', '/')}.py`" in shown[0]


def test_comments_stay(shown):
    show.source(rng.stream)
    assert "# A SeedSequence ignores trailing zeros" in code_in(shown[0])


def test_several_functions_stand_below_each_other_under_their_files(shown):
    show.source(objective.shares, objective.weighted_mean, logreg.local_train)
    names = [node.name for node in ast.parse(code_in(shown[0])).body]
    assert names == ["shares", "weighted_mean", "local_train"]
    assert "`fedlib/logreg.py`, `fedlib/objective.py`" in shown[0]


def test_a_class_is_shown_with_its_methods(shown):
    show.source(metrics.Difference)
    code = code_in(shown[0])
    assert "class Difference:" in code and "def __str__" in code and "@dataclass(frozen=True)" in code
    assert "Mean of paired differences" not in code


def test_code_from_elsewhere_is_refused(shown):
    def mine():
        """Written in a notebook."""

    for thing in (mine, inspect.getsource, len, 3):
        with pytest.raises(ValueError, match="not defined in fedlib"):
            show.source(objective.shares, thing)
    assert not shown


def test_text_is_markdown(shown):
    show.text("A *sentence* with $w = 1$.")
    assert shown == ["A *sentence* with $w = 1$."]


def test_a_table_is_markdown_with_rounded_numbers(shown):
    frame = pd.DataFrame({"log loss": [0.123456, 1.0], "n": [3, 4], "who": ["A", "B"]}, index=["one", "two"])
    frame.index.name = "method"
    show.table(frame, digits=2)
    assert shown[0].splitlines() == [
        "| method | log loss | n | who |",
        "| :-- | --: | --: | :-- |",
        "| one | 0.12 | 3 | A |",
        "| two | 1.00 | 4 | B |",
    ]


def test_a_table_of_numbers_only_keeps_whole_numbers_whole(shown):
    show.table(pd.DataFrame({"n": [3, 4], "loss": [0.5, 0.25]}, index=["a", "b"]), digits=1)
    assert shown[0].splitlines()[2:] == ["| a | 3 | 0.5 |", "| b | 4 | 0.2 |"]


def test_cells_cannot_break_a_table(shown):
    show.table(pd.DataFrame({"a|b": [1.0], "n": [2]}, index=["x"]).rename(columns={"a|b": "a"}))
    show.table(pd.DataFrame({"what": ["one|two\nthree", None], "v": [-1e-9, float("nan")]}, index=["a", "b"]))
    assert shown[1].splitlines()[2:] == ["| a | one\\|two three | 0.0000 |", "| b | – | – |"]
    assert shown[1].splitlines()[1] == "| :-- | :-- | --: |"


def test_showing_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        show.source()
