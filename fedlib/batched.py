"""All of a round's clients in one go, for small networks.

A step of a small network is so little arithmetic that most of its time goes into starting each operation. So the
clients' networks are stacked: K matrices become one of shape ``[K, out, in]``, and one batched matrix product does
for all clients what K products did before. The result is that of ``local.local_sgd`` up to rounding.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedlib.correction import Correction
from fedlib.local import LocalResult

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Identity)


def reason_against(settings, task, module):
    """Return why local training cannot be batched, or "" if it can.

    It can for a ``nn.Sequential`` of flatten, linear and elementwise layers, with cross-entropy, in float32, and a
    correction that treats every entry by itself, which it says by ``rowwise = True``.
    """
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    for layer in layers:
        if not isinstance(layer, (nn.Flatten, nn.Linear, *ELEMENTWISE)):
            return f"a layer of type {type(layer).__name__} has no batched form here"
    if task.loss is not F.cross_entropy:
        return f"the loss {getattr(task.loss, '__name__', task.loss)} is not torch's cross_entropy"
    correction = settings.correction
    if type(correction).correct is not Correction.correct and not correction.rowwise:
        return f"{type(correction).__name__}.correct does not say that it works on rows (rowwise = True)"
    if settings.augment:
        return f"{settings.augment.__name__} changes pictures one by one"
    if settings.stop:
        return "a client that stops early has to look at its model after each epoch"
    if settings.precision != "float32":
        return f"precision={settings.precision!r} is not float32"
    return ""


def local_sgd_rows(settings, task, model, starts, batches, carries):
    """Run SGD for K clients at once, each from its own start over its own batches.

    Parameters
    ----------
    settings : LocalSGD
    task : Task
    model : FlatModel
        Says which layers there are; its parameters are neither read nor changed.
    starts : list of K tensors, shape [d]
    batches : list of K lists of index tensors
        Clients may differ in their numbers of steps, and batches in their sizes.
    carries : list of K dictionaries
        What the correction carries along; each is updated to what it is after that client's last step.

    Returns
    -------
    list of K LocalResult
    """
    order = sorted(range(len(starts)), key=lambda k: -len(batches[k]))  # clients still training come first
    theta = torch.stack([starts[k] for k in order])
    steps = np.array([len(batches[k]) for k in order])
    positions, shares, used = _padded([batches[k] for k in order], theta.device)
    inputs, targets = task.data.train_x, task.data.train_y[positions.flatten()].view(shares.shape)
    losses = torch.zeros_like(shares)
    velocity = torch.zeros_like(theta) if settings.momentum else None
    carry, active = _stack([carries[k] for k in order]), 0
    for h in range(steps[0]):
        if active != (now := int((steps > h).sum())):
            carry = _finish(carry, carries, order[now:active])
            active = now
            rows = theta[:active]
            weights = _leaves(model.layout, rows)
        x = inputs.index_select(0, positions[h, :active].flatten()).unflatten(0, (active, -1))
        outputs = _forward(model.module, weights, x).flatten(0, 1)
        each = F.cross_entropy(outputs, targets[h, :active].flatten(), reduction="none")
        # The gradient of each client's mean over its own batch; the padding's share in it is 0.
        grads = torch.autograd.grad(each, weights.values(), shares[h, :active].flatten())
        step = settings.correction.correct(torch.cat([grad.flatten(1) for grad in grads], dim=1), rows, carry)
        if settings.momentum:
            step = velocity[:active].mul_(settings.momentum).add_(step)
        rows.sub_(step, alpha=settings.lr)
        losses[h, :active] = each.detach().view(active, -1)
    _finish(carry, carries, order[:active])
    samples = used.sum(dim=(0, 2))
    means = ((losses * used).sum(dim=(0, 2)) / samples).tolist()
    results = [None] * len(order)
    for row, k in enumerate(order):
        results[k] = LocalResult(theta[row] - starts[k], len(batches[k]), int(samples[row]), settings.lr, means[row])
    return results


def _padded(batches, device):
    """Return positions of samples, their shares in the mean of their batch, and which are no padding: ``[H, K, B]``."""
    every = [batch for own in batches for batch in own]
    lengths = torch.tensor([len(batch) for batch in every])
    step = torch.cat([torch.arange(len(own)) for own in batches])
    client = torch.arange(len(batches)).repeat_interleave(torch.tensor([len(own) for own in batches]))
    positions = torch.zeros(len(batches[0]), len(batches), int(lengths.max()), dtype=torch.int64)
    shares = torch.zeros(positions.shape)
    positions[step, client] = nn.utils.rnn.pad_sequence(every, batch_first=True).cpu()
    shares[step, client] = (torch.arange(positions.shape[2]) < lengths[:, None]) / lengths[:, None]
    return positions.to(device), shares.to(device), (shares > 0).to(device)


def _leaves(layout, theta):
    """Return ``{name: parameter [A, …]}``, views of the rows of ``theta``, in the order of the vector."""
    shapes = {name: layout.segments[name].shape for name in layout.names}
    return {name: theta[:, layout[name]].unflatten(1, shape).requires_grad_() for name, shape in shapes.items()}


def _forward(module, weights, x):
    for name, layer in module.named_children() if isinstance(module, nn.Sequential) else [("", module)]:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, nn.Linear):
            prefix = f"{name}." if name else ""
            matrix = weights[f"{prefix}weight"].transpose(1, 2)
            bias = weights.get(f"{prefix}bias")
            x = x @ matrix if bias is None else torch.baddbmm(bias[:, None], x, matrix)
        else:
            x = layer(x)
    return x


def _stack(carries):
    """Return one carry for all: tensors are stacked, and what is equal for all clients is kept as it is.

    Anything else stays with its client, where ``correct`` does not see it.
    """
    shared = {}
    for name, value in carries[0].items():
        if isinstance(value, torch.Tensor):
            shared[name] = torch.stack([carry[name] for carry in carries])
        elif all(carry[name] == value for carry in carries):
            shared[name] = value
    return shared


def _finish(carry, carries, finished):
    """Hand the last rows of ``carry`` to the clients that have ``finished``, and return the rows of the others."""
    if not finished:
        return carry
    left = {}
    for name, value in carry.items():
        stacked = isinstance(value, torch.Tensor)
        keep = len(value) - len(finished) if stacked else None
        for i, k in enumerate(finished):
            carries[k][name] = value[keep + i] if stacked else value
        left[name] = value[:keep] if stacked else value
    return left
