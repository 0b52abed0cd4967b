"""What every notebook needs before its first idea: one line about where it runs, and its scale."""

import json
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

import fedlib

SCALES = ("quick", "full")
_described = False


def setup(*packages):
    """Print one line, once a session: versions, device and data source.

    Parameters
    ----------
    *packages : str
        Distributions whose versions matter for this page, such as ``"numpy"`` and ``"scikit-learn"``.
        Naming ``"torch"`` imports it, to say which device it will use.
    """
    global _described
    if _described:
        return
    _described = True
    parts = [f"fedlib {fedlib.__version__}", f"Python {platform.python_version()}"]
    for package in packages:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} missing")
    print(" · ".join([*parts, device("torch" in packages)]))


def device(use_torch):
    """Name the device: the GPU if ``use_torch`` and there is one, else the CPU with its cores."""
    if use_torch:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    # Cores this process may use; not every system can tell, macOS for one.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU with {cores} core{'s' if cores != 1 else ''}"


def data_source():
    """Name the source of image data on this machine, without loading anything.

    Pages are re-executed when it changes.
    """
    from fedlib import data

    return data.source_name()


def images(num_train=50_000, num_test=10_000):
    """Return CIFAR-10 or its stand-in, and say on the page if it is the stand-in.

    Parameters
    ----------
    num_train, num_test : int
        Pictures of each split, at most 50,000 and 10,000.

    Returns
    -------
    fedlib.data.Dataset
    """
    from fedlib import data, show

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the banner says it better
        pictures = data.images(num_train, num_test)
    if pictures.name == data.SHAPES32:
        show.text("> **These are not the real pictures.** CIFAR-10 was not found on this machine and could not be downloaded, so this "
                  "page uses generated pictures of ten shapes instead. What it shows is the mechanism; its numbers cannot be compared "
                  "with anybody's results on CIFAR-10.")  # fmt: skip
    return pictures


def scale(name, quick, full):
    """Return the settings of one scale, so that every number that depends on it stands in one place.

    Parameters
    ----------
    name : {"quick", "full"}
        The notebook's ``SCALE`` parameter.
    quick, full : dict
        The settings, with the same keys.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        For another name, or if the two scales do not set the same things.
    """
    if name not in SCALES:
        raise ValueError(f'SCALE must be "quick" or "full", got {name!r}')
    if quick.keys() != full.keys():
        raise ValueError(f"both scales must set the same things, but only one sets {sorted(quick.keys() ^ full.keys())}")
    return quick if name == "quick" else full


def cost(chapter):
    """Return a sentence about a page's measured time and memory at each scale, from the committed record.

    Parameters
    ----------
    chapter : str
        File name of the notebook, without ``.ipynb``.

    Returns
    -------
    str
    """
    record = json.loads((files("fedlib") / "records" / "timings.json").read_text())
    measured = record["notebooks"].get(chapter)
    if not measured:
        return "Time and memory of this page have not been measured yet."
    parts = [f"{m['seconds']:.0f} s and {m['peak_mb']:.0f} MB at scale {name}" for name, m in measured.items()]
    return f"This page needs {', '.join(parts)} (measured on {record['machine']}, {record['date']})."


def on_colab():
    """Say whether this is a Colab notebook."""
    return "google.colab" in sys.modules
