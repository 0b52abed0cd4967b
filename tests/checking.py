"""What is demanded of every check of an exercise, whatever it checks."""

import copy

import numpy as np

from fedlib.check.core import Result

# What a function may return by accident.  "None" and "..." stand for a stub with a branch that was forgotten.
NONSENSE = {
    "None": None, "Ellipsis": ..., "NaN": np.nan, "infinity": np.inf, "text": "0.5", "two letters": "ab",
    "empty list": [], "ragged list": [[1, 2], [3]], "dict": {"mean": 1, "sd": 2}, "set": {1.0, 2.0}, "complex": 1j,
    "function": len, "class": dict, "a pair of nothing": (None, None), "a pair of text": ("x", "y"),
    "array of objects": np.array([None, "x"]), "too many axes": np.ones((2, 3, 4)), "generator": (i for i in "ab"),
    "nested pair": ((1, 2), (3, 4)), "an empty pair": ([], []), "bytes": b"ab",
}  # fmt: skip


def stub(*_):
    """Do nothing, as the cell does that a reader has not filled in."""
    ...


def assert_accepted(check, function):
    result = check(function)
    assert result.passed, result
    assert result.properties and all(text in repr(result) for text in result.properties)


def assert_rejected(check, function, phrase):
    result = check(function)
    assert result.status == "failed", f"a wrong answer was accepted: {result}"
    assert result.broken and phrase in result.hint, result
    return result.hint


def assert_all_rejected_differently(check, wrong):
    """Hold each wrong answer against a phrase of the hint that it should get; no two get the same hint."""
    assert len(wrong) >= 3
    hints = [assert_rejected(check, function, phrase) for phrase, function in wrong.items()]
    assert len(set(hints)) == len(hints)
    assert len({hint[:40] for hint in hints}) == len(hints), "hints that differ only in their numbers"


def failing_at(call, right, what):
    """Return the right answer with one bad call: it returns ``what`` there, or raises it."""
    count = 0

    def function(*args):
        nonlocal count
        count += 1
        if count >= call:
            if isinstance(what, BaseException):
                raise what
            return what
        return right(*args)

    return function


def assert_survives_everything(check, right, calls=(1, 2, 3, 4, 6)):
    """Whatever comes back, at whichever call, the check answers with a result that says something."""
    assert check(stub).status == "not done"
    assert "not done yet" in repr(check(stub))
    bad = {**NONSENSE, "error": ZeroDivisionError("division by zero"), "type error": TypeError("no"),
           "no memory": MemoryError(), "recursion": RecursionError("too deep")}  # fmt: skip
    for call in calls:
        for name, what in bad.items():
            result = check(failing_at(call, right, what))
            assert isinstance(result, Result), name
            if result.status == "failed":
                assert result.broken and result.hint and "Hint: " in repr(result), name
                if isinstance(what, BaseException):
                    assert type(what).__name__ in result.hint and str(what) in result.hint
            elif call == 1:
                assert result.status == "not done" and name in ("None", "Ellipsis"), f"{name}: {result}"
            else:
                # A check that asks fewer times never met the bad call.
                assert result.passed and check(counted := Counted(right)).passed and counted.calls < call, name
    for thing in (3, None, "weighted_objective", [right]):
        result = check(thing)
        assert result.status == "failed" and "Pass the function itself" in result.hint


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def assert_leaves_arguments_to_the_check(check, right):
    """An answer that scribbles on what it was given is judged by what it returns."""

    def scribbling(*args):
        value = copy.deepcopy(right(*args))
        for array in args:
            if isinstance(array, np.ndarray) and array.dtype == float:
                array *= 0
        return value

    assert check(scribbling).passed
