"""Run the experiments whose results the chapters load, and commit what they leave: records.py [NAME ...].

A finished run is a JSON file in fedlib/records/ and is not repeated; an unfinished one continues where it stopped.
Several of these processes may run side by side, one a core: each takes the next run that no other is working on.
Names, or parts of them, restrict what is run.
"""

import contextlib
import fcntl
import importlib
import json
import sys
from pathlib import Path

import experiments

RECORDS, WORK = Path("fedlib/records"), Path("runs")
MODULES = sorted(path.stem for path in Path(experiments.__file__).parent.glob("chapter*.py"))


@contextlib.contextmanager
def alone(name):
    """Yield whether no other process is working on ``name``, and keep others from it meanwhile."""
    folder = WORK / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def play(job):
    """Play a run, or what is left of it, and return its history; None if another process is working on it."""
    with alone(job.name) as ours:
        if not ours:
            return None
        task, method = job.build()
        return job.play(task, method, job.rounds, seed=job.seed, record=WORK / job.name)


def save_group(path, jobs, histories):
    """Write one file for many runs: their settings, and what was measured of each."""
    lines = []
    for job, history in zip(jobs, histories):
        measured = job.summary(history) if job.summary else _series(history, job.measured)
        lines.append({**job.settings, "sha256": history.sha256, **_rounded(measured)})
    config = histories[0].config
    content = {"environment": config["environment"], "data": config["task"]["data"]["name"], "runs": lines}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, allow_nan=False))


def _series(history, names):
    return {name: [line.get(name) for line in history.rounds] for name in names}


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return None if value is None else float(f"{value:.5g}")


def main(*names):
    def wanted(name):
        return not (RECORDS / f"{name}.json").exists() and (not names or any(part in name for part in names))

    for module in map(importlib.import_module, (f"experiments.{name}" for name in MODULES)):
        for job in module.runs():
            if wanted(job.name) and (history := play(job)):
                path = RECORDS / f"{job.name}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                history.save(path)
                print(path, flush=True)
        for name, jobs in module.groups():
            if not wanted(name):
                continue
            for job in jobs:
                play(job)
            if all(histories := [play(job) for job in jobs]):  # what other processes played meanwhile is there now
                save_group(RECORDS / f"{name}.json", jobs, histories)
                print(RECORDS / f"{name}.json", flush=True)
        for name, make in getattr(module, "tables", list)():
            with alone(name) as ours:
                if ours and wanted(name):
                    path = RECORDS / f"{name}.json"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(make(), allow_nan=False))
                    print(path, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
