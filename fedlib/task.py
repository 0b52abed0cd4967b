"""A task: what is to be learned, from which data, and who owns which samples."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch.nn.functional as F

from fedlib import models
from fedlib.data import Dataset


@dataclass(frozen=True)
class Task:
    """A model, a data set, and its partition over clients.

    Parameters
    ----------
    model : callable
        Builder ``model(input_shape, num_classes) -> nn.Module``, for example ``models.cnn``.
    data : Dataset
        One tensor pair for training and one for testing.
    partition : callable
        ``partition(labels, features) -> list of index arrays``, for example
        ``partition.iid(num_clients=10)``.
    loss : callable
        ``loss(outputs, targets) -> scalar``, the mean over the batch.
    device : str
        Where the data and the models live.

    Attributes
    ----------
    clients : list of arrays, one a client
        ``clients[k]`` holds the positions of client k's samples in the training set.
    sizes : array, shape [N], int64
        Number of samples n_k of each client.
    weights : array, shape [N], float64
        The objective's weights p_k = n_k / n.
    """

    model: Callable
    data: Dataset
    partition: Callable
    loss: Callable = F.cross_entropy
    device: str = "cpu"
    clients: list = field(init=False, repr=False, compare=False)
    sizes: np.ndarray = field(init=False, repr=False, compare=False)
    weights: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        data = self.data.to(self.device)
        clients = self.partition(data.train_y.cpu().numpy(), data.train_x)
        sizes = np.array([len(indices) for indices in clients], dtype=np.int64)
        if sizes.sum() == 0:
            raise ValueError("no client has a single sample: there is nothing to train on")
        values = {
            "data": self.data.to(self.device),
            "clients": clients,
            "sizes": sizes,
            "weights": sizes / sizes.sum(),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def num_clients(self):
        """Number of registered clients N."""
        return len(self.clients)

    def new_model(self, seed):
        """Return a freshly initialized ``FlatModel``; equal seeds give equal parameters."""
        return models.build(self.model, self.data.input_shape, self.data.num_classes, seed, self.device)
