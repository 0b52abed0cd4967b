"""Pictures changed at random while a client trains, so that few of them look like many."""

import numpy as np
import torch
import torch.nn.functional as F


def flip_and_crop(x, rng, pad=4):
    """Return pictures mirrored with probability 1/2 and shifted by up to ``pad`` pixels each way.

    What is shifted in is 0, the mean color of normalized pictures.

    Parameters
    ----------
    x : tensor, shape [n, channels, height, width]
        Not changed.
    rng : numpy.random.Generator
    pad : int

    Returns
    -------
    tensor, shape [n, channels, height, width]
        Stored channels last.
    """
    if x.ndim != 4:
        raise ValueError(f"flip_and_crop needs pictures [n, channels, height, width], got shape {tuple(x.shape)}")
    n, _, height, width = x.shape
    down, right = rng.integers(0, 2 * pad + 1, (2, n, 1))
    columns = np.arange(width)
    columns = np.where(rng.random((n, 1)) < 0.5, columns[::-1], columns)
    rows = torch.from_numpy(down + np.arange(height)).to(x.device)
    columns = torch.from_numpy(right + columns).to(x.device)
    picture = torch.arange(n, device=x.device)[:, None, None]
    padded = F.pad(x, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    return padded[picture, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
