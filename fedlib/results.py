"""Results that are shipped with the library, so that a chapter can show runs which take too long to repeat.

``make records`` makes them; each names its command, versions, data source and device.
"""

import json
from importlib.resources import files

from fedlib.experiment import History


def runs(name):
    """Return the committed runs of one experiment, one ``History`` a seed, in the order of their seeds.

    Parameters
    ----------
    name : str
        Folder and name, such as ``"chapter04/iid"``.

    Raises
    ------
    ValueError
        If there is no such result.
    """
    folder, _, name = name.rpartition("/")
    found = [path for path in _folder(folder) if path.name.startswith(f"{name}-seed")]
    if not found:
        known = sorted({path.name.rsplit("-seed", 1)[0] for path in _folder(folder)})
        raise ValueError(f"no committed runs of {name!r} in {folder!r}: there are {known}")
    histories = [History(**json.loads(path.read_text())) for path in found]
    return sorted(histories, key=lambda history: history.config["seed"])


def group(name):
    """Return a committed file of many small runs (``environment``, ``data``, ``runs``) or of an experiment that is no run."""
    folder, _, name = name.rpartition("/")
    for path in _folder(folder):
        if path.name == f"{name}.json":
            return json.loads(path.read_text())
    raise ValueError(f"no committed group {name!r} in {folder!r}: there are {sorted(p.name for p in _folder(folder))}")


def _folder(name):
    folder = files("fedlib") / "records" / name
    return list(folder.iterdir()) if folder.is_dir() else []
