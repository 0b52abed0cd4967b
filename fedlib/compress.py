"""Compression of vectors: fewer entries, fewer bits.

A *stage* makes a vector smaller: ``TopK`` shortens it, ``Quantize`` coarsens it.  Stages form a chain.  The client runs
it from the first to the last, the server backward from the last to the first; ``upload`` sends messages through it.
"""

import operator
from dataclasses import dataclass

import torch

BITS = (1, 2, 4, 8)
ROUNDINGS = ("nearest", "stochastic")


@dataclass(frozen=True)
class TopK:
    """Keep the share ``fraction`` of a vector's entries that are largest in magnitude; the others count as zero.

    What is left has ‖x − C(x)‖² ≤ (1 − k/d) ‖x‖² (Stich et al. 2018).  Each kept entry costs a 32-bit index as well.
    """

    fraction: float

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], got {self.fraction}: 0.01 keeps one percent")

    def length(self, size):
        """Return how many of ``size`` entries are kept: k, at least 1."""
        return max(1, round(self.fraction * size))

    def shrink(self, vector, rng):
        """Return the kept entries ``[k]`` and the side arrays, their places in increasing order."""
        index = torch.topk(vector.abs(), self.length(len(vector)), sorted=False).indices.sort().values
        return vector[index], {"index": index.int()}

    def restore(self, values, side, size):
        """Return the vector of ``size`` entries that ``shrink`` left this of."""
        k, index = self.length(size), side["index"]
        _require(values.shape == (k,) and values.is_floating_point(), f"{k} kept entries", values)
        _require(index.shape == (k,) and index.dtype == torch.int32, f"{k} places", index)
        rising = bool((index[1:] > index[:-1]).all())
        _require(rising and 0 <= index[0] and index[-1] < size, f"rising places below {size}", index)
        return values.new_zeros(size).index_put_((index.long(),), values)


@dataclass(frozen=True)
class Quantize:
    """Send each number as one of 2^``bits`` equally spaced values between the least and the greatest.

    Parameters
    ----------
    bits : {1, 2, 4, 8}
        Smaller codes share a byte.
    rounding : {"nearest", "stochastic"}
        ``"nearest"`` errs by at most half a step.  ``"stochastic"`` rounds up or down at random so that the expectation
        is right (Alistarh et al. 2017, QSGD), with a variance of at most step²/4.
    chunk : int, optional
        Entries that share a range of their own; by default the whole vector has one.
    """

    bits: int = 8
    rounding: str = "nearest"
    chunk: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "bits", _integer("bits", self.bits))
        if self.bits not in BITS:
            raise ValueError(f"bits must be one of {BITS}, got {self.bits!r}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding must be one of {ROUNDINGS}, got {self.rounding!r}")
        if self.chunk is not None:
            object.__setattr__(self, "chunk", _integer("chunk", self.chunk))
            if self.chunk < 1:
                raise ValueError(f"chunk must be at least 1, or None for one range, got {self.chunk}")

    def length(self, size):
        """Return how many bytes the codes of ``size`` numbers take."""
        return -(-size * self.bits // 8)

    def shrink(self, vector, rng):
        """Return the codes, packed into bytes, and the side arrays, the range of each chunk."""
        # In double precision neither a tiny nor a huge range over- or underflows.
        rows = _padded(vector.double(), self.chunk)
        low, high = rows.aminmax(dim=1, keepdim=True)
        _require(torch.isfinite(rows).all(), "finite numbers", vector)
        _require(torch.isfinite(high - low).all(), "numbers whose range, greatest minus least, is finite", vector)
        levels = 2**self.bits - 1
        scaled = ((rows - low) / (high - low) * levels).nan_to_num_(0.0).flatten()[: len(vector)]  # 0/0: constant
        if self.rounding == "stochastic":
            scaled = (scaled + torch.from_numpy(rng.random(len(vector))).to(vector.device)).floor_()
        codes = scaled.round_().clamp_(max=levels).to(torch.uint8)
        return _pack_bits(codes, self.bits), {"range": torch.cat([low, high], dim=1).to(vector.dtype)}

    def restore(self, values, side, size):
        """Return the vector of ``size`` entries, coarsened, that ``shrink`` left this of."""
        chunk, ranges = self.chunk or size, side["range"]
        _require(values.shape == (self.length(size),) and values.dtype == torch.uint8, f"codes of {size} numbers", values)
        _require(ranges.shape == (-(-size // chunk), 2) and ranges.is_floating_point(), "a range a chunk", ranges)
        low, high = ranges.double().split(1, dim=1)
        _require(torch.isfinite(high - low).all() and (low <= high).all(), "ranges that are finite and in order", ranges)
        rows = _padded(_unpack_bits(values, self.bits)[:size].double() / (2**self.bits - 1), self.chunk)
        # Unlike low + share · (high − low), lerp gives back both ends exactly.
        return torch.lerp(low, high, rows).flatten()[:size].to(ranges.dtype)


def shrink(stages, vector, rng):
    """Return the arrays that a chain makes of ``vector`` (shape ``[d]``): ``"values"`` and those that go with them."""
    if not vector.is_floating_point():
        raise TypeError(f"only floating-point numbers can be compressed, got {vector.dtype}: convert with vector.float()")
    _require(vector.ndim == 1 and len(vector), "a vector of at least one entry", vector)
    arrays = {}
    for stage in stages:
        vector, side = stage.shrink(vector, rng)
        arrays |= side
    return {"values": vector, **arrays}


def restore(stages, arrays, size):
    """Return the vector of ``size`` entries that the server makes of a chain's arrays.

    Raises
    ------
    ValueError
        If anything is missing, too much, or not what the chain would have made.
    """
    sizes = [size]
    for stage in stages:
        sizes.append(stage.length(sizes[-1]))
    names = {"values"} | {{TopK: "index", Quantize: "range"}[type(stage)] for stage in stages}
    if arrays.keys() != names:
        raise ValueError(f"a compressed vector consists of {sorted(names)}, got {sorted(arrays)}")
    vector = arrays["values"]
    for stage, length in zip(reversed(stages), reversed(sizes[:-1])):
        vector = stage.restore(vector, arrays, length)
    return vector


def _integer(name, number):
    try:
        if not isinstance(number, bool):
            return operator.index(number)
    except TypeError:
        pass
    raise TypeError(f"{name} must be an integer, got {number!r}")


def _padded(vector, chunk):
    # With its own last entry, so that a short chunk's range stays what it is.
    chunk = min(chunk or len(vector), len(vector))
    missing = -len(vector) % chunk
    return torch.cat([vector, vector[-1:].expand(missing)]).view(-1, chunk)


def _pack_bits(codes, bits):
    if bits == 8:
        return codes
    shifts = torch.arange(0, 8, bits, device=codes.device)
    groups = torch.nn.functional.pad(codes, (0, -len(codes) % len(shifts))).view(-1, len(shifts))
    return (groups.long() << shifts).sum(dim=1).to(torch.uint8)


def _unpack_bits(values, bits):
    if bits == 8:
        return values
    shifts = torch.arange(0, 8, bits, device=values.device)
    return ((values[:, None].long() >> shifts) & (2**bits - 1)).flatten()


def _require(holds, what, got):
    if not holds:
        raise ValueError(f"expected {what}, got {got.dtype} of shape {tuple(got.shape)}: {got}")
