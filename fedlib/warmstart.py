"""What control variates hold before the first round."""

import numpy as np
import torch

from fedlib.flat import is_finite

STARTS = ("zero", "own", "mean", "shared")


def warm_start(start, ctx, w):
    """Return the server's first c and every client's first c_k, as ``{client: row}``.

    Parameters
    ----------
    start : {"zero", "own", "mean", "shared"}
        "zero": nothing.  "own": c_k = ∇f_k(w) and c = Σ_k p_k c_k (Karimireddy et al. 2020).
        "mean": c_k = c = Σ_k p_k ∇f_k(w), the mean gradient of a first round.  "shared": c_k = c, the gradient of
        one batch that everybody has; here the samples of the client with the largest weight.
    ctx : Context
        Its ``full_gradient`` is called, for which every client with samples pays one pass over them.
    w : tensor, shape [d]
        The initial model.

    Returns
    -------
    tensor, shape [d]
    dict of tensors, shape [d]
        Empty for "zero", which needs no rows.

    Raises
    ------
    ValueError
        For another start, or for "shared" if that gradient is not finite.
    """
    check_start(start)
    if start == "zero":
        return torch.zeros_like(w), {}
    clients = np.flatnonzero(ctx.weights).tolist()  # whoever has no samples has no gradient either
    if start == "shared":
        c = ctx.full_gradient(int(np.argmax(ctx.weights)), w)
        if not is_finite(c):
            raise ValueError("the gradient of the largest client's samples is not finite: look for NaN in its data")
        return c, dict.fromkeys(clients, c)
    c, rows = torch.zeros_like(w), {}
    for k in clients:
        gradient = ctx.full_gradient(k, w)
        if is_finite(gradient):  # a client with broken data starts from zero, and spoils nobody else's c
            c.add_(gradient, alpha=float(ctx.weights[k]))
            rows[k] = gradient if start == "own" else c
    return c, rows


def check_start(start):
    """Refuse the name of a start that does not exist."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, got {start!r}")
