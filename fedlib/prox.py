"""FedProx: a client is pulled back toward the model that it received."""

import math
from dataclasses import dataclass

from fedlib.correction import Correction


@dataclass(frozen=True)
class FedProx(Correction):
    """Add the gradient of μ/2 ‖θ − w‖² to every gradient (Li et al. 2020, algorithm 2, with explicit steps).

    Near a minimizer with curvature L the steps converge only while lr (μ + L) < 2.  L is not known to
    anybody, but lr μ ≥ 2 is hopeless whatever it is, and is refused.

    Parameters
    ----------
    mu : float
        Strength of the pull, ≥ 0; 0 is FedAvg.
    """

    mu: float
    rowwise = True

    def __post_init__(self):
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise ValueError(f"mu must be finite and at least 0, got {self.mu}")

    def check(self, local):
        if local.lr * self.mu >= 2:
            raise ValueError(
                f"lr={local.lr} times mu={self.mu} is {local.lr * self.mu:g}: from 2 on every step overshoots the "
                "point it is pulled to by more than it was away. Use a smaller lr or a smaller mu"
            )

    def begin(self, ctx, server, row, w):
        return w, {"w": w}

    def correct(self, grad, theta, carry):
        return grad.add_(theta - carry["w"], alpha=self.mu)
