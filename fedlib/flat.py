"""One vector for a whole network: the parameters as a flat ``w`` of shape ``[d]``.

Everything the server does (averaging, clipping, compressing, comparing) is a formula about vectors.
PyTorch keeps a network as a list of tensors of many shapes.  ``FlatModel`` reconciles the two: all
parameters live in one vector ``theta``, all gradients in one vector ``grad``, and each tensor of the
network is a *view* into them, so nothing is ever packed or unpacked.
"""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Segment:
    """One named parameter inside the flat vector: entries ``start`` up to ``stop``, seen as ``shape``."""

    name: str
    start: int
    stop: int
    shape: tuple
    channels_last: bool

    def view(self, vector):
        """Return this part of ``vector`` (shape ``[d]``) in the parameter's own shape, without copying."""
        flat = vector[self.start : self.stop]
        if not self.channels_last:
            return flat.view(self.shape)
        out_channels, in_channels, height, width = self.shape
        return flat.view(out_channels, height, width, in_channels).permute(0, 3, 1, 2)


class Layout:
    """Where each named parameter lies in the flat vector.

    ``layout["fc2.weight"]`` is a slice, ``layout.size`` is d, ``layout.names`` the names in order.
    """

    def __init__(self, segments):
        self.segments = {segment.name: segment for segment in segments}
        self.names = list(self.segments)
        self.size = max((segment.stop for segment in segments), default=0)

    def __getitem__(self, name):
        if name not in self.segments:
            raise ValueError(f"no parameter is called {name!r}: choose one of {self.names}")
        return slice(self.segments[name].start, self.segments[name].stop)

    def tensors(self, vector):
        """Return ``{name: tensor}``, views of ``vector`` (shape ``[d]``) in the parameters' own shapes."""
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of shape ({self.size},), got {tuple(vector.shape)}")
        return {name: segment.view(vector) for name, segment in self.segments.items()}


class FlatModel:
    """A network whose parameters and gradients are views into two flat vectors.

    Parameters
    ----------
    module : torch.nn.Module
        The network, float32 and without buffers.  It is taken over: use it through this class only.

    Attributes
    ----------
    theta, grad : torch.Tensor, shape [d], float32
        The live parameters and their gradient.
    layout : Layout
        Name of each parameter → its slice of the vector.
    stopped : bool
        Set from another thread to end a training that is under way at its next step.

    Raises
    ------
    ValueError
        If the module has buffers (BatchNorm), no parameters, or parameters that are not float32.

    Notes
    -----
    Weights of 2-D convolutions are stored channels-last, the order in which CPU kernels read them.
    ``module.to(...)``, ``zero_grad()`` and ``backward(create_graph=True)`` replace tensors by new ones and
    would silently detach the views. That is why loading and differentiating are methods here, and both check.
    """

    def __init__(self, module):
        _require_plain(module)
        named = list(module.named_parameters())
        self.module = module
        self.layout = Layout(_segments(named))
        self.theta = torch.empty(self.layout.size, device=named[0][1].device)
        self.grad = torch.zeros_like(self.theta)
        self.stopped = False
        self._views = []
        theta_views, grad_views = self.layout.tensors(self.theta), self.layout.tensors(self.grad)
        for name, parameter in named:
            theta_views[name].copy_(parameter.data)
            parameter.data = theta_views[name]
            parameter.grad = grad_views[name]
            self._views.append((parameter, theta_views[name], grad_views[name]))

    def __call__(self, x):
        return self.module(x)

    def __deepcopy__(self, memo):
        raise TypeError(
            "a FlatModel cannot be deep-copied (its views would be lost): build a second FlatModel from a "
            "fresh module and call load(w)"
        )

    def load(self, w):
        """Copy the vector ``w`` (shape ``[d]``) into the network; ``w`` itself is not kept."""
        if w.shape != self.theta.shape:
            raise ValueError(f"expected a vector of shape {tuple(self.theta.shape)}, got {tuple(w.shape)}")
        for parameter, theta_view, grad_view in self._views:
            if not (_same(parameter.data, theta_view) and _same(parameter.grad, grad_view)):
                raise RuntimeError(_BROKEN)
        self.theta.copy_(w)

    def gradient(self, loss):
        """Return the gradient of the scalar ``loss``: the live vector ``grad``, shape ``[d]``."""
        if self.stopped:
            raise KeyboardInterrupt("training was stopped")
        self.grad.zero_()
        loss.backward()
        parameter, _, grad_view = self._views[0]
        if not _same(parameter.grad, grad_view):
            raise RuntimeError(_BROKEN)
        return self.grad


def is_finite(vector):
    """Return whether ``vector`` (not empty) holds neither NaN nor infinity, in one pass."""
    return all(math.isfinite(bound) for bound in torch.aminmax(vector))  # NaN propagates to both bounds


_BROKEN = (
    "the network's tensors are no longer views of the flat vector (module.to, zero_grad or create_graph=True "
    "replaced them): build a new FlatModel"
)


def _same(tensor, view):
    return tensor is not None and tensor.data_ptr() == view.data_ptr() and tensor.stride() == view.stride()


def _require_plain(module):
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise ValueError(
            f"the model has buffers {buffers}: running statistics are not parameters, so averaging would "
            "skip or corrupt them. Use GroupNorm instead of BatchNorm"
        )
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ValueError("the model has no parameters: there is nothing to train")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name!r} is {parameter.dtype}: convert the model with .float()")
        if not parameter.requires_grad:
            raise ValueError(
                f"parameter {name!r} is frozen: remove it from the model or set requires_grad=True"
            )


def _segments(named):
    segments, start = [], 0
    for name, parameter in named:
        stop = start + parameter.numel()
        segments.append(Segment(name, start, stop, tuple(parameter.shape), channels_last=parameter.ndim == 4))
        start = stop
    return segments
