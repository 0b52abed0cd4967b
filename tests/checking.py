"""What is demanded of every check of an exercise, whatever it checks."""

import copy

import numpy as np
import pytest

from fedlib.check.core import Result


class Hostile:
    """Raises whatever is done with it."""

    def _raise(self, *_, **__):
        raise RuntimeError("no")

    __repr__ = __array__ = __iter__ = __len__ = __float__ = __eq__ = __hash__ = _raise


class NotATensor:
    detach = 1


# What a function may return by accident.  "None" and "..." stand for a stub with a branch that was forgotten.
NONSENSE = {
    "None": None,
    "Ellipsis": ...,
    "NaN": np.nan,
    "infinity": np.inf,
    "text": "0.5",
    "two letters": "ab",
    "empty list": [],
    "ragged list": [[1, 2], [3]],
    "dict": {"mean": 1, "sd": 2},
    "set": {1.0, 2.0},
    "complex": 1j,
    "function": len,
    "class": dict,
    "a pair of nothing": (None, None),
    "a pair of text": ("x", "y"),
    "array of objects": np.array([None, "x"]),
    "too many axes": np.ones((2, 3, 4)),
    "generator": (i for i in "ab"),
    "nested pair": ((1, 2), (3, 4)),
    "an empty pair": ([], []),
    "bytes": b"ab",
    "digits": "1.73",
    "a date": np.datetime64("2024-02-29"),
    "a pair of durations": (np.timedelta64(1, "D"), np.timedelta64(1, "D")),
    "what cannot be shown": Hostile(),
    "a pair that cannot be shown": (Hostile(), Hostile()),
    "detach is no method": NotATensor(),
}


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
    assert check(unfinished).status == check(lambda *_: None).status == "not done"
    result = check(printing)
    assert result.status == "failed" and "`return`" in result.hint, result
    with pytest.raises(KeyboardInterrupt):
        check(failing_at(1, right, KeyboardInterrupt()))
    bad = {
        **NONSENSE,
        "error": ZeroDivisionError("division by zero"),
        "type error": TypeError("no"),
        "no memory": MemoryError(),
        "recursion": RecursionError("too deep"),
        "exit": SystemExit("bye"),
    }
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
                assert result.passed and check(counted := Counted(right)).passed and counted.calls < call, (
                    name
                )
    for thing in (3, None, "weighted_objective", [right]):
        result = check(thing)
        assert result.status == "failed" and "Pass the function itself" in result.hint


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def assert_rejects_changed_inputs(check, right):
    """An answer that is right but overwrites an array that it was given, however deep, is told so."""

    def scribbling(*args):
        value = copy.deepcopy(right(*args))
        overwrite(args)
        return value

    result = check(scribbling)
    assert (result.status, result.broken) == ("failed", "your inputs are left as they are"), result
    assert "in place" in result.hint and ("caller" in result.hint or "server" in result.hint)


def overwrite(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            overwrite(item)
    elif isinstance(value, np.ndarray) and value.size:
        value[-1] = 0


def unfinished(*args):
    """Say so."""
    raise NotImplementedError


def printing(*args):
    print(*args)


def every_exercise(check, exercises, inputs=None):
    """Return what every check of a chapter must do, as a class of tests.

    Parameters
    ----------
    check : module
        The chapter's checks.
    exercises : dict
        Name of a check → right answers (a list), wrong answers (by a phrase of the hint that each should get), and
        further wrong answers (by what is wrong).
    inputs : list of str, optional
        Names of the checks whose inputs an answer could overwrite; by default all.
    """

    class TestEveryExercise:
        @pytest.mark.parametrize(
            ("name", "i"), [(name, i) for name, (right, *_) in exercises.items() for i in range(len(right))]
        )
        def test_a_right_answer_is_accepted_however_it_is_written(self, name, i):
            assert_accepted(getattr(check, name), exercises[name][0][i])

        @pytest.mark.filterwarnings("ignore::RuntimeWarning")
        @pytest.mark.parametrize("name", exercises)
        def test_wrong_answers_get_a_hint_each(self, name):
            assert_all_rejected_differently(getattr(check, name), exercises[name][1])

        @pytest.mark.parametrize(
            ("name", "what"), [(name, what) for name, (*_, wrong) in exercises.items() for what in wrong]
        )
        def test_other_wrong_answers_are_rejected(self, name, what):
            result = getattr(check, name)(exercises[name][2][what])
            assert result.status == "failed" and result.hint, result

        @pytest.mark.parametrize("name", exercises)
        def test_nothing_makes_a_check_raise(self, name):
            assert_survives_everything(getattr(check, name), exercises[name][0][0])

        @pytest.mark.parametrize("name", exercises if inputs is None else inputs)
        def test_an_answer_that_overwrites_its_inputs_is_told_so(self, name):
            assert_rejects_changed_inputs(getattr(check, name), exercises[name][0][0])

        def test_every_check_of_the_chapter_is_tested(self):
            checks = {name for name, thing in vars(check).items() if hasattr(thing, "__wrapped__") and name[0] != "_"}
            assert checks == exercises.keys()

    return TestEveryExercise
