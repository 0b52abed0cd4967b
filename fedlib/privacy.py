"""Differential privacy for clients: clip where the client is, add noise to the sum (chapter 10).

    w ← w + (Σ_{k drawn} clip(Δ_k, S) + N(0, z²S² I)) / (qN)      DP-FedAvg (McMahan et al. 2018)

Each client is drawn by itself with probability q. Two things make the noise enough: no client moves the sum by more
than S, and the denominator qN knows nothing about who came. How much privacy that is, ``accounting`` says.
"""

import math
from dataclasses import dataclass

import torch

from fedlib.aggregate import FixedMean
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.selection import Poisson
from fedlib.upload import Dense


def clip_rows(deltas, norm):
    """Scale every row that is longer than ``norm`` down to that length; the others stay as they are.

    Parameters
    ----------
    deltas : tensor, shape [..., d]
        Deltas, never weights: how far a client came, not where it stands.
    norm : float
        The clip norm S, in the units of a delta.

    Returns
    -------
    tensor, same shape

    Examples
    --------
    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """
    _positive("norm", norm)
    lengths = torch.linalg.vector_norm(deltas, dim=-1, keepdim=True, dtype=torch.float64)
    return (deltas * (norm / lengths.clamp(min=norm))).to(deltas.dtype)


@dataclass(frozen=True)
class Clip(Dense):
    """Send every vector as it is, but none longer than its clip norm: the last thing done on the client.

    Parameters
    ----------
    norm : float
        S, the largest length of a delta.
    control : float, optional
        The largest length of what a client sends about its control variate, if it sends any.
    """

    norm: float
    control: float | None = None

    def __post_init__(self):
        _positive("norm", self.norm)
        if self.control is not None:
            _positive("control", self.control)

    def encode(self, ctx, message, row):
        """Client half: return the payload, clipped, and the client's new row."""
        norms = {"delta": self.norm, "control": self.control}
        if unbounded := [name for name in message if norms.get(name) is None]:
            raise TypeError(f"{self} has no clip norm for {unbounded}, which this method sends as well")
        return super().encode(ctx, {name: clip_rows(vector, norms[name]) for name, vector in message.items()}, row)


@dataclass(frozen=True)
class Noisy:
    """A mean with Gaussian noise, N(0, z²S²) on the sum in each entry: the server's half of DP-FedAvg.

    Parameters
    ----------
    mean : FixedMean
        Divides the sum by qN, and the noise with it.
    clip : float
        S, by how much one client can move the sum; the upload must be ``Clip(S)``.
    noise_multiplier : float
        z, the noise in units of S.
    """

    mean: object
    clip: float
    noise_multiplier: float
    takes_nobody = True

    def __post_init__(self):
        _positive("clip", self.clip)
        _positive("noise_multiplier", self.noise_multiplier)

    def combine(self, ctx, deltas):
        """Return the update ``[d]`` and the weight ``[K]`` of each row of ``deltas`` ``[K, d]``; K may be 0."""
        update, weights = self.mean.combine(ctx, deltas)
        std = self.noise_multiplier * self.clip / (self.mean.rate * ctx.num_clients)
        return update + gaussian(ctx.stream("noise"), std, update), weights

    def check(self, method):
        """Refuse parts with which the accounted ε would not be true, saying why."""
        reason = reason_against(self, method)
        if reason:
            raise ValueError(f"differential privacy does not go with {reason}")


def reason_against(noisy, method):
    """Return which part of ``method`` breaks the privacy that ``noisy`` promises, and why; "" if none does."""
    mean, select, upload, correction = noisy.mean, method.select, method.upload, method.local.correction
    if type(mean) is not FixedMean:  # nor a subclass, here and below: it might do anything
        return (
            f"{mean}: its weights depend on the clients' data or on who else is drawn, so that one client moves "
            "more than its own row, by more than the noise was made for. Use FixedMean(rate)"
        )
    if type(select) is not Poisson:
        return (
            f"{select}: the accountant assumes that each client is drawn by itself. With a fixed number one "
            f"client's coming is another's staying away. Use Poisson({mean.rate})"
        )
    if select.rate != mean.rate:
        return f"two rates: {select} draws, but {mean} divides. Use one"
    if type(upload) is not Clip:
        return (
            f"{upload}: nothing bounds what arrives. The last step on the client has to be the clip, because "
            f"whatever follows it may lengthen the vector again. Use Clip({noisy.clip})"
        )
    if upload.norm != noisy.clip:
        return f"two clip norms: {upload}, but noise for {noisy.clip}. Use one"
    if method.min_clients:
        return (
            f"min_clients={method.min_clients}: a skipped round tells that few clients were drawn. Use 0; a "
            "round without clients is a round of pure noise"
        )
    return _reason_against_correction(correction, upload)


def _reason_against_correction(correction, upload):
    if type(correction) is PrivateScaffold:
        if correction.clip != upload.control:
            return f"two clip norms for control variates: {upload}, but noise for {correction.clip}. Use one"
        return ""
    own = [name for name in ("prepare", "end", "commit") if getattr(type(correction), name) is not getattr(Correction, name)]
    if own and not getattr(correction, "private", False):
        return (
            f"{correction}: its {', '.join(own)} may tell the server more than a clipped delta, and that "
            "without noise. Use PrivateScaffold, or a correction that sends nothing else"
        )
    return f"{upload}: this method sends no control variates. Leave control out" if upload.control else ""


@dataclass(frozen=True, kw_only=True)
class PrivateScaffold(Scaffold):
    """SCAFFOLD whose control variates are released like the deltas: clipped on the client, summed, and noisy.

    c ← c + (Σ_{k drawn} clip(Δc_k, S_c) + N(0, z_c²S_c² I)) / N, with equal weights.  Delta and control variate of
    a round come from the same draw, so the two count as one release with less noise (``joint_multiplier``).

    Parameters
    ----------
    clip : float
        S_c, in the units of a gradient.
    noise_multiplier : float
        z_c.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self):
        super().__post_init__()
        _positive("clip", self.clip)
        _positive("noise_multiplier", self.noise_multiplier)
        if (self.start, self.refresh_every, self.rebuild) != ("zero", 1, False):
            raise ValueError(
                "PrivateScaffold starts at zero and renews its vectors in every round: a warm start would send "
                f"gradients without noise. Got {self}"
            )

    def commit(self, ctx, server, messages):
        total = torch.zeros_like(server["c"], dtype=torch.float64)
        for change in messages.get("control", ()):  # none if nobody was drawn: then it is all noise
            total += change
        noise = gaussian(ctx.stream("control_noise"), self.noise_multiplier * self.clip, total)
        return {"c": server["c"] + ((total + noise) / ctx.num_clients).float()}


def gaussian(stream, std, like):
    """Return N(0, std²) for each entry of ``like``, from the numbers of ``stream``."""
    return torch.from_numpy(stream.normal(0, std, len(like))).to(like)


def joint_multiplier(*multipliers):
    """Return the noise multiplier of several releases about the same drawn clients, seen together.

    In units of their noise the releases move by 1/z_i each, and at right angles: 1/z² = Σ 1/z_i².

    Examples
    --------
    >>> round(joint_multiplier(1, 1), 4)
    0.7071
    """
    if not multipliers:
        raise ValueError("give the noise multiplier of at least one release")
    for multiplier in multipliers:
        _positive("a noise multiplier", multiplier)
    return 1 / math.hypot(*(1 / multiplier for multiplier in multipliers))


def _positive(name, value):
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")
