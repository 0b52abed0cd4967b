"""From an empty process to the end of the first round: first_round.py bare|fedlib WORKERS; prints peak memory in MiB.

100 clients with 50 pictures each (noise), ten a round, one local epoch, batches of 32, the CNN.
"""

import resource
import sys
from pathlib import Path

import numpy as np
import torch

NUM_CLIENTS, SIZE, DRAWN = 100, 50, 10


def pictures():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_CLIENTS * SIZE, 32, 32, 3, generator=generator).permute(0, 3, 1, 2)
    return x, torch.randint(0, 10, (NUM_CLIENTS * SIZE,), generator=generator)


def bare(workers):
    from bare_loop import fedavg
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
            self.fc1, self.fc2, self.pool = nn.Linear(4096, 256), nn.Linear(256, 10), nn.MaxPool2d(2)

        def forward(self, x):
            x = self.pool(self.conv2(self.pool(self.conv1(x)).relu())).relu()
            return self.fc2(self.fc1(x.flatten(1)).relu())

    torch.set_num_threads(1)
    x, y = pictures()
    clients = np.split(np.arange(len(y)), NUM_CLIENTS)
    module = Network().to(memory_format=torch.channels_last)
    fedavg(module, x, y, clients, DRAWN, 1, 0.02, 32, 0, workers)


def fedlib(workers):
    from fedlib import models, partition
    from fedlib.data import Dataset
    from fedlib.experiment import run
    from fedlib.federation import Federation
    from fedlib.local import LocalSGD
    from fedlib.selection import Uniform
    from fedlib.task import Task

    x, y = pictures()
    task = Task(models.cnn, Dataset("noise", x, y, x[:10], y[:10], 10), partition.iid(num_clients=NUM_CLIENTS))
    run(task, Federation(LocalSGD(lr=0.02), select=Uniform(DRAWN)), 1, evaluate_every=0, workers=workers)


def peak_memory():
    """Return this process's peak memory in MiB.

    Linux lets the ``resource`` module count the peak of the process that started this one as well.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return float(next(line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line)) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    {"bare": bare, "fedlib": fedlib}[sys.argv[1]](int(sys.argv[2]))
    print(peak_memory())
