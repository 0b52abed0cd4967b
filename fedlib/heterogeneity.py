"""How different are the clients?  Numbers to print beside every partition."""

import numpy as np


def label_table(parts, labels, num_classes):
    """Count classes by client.

    Parameters
    ----------
    parts : list of arrays
        Positions of each client's samples, as a partition returns them.
    labels : array, shape [n], integers in [0, num_classes)
    num_classes : int
        From the task's configuration: a class nobody owns still has its column.

    Returns
    -------
    array, shape [N, num_classes], int64

    Raises
    ------
    ValueError
        If a label lies outside [0, num_classes).
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, but num_classes is {num_classes}"
        )
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def label_entropy(table):
    """Mean entropy of the clients' labels, in nats: from 0 (one class each) to ln C (all classes alike).

    ``table`` has shape ``[N, C]``; empty clients are left out.
    """
    shares = _shares(table)
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    return float(-(shares * logs).sum(1).mean())


def label_distance(table):
    """Mean total variation distance between a client's class shares and the pooled ones, weighted by n_k / n.

    ``table`` has shape ``[N, C]``.  0 means every client mirrors the whole; the value is the fraction of all
    samples that would have to change hands to get there.
    """
    table = table[table.sum(1) > 0]
    pooled = table.sum(0) / table.sum()
    distances = np.abs(_shares(table) - pooled).sum(1) / 2
    return float(np.average(distances, weights=table.sum(1)))


def size_spread(table):
    """Coefficient of variation of the clients' sizes, sd(n_k) / mean(n_k); 0 for equal sizes."""
    sizes = table.sum(1)
    return float(sizes.std() / sizes.mean())


def _shares(table):
    table = table[table.sum(1) > 0]
    return table / table.sum(1, keepdims=True)
