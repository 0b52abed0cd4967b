"""What a message gives away: inputs from a linear layer, labels from a bias, pictures by matching gradients.

The attacker is whoever reads a client's message and knows the model that it answers, the server for one.  It changes
nothing, it only computes.  Matching needs second derivatives, so gradients are taken with ``torch.autograd.grad``
from flat vectors here, never by ``FlatModel.gradient``.
"""

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from fedlib.rng import stream


def smooth_cnn(input_shape, num_classes, width=32):
    """Return a small network without kinks: three 3×3 convolutions of ``width`` channels with GELU, one linear layer.

    With 3×32×32 pictures and 10 classes it has 39,882 parameters.  It is smooth because the gradient of a network of
    ReLUs jumps where one of them opens or closes, which an attacker who goes downhill cannot see coming.

    Raises
    ------
    ValueError
        If the pictures are not channels × height × width with sides divisible by 4.
    """
    if len(input_shape) != 3 or input_shape[1] % 4 or input_shape[2] % 4:
        raise ValueError(
            f"smooth_cnn needs pictures (channels, height, width) with sides divisible by 4, got {tuple(input_shape)}"
        )
    pixels = input_shape[1] * input_shape[2]
    return nn.Sequential(
        nn.Conv2d(input_shape[0], width, 3, stride=2, padding=1), nn.GELU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1), nn.GELU(),
        nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
        nn.Flatten(), nn.Linear(width * pixels // 16, num_classes),
    )  # fmt: skip


def invert_linear(grad_W, grad_b):
    """Return the input x of a layer Wx + b, exactly, from the gradient of one sample's loss (Phong et al. 2017).

    ∂ℓ/∂W = (∂ℓ/∂b) xᵀ, so any row of the first divided by its entry of the second is x.

    Parameters
    ----------
    grad_W : tensor, shape [h, f]
    grad_b : tensor, shape [h]

    Returns
    -------
    tensor, shape [f]

    Raises
    ------
    ValueError
        If all entries of ``grad_b`` are 0: then the sample left no trace in this layer.

    Examples
    --------
    >>> invert_linear(torch.tensor([[0.0, 0.0], [3.0, 6.0]]), torch.tensor([0.0, 3.0]))
    tensor([1., 2.])
    """
    if grad_W.ndim != 2 or grad_W.shape[:1] != grad_b.shape:
        raise ValueError(f"expected shapes [h, f] and [h], got {tuple(grad_W.shape)} and {tuple(grad_b.shape)}")
    _require_finite(grad_W=grad_W, grad_b=grad_b)
    unit = grad_b.abs().argmax()  # the largest divides with the smallest rounding error
    if grad_b[unit] == 0:
        raise ValueError("every bias gradient is 0: no unit of this layer reacted to the sample")
    return grad_W[unit] / grad_b[unit]


def infer_label(grad_b):
    """Return the label of one sample from the last bias gradient p − e_y, shape [C]: its only negative entry.

    Of the cross-entropy; Zhao et al. 2020, equation 3.
    """
    if grad_b.ndim != 1:
        raise ValueError(f"expected one entry a class, shape [C], got shape {tuple(grad_b.shape)}")
    _require_finite(grad_b=grad_b)
    return int(grad_b.argmin())


def infer_counts(grad_b, mean_p, batch_size):
    """Return how often each class occurs in a batch, B (p̄ − ∂ℓ/∂b), shape [C], not rounded.

    Parameters
    ----------
    grad_b : tensor, shape [C]
        Gradient of the batch's *mean* cross-entropy with respect to the last bias.
    mean_p : tensor, shape [C]
        Mean of the model's probabilities over the batch, or a guess at it; exact if that is exact.
    batch_size : int
    """
    if grad_b.ndim != 1 or grad_b.shape != mean_p.shape:
        raise ValueError(f"expected two vectors [C], got shapes {tuple(grad_b.shape)} and {tuple(mean_p.shape)}")
    return batch_size * (mean_p - grad_b)


def _require_finite(**tensors):
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds NaN or infinity: that is no gradient")


def pixels(dataset, indices):
    """Return training pictures with pixels between 0 and 1, shape [B, channels, height, width], float64."""
    mean, std = _constants(dataset)
    return dataset.train_x[indices].double() * std + mean


def normalizer(dataset):
    """Return the function that turns pixels between 0 and 1 into the network's inputs."""
    mean, std = _constants(dataset)
    return lambda x: (x - mean) / std


def _constants(dataset):
    return (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (dataset.mean, dataset.std))


def gradient(model, w, x, y):
    """Return ∇f(w) of the mean cross-entropy, shape [d], itself differentiable with respect to x (and w).

    Parameters
    ----------
    model : FlatModel
        Only its form is used; its own parameters are left alone.
    w : tensor, shape [d]
    x : tensor, shape [B, ...]
        The network's inputs, in the precision of ``w``.
    y : tensor, shape [B]
    """
    if not w.requires_grad:
        w = w.detach().requires_grad_()
    outputs = torch.func.functional_call(model.module, model.layout.tensors(w), (x,))
    return torch.autograd.grad(nn.functional.cross_entropy(outputs, y), w, create_graph=True)[0]


def local_delta(model, w, x, y, lr, steps):
    """Return Δ after ``steps`` local steps from w on all of x, y, shape [d], differentiable with respect to x."""
    start = w
    for _ in range(steps):
        w = w - lr * gradient(model, w, x, y)
    return w - start


def add_noise(message, ratio, rng):
    """Return the message plus a Gaussian vector of about ``ratio`` times its length; both of shape [d]."""
    noise = torch.from_numpy(rng.normal(size=len(message)))
    return message + ratio * message.norm() / math.sqrt(len(message)) * noise


@dataclass(frozen=True)
class Attack:
    """Settings of gradient matching.

    Parameters
    ----------
    smoothness : float
        Weight of the total variation: pictures are smoother than noise, and the attacker knows that.
    iterations : int
        Of L-BFGS, at most.
    keep_every : int or None
        Look at the pictures after each so many-th iteration; has to divide ``iterations``.
    """

    smoothness: float = 1e-4
    iterations: int = 100
    keep_every: int | None = None

    def __post_init__(self):
        if not (math.isfinite(self.smoothness) and self.smoothness >= 0):
            raise ValueError(f"smoothness must be at least 0 and finite, got {self.smoothness}")
        if not (isinstance(self.iterations, int) and self.iterations >= 1):
            raise ValueError(f"iterations must be an integer of at least 1, got {self.iterations!r}")
        if self.keep_every is not None and (self.keep_every < 1 or self.iterations % self.keep_every):
            raise ValueError(f"keep_every must divide the {self.iterations} iterations, got {self.keep_every}")


def reconstruct(message, simulate, shape, attack, seed=0):
    """Return pictures whose message is like ``message`` (Zhu et al. 2019; Geiping et al. 2020 added total variation).

    Minimizes ‖simulate(x) − message‖² / ‖message‖² + smoothness · TV(x), starting from gray with a little noise.

    Parameters
    ----------
    message : tensor, shape [d], float64
    simulate : callable
        ``simulate(x)`` is what a client with pictures x would have sent, shape [d], differentiable.
    shape : tuple
        Of x: B, channels, height, width.
    attack : Attack
    seed : int
        Of the noise at the start.

    Returns
    -------
    list of tensors, pixels between 0 and 1
        The last is the result; before it what was kept on the way.
    """
    size = message.square().sum()
    if not 0 < size < math.inf:
        raise ValueError(f"the message has squared length {float(size)}: there is nothing to match")
    x = torch.from_numpy(0.4 + 0.2 * stream(seed, "attack").random(shape)).requires_grad_()
    first = simulate(x)
    if first.shape != message.shape or not torch.isfinite(first).all() or not first.requires_grad:
        raise ValueError(
            f"simulate(x) must be a finite vector of shape {tuple(message.shape)} that depends on x, got shape {tuple(first.shape)}"
            + ("" if torch.isfinite(first).all() else " with NaN or infinity") + ("" if first.requires_grad else " without a gradient")
        )  # fmt: skip
    stretch = attack.keep_every or attack.iterations
    optimizer = torch.optim.LBFGS([x], max_iter=stretch, max_eval=10 * stretch, history_size=50, tolerance_grad=1e-9,
                                  tolerance_change=1e-12, line_search_fn="strong_wolfe")  # fmt: skip

    def closure():
        mismatch = (simulate(x) - message).square().sum() / size
        loss = mismatch + attack.smoothness * total_variation(x)
        x.grad = torch.autograd.grad(loss, x)[0]
        return loss.detach()

    kept = []
    for _ in range(attack.iterations // stretch):
        optimizer.step(closure)
        kept.append(x.detach().clamp(0, 1))
    return kept


def total_variation(x):
    """Return the mean absolute difference between neighboring pixels, across plus down (Rudin et al. 1992)."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def psnr(x, x_hat):
    """Return the peak signal-to-noise ratio of each picture in decibels, −10 log₁₀(MSE), shape [B].

    Both have shape [B, channels, height, width] and pixels between 0 and 1, whatever a network was trained on: the
    peak is 1.  Equal pictures give infinity.
    """
    _require_pictures(x, x_hat)
    return -10 * torch.log10((x - x_hat).square().flatten(1).mean(1))


def match(x, x_hat):
    """Return ``x_hat`` in the order that goes best with ``x``: the pictures of a batch have none of their own."""
    _require_pictures(x, x_hat)
    squares = (x[:, None] - x_hat[None]).square().flatten(2).mean(2)
    return x_hat[torch.from_numpy(linear_sum_assignment(squares.numpy())[1])]


def _require_pictures(x, x_hat):
    if x.ndim != 4 or x_hat.shape[1:] != x.shape[1:] or len(x_hat) not in (1, len(x)):
        raise ValueError(f"expected pictures of one shape [B, channels, height, width], got {tuple(x.shape)} and {tuple(x_hat.shape)}")


def mean_picture(x):
    """Return the mean of pictures, shape [1, channels, height, width]: the guess of somebody who saw no message."""
    return x.mean(0, keepdim=True)
