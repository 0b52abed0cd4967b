"""Part 2 of a round: what a client does with the model it receives.

Local SGD walks through the client's own samples in minibatches and reports how far it came: the *delta* y −
w, never the weights themselves.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedlib.correction import Correction
from fedlib.stopping import EarlyStopping

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_SCALE = 2.0**12  # of the loss in fp16: gradients up to 16 and down to 1e-11 then fit


@dataclass(frozen=True)
class LocalSGD:
    """Settings of local training.

    Parameters
    ----------
    lr : float or schedule
        Local learning rate η, or one of ``schedule``, which gives each round its own.
    epochs : int
        Local epochs E: passes over the client's own samples in one round.
    batch_size : int or None
        Samples a step; None takes all of the client's samples at once.
    momentum : float
        Heavy-ball momentum *within* a round.  It starts from zero in every round.
    correction : Correction
        What bends each gradient.
    augment : callable, optional
        ``augment(x, rng) -> x`` changes each batch at random, for example ``augment.flip_and_crop``.
    precision : {"float32", "bf16", "fp16"}
        Number format of forward and backward passes; parameters and their sums stay float32.  The 16-bit formats are
        faster where the hardware has them, and less exact.  ``"fp16"`` is for GPUs without bf16: it scales the loss.
    balance : bool
        Draw equally many samples of each class that the client has, rare ones several times, as many as it has in all.
    stop : EarlyStopping, optional
        Ends the round for a client before its last epoch.
    batched : bool
        Train all of a round's clients in one go, which is faster for small networks (see ``batched``).
    """

    lr: object
    epochs: int = 1
    batch_size: int | None = 32
    momentum: float = 0.0
    correction: Correction = field(default_factory=Correction)
    augment: Callable | None = None
    precision: str = "float32"
    balance: bool = False
    stop: EarlyStopping | None = None
    batched: bool = False

    def __post_init__(self):
        if not hasattr(self.lr, "at") and not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, or a schedule, got {self.lr}")
        if not (isinstance(self.epochs, int) and self.epochs >= 1):
            raise ValueError(f"epochs must be an integer of at least 1, got {self.epochs!r}")
        if self.batch_size is not None and not (isinstance(self.batch_size, int) and self.batch_size >= 1):
            raise ValueError(
                f"batch_size must be an integer of at least 1, or None for all, got {self.batch_size!r}"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if not isinstance(self.correction, Correction):
            raise TypeError(
                f"correction must be a Correction, got {self.correction!r}: did you forget the brackets?"
            )
        if not (self.stop is None or isinstance(self.stop, EarlyStopping)):
            raise TypeError(f"stop must be an EarlyStopping or None, got {self.stop!r}: did you forget the brackets?")

    def at(self, t):
        """Return the settings of round ``t``, whose ``lr`` is a number."""
        return replace(self, lr=self.lr.at(t)) if hasattr(self.lr, "at") else self


@dataclass(frozen=True)
class LocalResult:
    """What local training reports: ``delta`` (shape ``[d]``, from where it started), and what it cost.

    ``steps`` and ``samples`` are counted, not derived; ``lr`` is the one that was used; ``loss`` is the
    mean training loss over all samples seen, each at its own step.
    """

    delta: torch.Tensor
    steps: int
    samples: int
    lr: float
    loss: float


def local_sgd(settings, task, model, start, batches, carry, rng=None):
    """Run SGD from ``start`` over ``batches`` and return how far it came.

    y ← y − η · correct(∇ℓ(y; batch)), once for each batch (McMahan et al. 2017, ClientUpdate).

    Parameters
    ----------
    settings : LocalSGD
        Of this round: ``lr`` is a number.
    task : Task
        Holds the training samples and the loss.
    model : FlatModel
        A workspace: what it held before does not matter.
    start : tensor, shape [d]
        Not changed.
    batches : iterable of index tensors
        Positions in the training set, one tensor a step.
    carry : dict
        What the correction carries along.
    rng : numpy.random.Generator, optional
        For ``augment``.

    Returns
    -------
    LocalResult
    """
    x, y = task.data.train_x, task.data.train_y
    correct, lr, momentum = settings.correction.correct, settings.lr, settings.momentum
    theta = model.theta
    model.load(start)
    velocity = torch.zeros_like(theta) if momentum else None  # fresh in every round
    scaler = LossScale(theta.device) if settings.precision == "fp16" else None
    loss_sum = torch.zeros((), device=theta.device)
    steps = samples = 0
    for batch in batches:
        inputs = settings.augment(x[batch], rng) if settings.augment else x[batch]
        with _precision(theta.device, settings.precision):
            outputs = model(inputs)
        loss = task.loss(outputs.float(), y[batch])
        grad = scaler.gradient(model, loss) if scaler else model.gradient(loss)
        step = correct(grad, theta, carry)
        if momentum:
            step = velocity.mul_(momentum).add_(step)
        theta.sub_(step, alpha=lr)
        loss_sum.add_(loss.detach(), alpha=len(batch))
        steps, samples = steps + 1, samples + len(batch)
    return LocalResult(theta - start, steps, samples, lr, float(loss_sum) / samples)


class LossScale:
    """Gradients in fp16: the loss is multiplied by a factor, its gradient divided by it again.

    fp16 has no numbers below 6e-8, where most of a network's gradients lie; the factor lifts them up. If they then
    exceed the largest number (65,504), the step is given up (its gradient is 0) and the factor halved. All of that
    happens on the device: asking whether a gradient overflowed would make the GPU wait for Python at each step.
    """

    def __init__(self, device):
        self.scale = torch.tensor(FIRST_SCALE, device=device)

    def gradient(self, model, loss):
        """Return ∇loss, the live vector ``model.grad`` (shape ``[d]``)."""
        grad = model.gradient(loss * self.scale)
        finite = torch.isfinite(grad).all()
        grad.div_(self.scale).nan_to_num_(0.0, 0.0, 0.0).mul_(finite)
        self.scale.mul_(torch.where(finite, 1.0, 0.5))
        return grad


def make_batches(indices, settings, rng, device="cpu", labels=None):
    """Shuffle ``indices`` anew for each local epoch and cut them into minibatches, a list of index tensors.

    The last, smaller batch of an epoch is used as well: a client with fewer samples than ``batch_size`` would
    otherwise never train. ``labels`` (shape ``[n]``, those of ``indices``) are needed for ``balance`` only.
    """
    size = settings.batch_size or len(indices)
    batches = []
    for _ in range(settings.epochs):
        order = balanced(indices, labels, rng) if settings.balance else indices
        order = torch.from_numpy(order[rng.permutation(len(order))]).to(device)
        batches.extend(order.split(size))
    return batches


def balanced(indices, labels, rng):
    """Return as many positions as ``indices`` has (shape ``[n]``), equally many of each class up to one.

    Within a class every sample is used equally often, again up to one; which ones are used once more is random.
    """
    classes = rng.permutation(np.unique(labels))
    quota = np.diff(np.arange(len(classes) + 1) * len(indices) // len(classes))
    own = [rng.permutation(indices[labels == label]) for label in classes]
    return np.concatenate([np.resize(positions, size) for positions, size in zip(own, quota)])


def full_gradient(task, model, client, w, chunk=1000):
    """Return ∇f_k(w), the gradient of the client's mean loss over all its samples, shape ``[d]``."""
    indices = task.clients[client]
    if not len(indices):
        raise ValueError(f"client {client} has no samples: its gradient is not defined")
    model.load(w)
    total = torch.zeros_like(model.theta, dtype=torch.float64)
    for part in np.array_split(indices, -(-len(indices) // chunk)):
        part = torch.from_numpy(part)
        loss = task.loss(model(task.data.train_x[part]), task.data.train_y[part])
        total.add_(model.gradient(loss), alpha=len(part) / len(indices))
    return total.float()


def reason_against_precision(precision, device):
    """Return why a device cannot compute in ``precision``, or "" if it can."""
    kind = torch.device(device).type
    if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return 'this GPU has no bfloat16, use precision="fp16"'
    if precision == "bf16" and kind == "cpu" and not cpu_has_bf16():
        return "this processor has no bfloat16 instructions and would be slower with it, use precision='float32'"
    if precision == "fp16" and kind == "cpu":
        return "16-bit floats with loss scaling are for GPUs, use precision='float32'"
    return ""


def cpu_has_bf16():
    """Return whether this processor multiplies bfloat16 numbers in hardware."""
    return any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _precision(device, precision):
    # Entered for each forward pass: autocast caches its 16-bit copies of the weights until it is left.
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype) if dtype else contextlib.nullcontext()
