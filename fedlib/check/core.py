"""How a check runs an answer: any container in, any container out, and never an exception."""

import copy
import functools
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
            return f"○ {self.exercise}: not done yet. Replace the ... in the cell above and run both cells again."
        if self.passed:
            return f"✓ {self.exercise}: every property holds: {'; '.join(self.properties)}."
        return f"✗ {self.exercise}. Property that broke: {self.broken}.\n  Hint: {self.hint}"

    def _repr_markdown_(self):
        if self.status == "failed":
            return f"✗ **{self.exercise}**. Property that broke: *{self.broken}*.\n\n**Hint:** {self.hint}"
        return repr(self).replace(self.exercise, f"**{self.exercise}**", 1)


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
            return Result(title, "passed", tuple(answer.properties))

        return check

    return decorate


class Answer:
    """A reader's function, called with copies of NumPy arrays, or of lists or torch tensors if it wants those."""

    def __init__(self, function):
        self.function = function
        self.properties = []
        self.answered = False
        self.single_precision = False
        self._prepare = _numpy  # how this answer likes its inputs; found out by trying

    def __call__(self, *args):
        """Call the function; fail the check if it raises, stop it if it is a stub."""
        if not callable(self.function):
            raise _Failed("the answer is a function", f"Pass the function itself, not {type(self.function).__name__}.")
        errors = []
        ways = [self._prepare, *(way for way in _ways() if way is not self._prepare)]
        for prepare in ways:
            try:
                with np.errstate(all="ignore"):
                    value = self.function(*prepare(args))
            except Exception as error:
                errors.append(error)
                continue
            self._prepare = prepare
            if value is None or value is Ellipsis:
                if not self.answered:
                    raise _NotDone
                raise _Failed("every input gets an answer", "For one input your function returned nothing.")
            self.answered = True
            return value
        raise _Failed("runs without an error", f"Your function raised {type(errors[0]).__name__}: {errors[0]}")

    def array(self, value, shape, what="the result"):
        """Return a result as float64 of the given shape, or fail with the shape it has."""
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        try:
            value = np.asarray(value)
            if np.iscomplexobj(value):
                raise TypeError
            self.single_precision |= value.dtype in (np.float32, np.float16)
            value = value.astype(float)
        except (TypeError, ValueError):
            raise _Failed(f"{what} is made of numbers", f"Got {type(value).__name__}: {value!r:.80}") from None
        if value.shape != shape and value.size == 1 and shape == ():
            value = value.reshape(())
        if value.shape != shape:
            wanted = "one number" if shape == () else f"shape {shape}"
            raise _Failed(f"{what} has the right shape", f"Expected {wanted}, got an array of shape {value.shape}.")
        if not np.isfinite(value).all():
            raise _Failed(f"{what} is finite", f"Got {value}. Look for a division by zero or an overflow.")
        return value

    def pair(self, value, description, hint):
        """Return the two parts of a result, or fail with the hint."""
        try:
            first, second = value
        except (TypeError, ValueError):
            raise _Failed(description, hint) from None
        return first, second

    def close(self, got, wanted):
        """Say whether two results agree, to the precision the answer computes in."""
        # Single precision can hide: float(x), x.item() and a quotient of integer tensors do not show it.
        tolerance = 2e-4 if self.single_precision else 1e-5
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        return bool(np.all(np.abs(np.asarray(got) - wanted) <= tolerance * scale))

    def expect(self, holds, description, hint):
        """Record a property that holds, or fail the check with the hint."""
        if not holds:
            raise _Failed(description, hint)
        if description not in self.properties:
            self.properties.append(description)


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
