"""Part 5 of a round: how the server applies the update."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSGD:
    """w ← w + lr · update.  With lr = 1 this is FedAvg: the new model is the mean of the clients' models."""

    lr: float = 1.0

    def prepare(self, w):
        """Return the state (named tensors) that the server keeps for its steps, for example a momentum."""
        return {}

    def step(self, state, w, update):
        """Return the new ``w`` (shape ``[d]``, a new tensor) and the new state."""
        return w.add(update, alpha=self.lr), state
