"""How a check runs an answer: any container in, any container out, and never an exception."""

import copy
import dis
import functools
import inspect
import sys
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Result:
    """What a check found; a notebook shows it as a sentence.

    Attributes
    ----------
    exercise : str
    status : {"passed", "failed", "not done"}
    properties : tuple of str
        The properties that hold; for a failure those tested before the broken one.
    broken : str
        The property that does not hold, or "".
    hint : str
        Why that usually happens, or "".
    """

    exercise: str
    status: str
    properties: tuple = ()
    broken: str = ""
    hint: str = ""

    @property
    def passed(self):
        return self.status == "passed"

    def __repr__(self):
        if self.status == "not done":
            return f"○ {self.exercise}: not done yet. Replace the three dots in the cell above and run both cells again."
        if self.passed:
            return f"✓ {self.exercise}: every property holds: {'; '.join(self.properties)}."
        return f"✗ {self.exercise}. Property that broke: {self.broken}.\n  Hint: {self.hint}"

    def _repr_markdown_(self):
        if self.status == "failed":
            return f"✗ **{self.exercise}**. Property that broke: *{self.broken}*.\n\n**Hint:** {self.hint}"
        return repr(self).replace(self.exercise, f"**{self.exercise}**", 1)


ROUNDED = "(Your numbers look rounded: return them as they are.)"


class _Failed(Exception):
    pass


class _NotDone(Exception):
    pass


def exercise(title):
    """Turn a function that tests an ``Answer`` into a check that a notebook can call."""

    def decorate(test):
        @functools.wraps(test)
        def check(function):
            answer = Answer(function)
            try:
                test(answer)
            except _NotDone:
                return Result(title, "not done")
            except _Failed as failure:
                return Result(title, "failed", tuple(answer.properties), *failure.args)
            except (Exception, SystemExit) as raised:  # by what the answer returned, not by the answer
                broken, hint = "the result can be worked with", f"Looking at your result raised {_said(raised)}"
                return Result(title, "failed", tuple(answer.properties), broken, hint)
            return Result(title, "passed", tuple(answer.properties))

        return check

    return decorate


class Answer:
    """A reader's function, called with copies of NumPy arrays, or of lists or torch tensors if it wants those.

    A check may set ``undefined``, the hint for a result that is no real number, and ``in_place``, hints for
    the arguments of which a change deserves its own words, by their position.
    """

    def __init__(self, function):
        self.function = function
        self.properties = []
        self.answered = False
        self.tolerance = 1e-6
        self.rounded = False  # whether the last result looks like it
        self.undefined = "Look for a division by zero, an overflow or the root of a negative number."
        self.in_place = {}
        self._prepare = _numpy  # how this answer likes its inputs; found out by trying

    def __call__(self, *args):
        """Call the function; fail the check if it raises or changes its inputs, stop it if it is a stub."""
        if not callable(self.function):
            raise _Failed("the answer is a function", f"Pass the function itself, not {type(self.function).__name__}.")
        errors = []
        ways = [self._prepare, *(way for way in _ways() if way is not self._prepare)]
        for prepare in ways:
            try:
                handed = prepare(args)
                held = [_held(value) for value in handed]
                with np.errstate(all="ignore"):
                    value = self.function(*handed)
            except (Exception, SystemExit) as error:
                if type(error) is not SystemExit and isinstance(error, SystemExit):
                    raise  # a check ends the thread of an answer with one of its own
                errors.append(error)
                continue
            self._prepare = prepare
            if value is Ellipsis and not self.answered or value is None and self._is_stub():
                raise _NotDone
            if value is None or value is Ellipsis:
                raise _Failed(
                    "every input gets an answer",
                    f"Your function returned {value}: is a `return` missing, or a case not covered?",
                )
            self.answered = True
            self._expect_untouched(args, handed, held)
            return value
        if isinstance(errors[0], NotImplementedError) and self._is_stub():
            raise _NotDone
        hint = f"Your function raised {_said(errors[0])}"
        if isinstance(errors[0], ValueError) and any(word in hint for word in ("math domain", "nonnegative")):
            hint = f"{hint}. {self.undefined}"
        raise _Failed("runs without an error", hint)

    def _is_stub(self):
        """Whether nothing is in the body but a docstring and ``...``, ``pass`` or NotImplementedError."""
        if self.answered:
            return False
        try:
            function = inspect.unwrap(self.function)
            while isinstance(function, functools.partial):
                function = inspect.unwrap(function.func)
            code = function.__code__
            # Whatever does something needs a name, and a body without any cannot depend on its arguments.
            named = set(code.co_names) - {"NotImplementedError"} or code.co_freevars or code.co_cellvars
            return not named and not any("_FAST" in step.opname for step in dis.get_instructions(code))
        except Exception:
            return True  # not written in Python: nothing returned is all that is known

    def _expect_untouched(self, args, handed, held):
        """Fail the check if the function changed an array that it was given, or the length of a list."""
        if self._prepare is _lists or not any(held):
            return
        for i, (arg, value, parts) in enumerate(zip(self._prepare(args), handed, held, strict=True)):
            self.expect(
                _length(arg) == _length(value) and all(map(_equal, _held(arg), parts)),
                "your inputs are left as they are",
                self.in_place.get(i)
                or f"You changed {self._name(i)} in place, with something like `+=`, `w[:] = …` or `.sort()`, and "
                "the caller still needs it as it was: work on a copy, or make a new array.",
            )

    def _name(self, i):
        try:
            return f"`{list(inspect.signature(self.function).parameters)[i]}`"
        except Exception:
            return f"argument {i + 1}"

    def array(self, value, shape, what="the result", wanted=""):
        """Return a result as float64 of the given shape, or fail with what it is and what is wanted."""
        try:
            array = value.detach().cpu().numpy() if callable(getattr(value, "detach", None)) else value
            array = np.asarray(array)
            if np.iscomplexobj(array):
                raise _Failed(f"{what} is made of real numbers", f"Got complex numbers. {self.undefined}")
            if array.dtype.kind not in "biufO" or array.dtype.kind == "O" and not all(map(_numeric, array.flat)):
                raise TypeError  # "1.73" and a date could be read as a number
            numbers = array.astype(float)
        except _Failed:
            raise
        except Exception:
            hint = f"Got {_shown(value)}. {wanted}".strip()
            raise _Failed(f"{what} is made of numbers", hint) from None
        if array.dtype in (np.float32, np.float16):
            self.tolerance = 2e-4
        elif _looks_single(numbers):
            self.tolerance = max(self.tolerance, 1e-5)
        self.rounded = np.array_equal(numbers, numbers.round(6)) and not np.array_equal(numbers, numbers.round(2))
        value = numbers
        if value.shape != shape and value.size == 1 and shape == ():
            value = value.reshape(())
        if value.shape != shape:
            hint = f"Expected {'one number' if shape == () else f'shape {shape}'}, got an array of shape {value.shape}."
            raise _Failed(f"{what} has the right shape", f"{hint} {wanted}".strip())
        if not np.isfinite(value).all():
            raise _Failed(f"{what} is finite", f"Got {value}. {self.undefined}")
        return value

    def pair(self, value, description, hint):
        """Return the two parts of a result, or fail with the hint."""
        try:
            first, second = value
        except Exception:
            raise _Failed(description, hint) from None
        return first, second

    def close(self, got, wanted):
        """Say whether two results agree, to the precision the answer computes in."""
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        return bool(np.all(np.abs(np.asarray(got) - wanted) <= self.tolerance * scale))

    def expect(self, holds, description, hint):
        """Record a property that holds, or fail the check with the hint."""
        if not holds:
            raise _Failed(description, f"{hint} {ROUNDED}" if self.rounded else hint)
        if description not in self.properties:
            self.properties.append(description)


def _said(error):
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _shown(value):
    try:
        return f"{type(value).__name__}: {value!r:.80}"
    except Exception:
        return type(value).__name__


def _numeric(value):
    return hasattr(value, "__float__") and not isinstance(value, (str, bytes, np.datetime64, np.timedelta64))


def _looks_single(numbers):
    # float(x), x.item() and x.tolist() hide the type, but not that the last 29 bits are 0 in every number.
    with np.errstate(all="ignore"):
        return np.array_equal(numbers, np.float32(numbers)) and not np.array_equal(numbers, np.float16(numbers))


def _held(value):
    """Return the arrays and tensors in a value, the very ones."""
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _held(item)]
    return [value] if isinstance(value, np.ndarray) or hasattr(value, "detach") else []


def _length(value):
    # Of lists only: a changed length means that items were added or taken away.
    return [len(value), *map(_length, value)] if isinstance(value, (list, tuple)) else 0


def _equal(before, after):
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after)
    return before.shape == after.shape and bool((before == after).all())


def _ways():
    return [_numpy, _lists] + ([_tensors, _single_tensors] if "torch" in sys.modules else [])


def _numpy(value):
    return copy.deepcopy(value)


def _lists(value):
    return _map(value, lambda array: array.tolist())


def _tensors(value):
    torch = sys.modules["torch"]
    return _map(value, lambda array: torch.from_numpy(array.copy()))


def _single_tensors(value):
    # torch.dot and @ refuse mixed precisions, and what torch makes of integers is in single precision.
    torch = sys.modules["torch"]
    return _map(_tensors(value), lambda tensor: tensor.float() if tensor.dtype == torch.float64 else tensor)


def _map(value, convert):
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        return convert(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, convert) for item in value)
    return value
