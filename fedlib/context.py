"""What a replaceable part may know about the round it works in."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fedlib import rng
from fedlib.flat import Layout


def _nothing(client):
    return None


@dataclass(frozen=True)
class Context:
    """The facts of one round, handed to every part.

    Attributes
    ----------
    t : int
        Round, from 0.
    seed : int
        Seed of the run.
    drawn : array, shape [m], int
        Clients drawn this round, in increasing order.
    clients : array, shape [K], int
        Those of them whose message is used (K ≤ m); before messages exist, the same as ``drawn``.
    weights : array, shape [N], float64
        The objective's weights p of *all* registered clients.
    layout : Layout
        Names and places of the parameters in the flat vector.
    full_gradient : callable
        ``full_gradient(k, w)`` → gradient of client k's mean loss f_k at w, shape ``[d]``.
    client : int, optional
        The client whose half of a part is running; None on the server.
    w : tensor, shape [d], optional
        The server's model at the start of the round; None before round 0, where a part is handed it.
    steps : array, shape [K], int, optional
        Local steps that each of ``clients`` took, counted; None before they trained.
    vectors : tuple of str
        Names of the vectors in a message that have shape ``[d]``.
    tracked : tuple of str
        Those of them that are changes to what the server already holds, see ``Correction``.
    last : callable
        ``last(k)`` → the last delta that arrived from client k before this round, shape ``[d]``; None if there is none, or
        if the aggregator is not one that remembers.
    """

    t: int
    seed: int
    drawn: np.ndarray
    clients: np.ndarray
    weights: np.ndarray
    layout: Layout
    full_gradient: Callable
    client: int | None = None
    w: torch.Tensor | None = None
    steps: np.ndarray | None = None
    vectors: tuple = ("delta",)
    tracked: tuple = ()
    last: Callable = _nothing

    @property
    def num_clients(self):
        """Number of registered clients N."""
        return len(self.weights)

    def stream(self, purpose):
        """Return this round's random generator for ``purpose``, one of its own for each client."""
        ids = (self.t,) if self.client is None else (self.t, self.client)
        return rng.stream(self.seed, purpose, *ids)
