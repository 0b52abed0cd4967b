"""SCAFFOLD: control variates that tell a client how its gradients differ from everybody's."""

from dataclasses import dataclass

import torch

from fedlib.correction import Correction
from fedlib.warmstart import check_start, warm_start


@dataclass(frozen=True)
class Scaffold(Correction):
    """Step with g − c_k + c, where c_k estimates ∇f_k and c estimates ∇f (Karimireddy et al. 2020, algorithm 1).

    c = Σ_k p_k c_k over *all* registered clients, with the objective's weights p: a round adds
    Σ_{drawn} p_k Δc_k.  The paper's objective has equal weights, hence its 1/N; with 1/N in place of other
    p_k the method would solve another problem.

    Parameters
    ----------
    option : {1, 2}
        How a client renews c_k.  1: the full gradient at the model it received, an extra pass over its
        samples.  2: the mean of the gradients along its steps, c_k − c − Δ_k / (H lr), which costs nothing.
    start : {"zero", "own", "mean", "shared"}
        The vectors before round 0, see ``warmstart.warm_start``.
    refresh_every : int
        Renew the vectors only in every so many-th round, and send nothing about them in the others.
    rebuild : bool
        Send H lr, one number, in place of Δc_k: the server rebuilds it as −c − Δ_k / (H lr).
    """

    option: int = 2
    start: str = "zero"
    refresh_every: int = 1
    rebuild: bool = False
    plain_steps_only = True
    rowwise = True
    tracked = ("control",)

    @property
    def vectors(self):
        return ("delta",) if self.rebuild else ("delta", "control")

    @property
    def reads_delta(self):
        return self.rebuild

    def __post_init__(self):
        if self.option not in (1, 2):
            raise ValueError(f"option must be 1 or 2, got {self.option!r}")
        check_start(self.start)
        if not (isinstance(self.refresh_every, int) and self.refresh_every >= 1):
            raise ValueError(f"refresh_every must be an integer of at least 1, got {self.refresh_every!r}")
        if self.rebuild and self.option == 1:
            raise ValueError("rebuild=True does not go with option=1: a full gradient does not follow from a delta")

    def row_size(self, layout):
        return layout.size

    def prepare(self, ctx, w):
        c, rows = warm_start(self.start, ctx, w)
        return {"c": c}, rows

    def begin(self, ctx, server, row, w):
        own = torch.zeros_like(w) if row is None else row
        return w, {"w": w, "c": server["c"], "own": own, "bias": server["c"] - own}

    def correct(self, grad, theta, carry):
        return grad.add_(carry["bias"])

    def end(self, ctx, carry, result):
        message = {"delta": result.delta}
        if ctx.t % self.refresh_every:
            return message
        length = torch.tensor([result.steps * result.lr], device=result.delta.device)
        if self.rebuild:
            return message | {"length": length}
        if self.option == 1:
            return message | {"control": ctx.full_gradient(ctx.client, carry["w"]) - carry["own"]}
        return message | {"control": control_change(carry["c"], result.delta, length)}

    def keep(self, carry, sent):
        change = change_sent(carry["c"], sent)
        if change is None:
            return None
        carry["own"] = carry["own"] + change
        return carry["own"]

    def commit(self, ctx, server, messages):
        changes = change_sent(server["c"], messages)
        if changes is None:
            return server
        c = server["c"].clone()
        for p, change in zip(ctx.weights[ctx.clients], changes):
            c.add_(change, alpha=float(p))
        return {"c": c}

    def describe(self, server, carries):
        norms = [_norm(carry["own"]) for carry in carries]
        return {"c_norm": _norm(server["c"]), "c_k_norms": norms}


def control_change(c, delta, length):
    """Return Δc_k = −c − Δ_k / (H lr), option II, for one client or, row by row, for several.

    Along its steps client k moved by Δ_k = −lr Σ (g − c_k + c), so its mean gradient, the new c_k, is
    c_k − c − Δ_k / (H lr).

    Parameters
    ----------
    c : tensor, shape [d]
        The server's control variate *during* the steps.
    delta : tensor, shape [d] or [K, d]
    length : tensor, shape [1] or [K, 1]
        H lr: steps taken times the learning rate that was used.
    """
    return -c - delta / length


def change_sent(c, message):
    """Return Δc_k from what was sent, on either side; None if this round renews nothing."""
    if "length" in message:
        return control_change(c, message["delta"], message["length"])
    return message.get("control")


def _norm(vector):
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
