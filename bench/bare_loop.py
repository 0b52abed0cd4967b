"""FedAvg as one would write it without a library, to measure ours by; it must not import fedlib.

Same samples, same order, same initial model, same memory layout, same number of threads;
``torch.optim.SGD`` on an ordinary module. Everything that the library adds on top of this is overhead.
"""

import numpy as np
import torch
import torch.nn.functional as F

SELECT, BATCHES = 3, 4  # the library's numbers for these two purposes


def generator(seed, purpose, t, client, num_ids):
    return np.random.default_rng(np.random.SeedSequence([seed, purpose, t, client, num_ids + 1]))


def fedavg(module, x, y, clients, num_drawn, rounds, lr, batch_size, seed):
    """Train ``module`` in place for ``rounds`` rounds of FedAvg with one local epoch.

    ``clients`` is a list of index arrays into ``x`` and ``y``; ``num_drawn`` of them take part in each round.
    """
    parameters = list(module.parameters())
    w = [p.detach().clone() for p in parameters]
    for t in range(rounds):
        drawn = np.sort(generator(seed, SELECT, t, 0, 1).choice(len(clients), num_drawn, replace=False))
        deltas = []
        for k in drawn:
            with torch.no_grad():
                for p, start in zip(parameters, w):
                    p.copy_(start)
            optimizer = torch.optim.SGD(parameters, lr=lr)
            order = clients[k][generator(seed, BATCHES, t, int(k), 2).permutation(len(clients[k]))]
            for batch in torch.from_numpy(order).split(batch_size):
                optimizer.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
            deltas.append([p.detach() - start for p, start in zip(parameters, w)])
        sizes = np.array([len(clients[k]) for k in drawn]) / sum(len(indices) for indices in clients)
        weights = sizes / sizes.sum()
        for i, start in enumerate(w):
            total = torch.zeros_like(start, dtype=torch.float64)
            for weight, delta in zip(weights, deltas):
                total.add_(delta[i], alpha=float(weight))
            w[i] = start + total.float()
    with torch.no_grad():
        for p, end in zip(parameters, w):
            p.copy_(end)
