"""The course's three networks, from one layer to a million parameters.

Each builder takes the shape of one sample and the number of classes *from the task's configuration*.
Neither is ever inferred from a client's labels: a client that owns only cats would build a one-class
network. None of them uses BatchNorm, whose running statistics are not parameters and do not average well
over clients.
"""

import math

import torch
from torch import nn

from fedlib.flat import FlatModel
from fedlib.rng import stream


def logistic(input_shape, num_classes):
    """Return multinomial logistic regression: one linear layer on the flattened sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(input_shape, num_classes, hidden=16):
    """Return a network with one hidden layer of ``hidden`` ReLU units (8-16-4 in the course)."""
    features = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


class _CNN(nn.Module):
    def __init__(self, channels, pixels, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(64 * pixels // 16, 256)
        self.fc2 = nn.Linear(256, num_classes)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        # Pooling before the ReLU gives the same result (both are monotone) on a quarter of the entries.
        x = self.pool(self.conv1(x)).relu()
        x = self.pool(self.conv2(x)).relu()
        return self.fc2(self.fc1(x.flatten(1)).relu())


def cnn(input_shape, num_classes):
    """Return the course's CNN: conv 3→32, pool, conv 32→64, pool, fc 4096→256, fc 256→10.

    The convolutions are 3×3 with padding 1, the pools 2×2.  With 3×32×32 pictures and 10 classes it has
    1,070,794 parameters, of which ``fc1`` alone holds 98 %.

    Raises
    ------
    ValueError
        If the pictures are not channels × height × width with sides divisible by 4.
    """
    if len(input_shape) != 3 or input_shape[1] % 4 or input_shape[2] % 4:
        raise ValueError(
            f"cnn needs pictures (channels, height, width) with sides divisible by 4, got {input_shape}"
        )
    return _CNN(input_shape[0], input_shape[1] * input_shape[2], num_classes)


def build(model, input_shape, num_classes, seed, device="cpu"):
    """Return ``model(input_shape, num_classes)`` as a ``FlatModel``, initialized from ``seed`` alone.

    PyTorch initializes layers from its global random generator.  It is set for the moment of building and put
    back afterwards, so neither what ran before nor what runs later is affected.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "init").integers(2**63)))
        module = model(tuple(input_shape), num_classes)
    return FlatModel(module.to(device))
