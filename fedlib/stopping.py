"""Early stopping on the client: train while the loss on own samples that were set aside still falls."""

import operator
from dataclasses import dataclass

from fedlib import rng
from fedlib.evaluate import outputs


@dataclass(frozen=True)
class EarlyStopping:
    """A client sets samples aside, looks at their loss after each local epoch, and stops when it no longer falls.

    The samples set aside are the same in every round, or each of them would soon have been trained on.  What is sent is
    the model at which the client stopped, not the best one before it: steps and delta have to belong together.  Weights
    p_k, and gradients that a correction asks for, remain those of all of the client's samples.  A client with a single
    sample has nothing to set aside and trains all of its epochs.

    Parameters
    ----------
    share : float
        Of the client's samples that are set aside, in (0, 1); at least one sample, and never all.
    patience : int
        Epochs in a row without a new lowest loss after which the client stops.
    """

    share: float = 0.2
    patience: int = 1

    def __post_init__(self):
        if not 0 < self.share < 1:
            raise ValueError(f"share of the samples set aside must lie in (0, 1), got {self.share}")
        try:
            patience = operator.index(self.patience)
        except TypeError:
            raise TypeError(f"patience is a number of epochs, got {self.patience!r}") from None
        if patience < 1:
            raise ValueError(f"patience must be at least 1 epoch, got {patience}")

    def split(self, indices, seed, client):
        """Return the positions to train on and those set aside, two arrays; the same ones in every round."""
        n = len(indices)
        aside = min(max(1, round(self.share * n)), n - 1)
        order = rng.stream(seed, "holdout", client).permutation(indices)
        return order[aside:], order[:aside]

    def watch(self, batches, epochs, task, model, aside):
        """Yield ``batches``, those of all ``epochs`` in order, until the loss of ``model`` on ``aside`` stops falling.

        Whoever takes the batches trains ``model`` meanwhile.
        """
        an_epoch = len(batches) // epochs
        x, y = task.data.train_x[aside], task.data.train_y[aside]
        lowest, waited = float("inf"), 0
        for epoch in range(epochs):
            yield from batches[epoch * an_epoch : (epoch + 1) * an_epoch]
            loss = float(task.loss(outputs(model, model.theta, x), y))
            lowest, waited = (loss, 0) if loss < lowest else (lowest, waited + 1)
            if waited == self.patience:
                return
