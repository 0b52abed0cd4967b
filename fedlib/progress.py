"""Progress bars that show in a terminal or a live notebook and stay out of the built book."""

import os
import sys


def progress(iterable, description, total=None):
    """Yield the items of ``iterable`` under a progress bar.

    Parameters
    ----------
    iterable : iterable
        For example ``range(rounds)``.
    description : str
        What is being counted, shown before the bar.
    total : int, optional
        Number of items, where the iterable does not know it.

    Returns
    -------
    iterable
        The same items.  The bar is silent where ``FEDLIB_PROGRESS=0`` (the book's build sets it) and where
        the output is neither a terminal nor a notebook, such as a log file.
    """
    if os.environ.get("FEDLIB_PROGRESS") == "0" or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return iterable
    from tqdm.auto import tqdm

    return tqdm(iterable, desc=description, total=total, leave=False)
