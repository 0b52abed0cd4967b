"""FedAvg as one would write it without a library, to measure ours by; it must not import fedlib.

Same samples, same order, same initial model, same memory layout, same number of threads, same precision;
``torch.optim.SGD`` on an ordinary module. Everything that the library adds on top of this is overhead.
"""

import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import torch
import torch.nn.functional as F

SELECT, BATCHES = 3, 4  # the library's numbers for these two purposes


def generator(seed, purpose, t, client, num_ids):
    return np.random.default_rng(np.random.SeedSequence([seed, purpose, t, client, num_ids + 1]))


def fedavg(module, x, y, clients, num_drawn, rounds, lr, batch_size, seed, workers=1, bf16=False):
    """Train ``module`` in place for ``rounds`` rounds of FedAvg with one local epoch.

    ``clients`` is a list of index arrays into ``x`` and ``y``; ``num_drawn`` of them take part in each round,
    ``workers`` of them at a time, the largest first.
    """
    w = [p.detach().clone() for p in module.parameters()]
    idle = SimpleQueue()
    for copied in [module, *(copy.deepcopy(module) for _ in range(workers - 1))]:
        idle.put(copied)

    def train(t, k):
        own = idle.get()
        parameters = list(own.parameters())
        with torch.no_grad():
            for p, start in zip(parameters, w):
                p.copy_(start)
        optimizer = torch.optim.SGD(parameters, lr=lr)
        order = clients[k][generator(seed, BATCHES, t, int(k), 2).permutation(len(clients[k]))]
        for batch in torch.from_numpy(order).split(batch_size):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext():
                outputs = own(x[batch])
            F.cross_entropy(outputs.float(), y[batch]).backward()
            optimizer.step()
        deltas = [p.detach() - start for p, start in zip(parameters, w)]
        idle.put(own)
        return deltas

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)) as pool:
        for t in range(rounds):
            drawn = np.sort(generator(seed, SELECT, t, 0, 1).choice(len(clients), num_drawn, replace=False))
            if workers > 1:
                largest_first = sorted(drawn, key=lambda k: -len(clients[k]))
                futures = {k: pool.submit(train, t, k) for k in largest_first}
                deltas = [futures[k].result() for k in drawn]
            else:
                deltas = [train(t, k) for k in drawn]
            sizes = np.array([len(clients[k]) for k in drawn]) / sum(len(indices) for indices in clients)
            weights = sizes / sizes.sum()
            for i, start in enumerate(w):
                total = torch.zeros_like(start, dtype=torch.float64)
                for weight, delta in zip(weights, deltas):
                    total.add_(delta[i], alpha=float(weight))
                w[i] = start + total.float()
    with torch.no_grad():
        for p, end in zip(module.parameters(), w):
            p.copy_(end)
