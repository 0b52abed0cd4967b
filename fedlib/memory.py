"""Aggregators that remember: whoever is absent counts with the last delta that arrived from it.

The server keeps one vector for each client that was ever heard; clients send and receive nothing more.  What it remembers
is as old as the client's last visit, and is used as if it were of today.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MIFA:
    """The mean over *all* clients, Σ p_k y_k, in which the absent count with their last delta (Gu et al. 2021, algorithm 1).

    y_k is Δ_k if client k takes part, and otherwise what k sent last.  The paper lets everybody take part in the first
    round; here the weights are renormalized over those who were ever heard, so that the first round is FedAvg's.  The paper
    remembers Δ_k / η and multiplies it with the present η, which is the same while the learning rate stays.
    """

    remembers = True

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        p, sent = ctx.weights, dict(zip(ctx.clients.tolist(), deltas))
        total, heard = torch.zeros_like(deltas[0], dtype=torch.float64), 0.0
        for k in range(ctx.num_clients):
            y = sent[k] if k in sent else ctx.last(k)
            if y is not None:
                total.add_(y, alpha=float(p[k]))
                heard += p[k]
        return (total / heard).float(), p[ctx.clients] / heard


@dataclass(frozen=True)
class FedVARP:
    """What is remembered, and what the drawn clients change about it (Jhunjhunwala et al. 2022, algorithm 1).

    Σ_k p_k y_k + (N/m) Σ_drawn p_k (Δ_k − y_k) with the y_k of before this round, 0 for a client that was never heard.
    Over uniform draws of m from N its mean is Σ_k p_k Δ_k, as ``Unbiased`` has it; it varies with the *changes*
    Δ_k − y_k only, which are small where clients repeat themselves.  The paper has equal weights, p_k = 1/N.
    """

    remembers = True

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``."""
        p, sent = ctx.weights, dict(zip(ctx.clients.tolist(), deltas))
        gain = ctx.num_clients / len(ctx.drawn)
        total = torch.zeros_like(deltas[0], dtype=torch.float64)
        for k in range(ctx.num_clients):
            y = ctx.last(k)
            if y is not None:
                total.add_(y, alpha=float(p[k] * (1 - gain * (k in sent))))
            if k in sent:
                total.add_(sent[k], alpha=float(p[k] * gain))
        return total.float(), gain * p[ctx.clients]
