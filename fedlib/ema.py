"""The moving average that is often called a control variate, in its three readings, and its control arm.

Code and descriptions of it differ in what the average is taken of.  None of the three compares a client with
the others, as SCAFFOLD does.
"""

from dataclasses import dataclass

import torch

from fedlib.correction import Correction
from fedlib.warmstart import check_start, warm_start

READINGS = ("corrected", "raw", "global")


@dataclass(frozen=True)
class EMAControl(Correction):
    """Step with g̃ = g − c, where c is a moving average of gradients.

    "corrected": c ← c + β (g̃ − c), from the client's own steps.  For a constant g this is
    c = (g/2) (1 − (1 − 2β)^t), so steps shrink to half their length.
    "raw": c ← c + β (g − c).  That is FedProx with μ = β / lr: if c = −μ (θ − w) before a step of −lr (g − c), then
    c + β (g − c) is −μ times the new θ − w.
    "global": c is the server's, c ← c + β (mean of all clients' mean gradients − c) after each round.  If all
    clients take part with equal H, it is −β (w − w⁰) / (H lr): a pull toward the *initial* model.

    Parameters
    ----------
    beta : float
        Share β of the newest gradient, in (0, 1).
    reading : {"corrected", "raw", "global"}
    kept : bool
        Go on from the same c in the client's next round instead of from zero.
    start : {"zero", "own", "mean", "shared"}
        Every client's first c if it is kept, see ``warmstart.warm_start``.
    refresh_every : int
        Change c only after every so many-th local step of a round, the first one included.
    """

    beta: float
    reading: str = "corrected"
    kept: bool = False
    start: str = "zero"
    refresh_every: int = 1
    rowwise = True

    def __post_init__(self):
        _check_beta(self.beta)
        if self.reading not in READINGS:
            raise ValueError(f"reading must be one of {', '.join(READINGS)}, got {self.reading!r}")
        check_start(self.start)
        if not (isinstance(self.refresh_every, int) and self.refresh_every >= 1):
            raise ValueError(f"refresh_every must be an integer of at least 1, got {self.refresh_every!r}")
        if self.reading == "global" and (self.kept or self.refresh_every > 1):
            raise ValueError('in the "global" reading c is the server\'s: leave kept and refresh_every alone')
        if self.start != "zero" and not self.kept and self.reading != "global":
            raise ValueError(f"start={self.start!r} needs kept=True: otherwise every round starts from zero")

    @property
    def plain_steps_only(self):
        """Only in the global reading are gradients inferred from lr times the number of steps."""
        return self.reading == "global"

    def row_size(self, layout):
        return layout.size if self.kept else 0

    def prepare(self, ctx, w):
        c, rows = warm_start(self.start, ctx, w)
        return ({"c": c}, {}) if self.reading == "global" else ({}, rows)

    def begin(self, ctx, server, row, w):
        c = server["c"] if self.reading == "global" else torch.zeros_like(w) if row is None else row
        return w, {"c": c, "step": 0}

    def correct(self, grad, theta, carry):
        corrected = grad - carry["c"]
        if self.reading != "global" and carry["step"] % self.refresh_every == 0:
            carry["c"] = carry["c"].lerp(grad if self.reading == "raw" else corrected, self.beta)
        carry["step"] += 1
        return corrected

    def end(self, ctx, carry, result):
        message = {"delta": result.delta}
        if self.reading == "global":
            message["length"] = torch.tensor([result.steps * result.lr], device=result.delta.device)
        return message

    def keep(self, carry, sent):
        return carry["c"]  # with a row size of 0 there is nowhere to keep it

    def commit(self, ctx, server, messages):
        if self.reading != "global":
            return server
        weights, c = ctx.weights[ctx.clients], server["c"].clone()
        # A client moved by −lr H (mean gradient − c), which gives the distance that c has to go.
        for p, missing in zip(weights / weights.sum(), -messages["delta"] / messages["length"]):
            c.add_(missing, alpha=self.beta * float(p))
        return {"c": c}

    def describe(self, server, carries):
        norms = [float(torch.linalg.vector_norm(carry["c"], dtype=torch.float64)) for carry in carries]
        return {"c_k_norms": norms}


@dataclass(frozen=True)
class MatchedRate(Correction):
    """FedAvg whose t-th local step has the learning rate that ``EMAControl(beta)`` has there if g is constant.

    That is lr (1 + (1 − 2β)^t) / 2.  The control arm: what it does as well needs no control variate.
    """

    beta: float
    rowwise = True

    def __post_init__(self):
        _check_beta(self.beta)

    def begin(self, ctx, server, row, w):
        return w, {"rate": 1.0}

    def correct(self, grad, theta, carry):
        factor = (1 + carry["rate"]) / 2
        carry["rate"] *= 1 - 2 * self.beta
        return grad.mul_(factor)


def _check_beta(beta):
    if not 0 < beta < 1:
        raise ValueError(f"beta must lie between 0 and 1, got {beta}")
