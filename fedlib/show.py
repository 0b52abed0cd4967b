"""Show the library's own, tested code and measured sentences in a page."""

import ast
import inspect
import textwrap

from IPython.display import Markdown, display


def source(*functions):
    """Show the source of functions or classes as the library runs it, without their docstrings.

    Parameters
    ----------
    *functions : function or class
        All defined in ``fedlib``; anything else is not tested code and is refused.

    Raises
    ------
    ValueError
        For an object from elsewhere, or without any.
    """
    if not functions:
        raise ValueError("nothing to show: name at least one function or class of fedlib")
    for function in functions:
        if not getattr(function, "__module__", "").startswith("fedlib."):
            raise ValueError(f"{function!r} is not defined in fedlib, so no test stands behind it")
    code = "\n\n\n".join(without_docstring(function) for function in functions)
    files = sorted({function.__module__.replace(".", "/") + ".py" for function in functions})
    text(f"From `{'`, `'.join(files)}`:\n\n```python\n{code}\n```")


def without_docstring(function):
    """Return the source of a function or class with its own docstring left out."""
    code = textwrap.dedent(inspect.getsource(function))
    body = ast.parse(code).body[0].body
    if ast.get_docstring(ast.parse(code).body[0]) is None:
        return code.rstrip()
    lines = code.splitlines()
    del lines[body[0].lineno - 1 : body[0].end_lineno]
    return "\n".join(lines).rstrip()


def text(markdown):
    """Show Markdown, usually a sentence whose numbers were just computed."""
    display(Markdown(markdown))


def table(frame, digits=4):
    """Show a pandas table as Markdown, numbers rounded to ``digits``.

    Parameters
    ----------
    frame : pandas.DataFrame
        Its index becomes the first column.
    digits : int
    """
    header = [frame.index.name or "", *map(str, frame.columns)]
    # Row by row, not frame.values: that would turn whole numbers beside decimals into decimals.
    rows = [[str(index), *(_cell(value, digits) for value in row)] for index, *row in frame.itertuples()]
    alignment = [":--" if _is_text(column) else "--:" for column in zip(*rows, strict=True)]
    text("\n".join("| " + " | ".join(cells) + " |" for cells in [header, alignment, *rows]))


def _is_text(cells):
    return any(cell[:1].isalpha() for cell in cells)


def _cell(value, digits):
    if value is None or value != value:  # NaN is the value that differs from itself
        return "–"
    if isinstance(value, float):
        rounded = f"{value:.{digits}f}"
        return rounded.removeprefix("-") if float(rounded) == 0 else rounded
    return str(value).replace("|", "\\|").replace("\n", " ")
