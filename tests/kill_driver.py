"""Kill a recorded run at many moments and continue it; run as a script by ``test_experiment.py``.

``python kill_driver.py FOLDER`` prints one JSON object. Each run happens in a forked child, which is killed
either by itself at its n-th write to the file system, or by its parent after a random time. The method keeps rows of both
kinds, control variates and what compressed messages left out; the killed runs have two workers, the whole one has one.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from two_clients import Scaffold, half_squares, task_from

from fedlib.compress import Quantize
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.selection import Uniform
from fedlib.server import ServerSGD
from fedlib.upload import ErrorFeedback

ROUNDS = 5


def play(folder, rounds=ROUNDS, workers=2):
    rng = np.random.default_rng(0)
    task = task_from(rng.normal(size=(5, 40)), rng.normal(size=(5, 40)), [3, 1, 2, 4, 2], half_squares)
    local = LocalSGD(lr=0.05, epochs=2, batch_size=1, correction=Scaffold(warm=True))
    upload = ErrorFeedback(Quantize(8, "stochastic"))
    method = Federation(local, upload=upload, select=Uniform(2), step=ServerSGD(0.5))
    return run(task, method, rounds, seed=3, record=folder, workers=workers)


def child(action):
    """Run ``action`` in a forked child; return its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


def die_at_operation(n, folder):
    """Run, but die by SIGKILL just before the n-th operation on the file system."""
    count = 0

    def watch(owner, name):
        original = getattr(owner, name)

        def watched(*args, **kwargs):
            nonlocal count
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, name, watched)

    for name in ("replace", "fsync", "rename"):
        watch(os, name)
    from fedlib.record import Record
    from fedlib.store import ClientStore

    watch(ClientStore, "write")
    watch(ClientStore, "commit")
    watch(Record, "append")
    play(folder)


def content(folder):
    files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    files.pop("config.json")  # holds the command
    files.pop("checkpoint.npz")  # a zip archive holds the time of day; its arrays are compared instead
    with np.load(Path(folder, "checkpoint.npz")) as archive:
        arrays = {name: archive[name].tolist() for name in archive.files}
    rows = {name: data for name, data in files.items() if name.startswith("rows")}
    return files["rounds.jsonl"], arrays["w"], arrays["server.c"], arrays["lines_sha256"], sorted(rows)


def main(root):
    torch.set_num_threads(1)
    root = Path(root)
    whole = play(root / "whole", workers=1)
    expected = content(root / "whole")
    outcomes, random_kills = [], random.Random(0)

    operations = 0
    while True:  # until a run survives because it has fewer operations than n
        operations += 1
        folder = root / f"operation-{operations}"
        _, status = os.waitpid(child(lambda n=operations, f=folder: die_at_operation(n, f)), 0)
        if not os.WIFSIGNALED(status):
            break
        outcomes.append((play(folder).sha256 == whole.sha256, content(folder) == expected))

    start = time.perf_counter()
    play(root / "timed")
    duration, interrupted = time.perf_counter() - start, 0
    for i in range(12):
        folder = root / f"random-{i}"
        for _ in range(2):  # the continued run is killed as well
            pid = child(lambda f=folder: play(f))
            time.sleep(random_kills.uniform(0, duration))
            os.kill(pid, signal.SIGKILL)
            interrupted += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        outcomes.append((play(folder).sha256 == whole.sha256, content(folder) == expected))

    print(json.dumps({"operations": operations, "interrupted": interrupted, "outcomes": outcomes}))


if __name__ == "__main__":
    main(sys.argv[1])
