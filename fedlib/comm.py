"""What a message is on the wire, and the ledger that counts it.

A message is packed into bytes by a layout so plain that its length can be computed by hand, and unpacked with
suspicion: whatever does not follow the layout to the last byte is refused.  Nothing is ever unpickled, because
unpickling runs what the sender wrote.

The layout, all numbers little-endian::

    "fed1"                                             4 bytes
    number of arrays                                   1 byte
    for each array:  length of its name, the name      1 byte + the name in ASCII
                     kind of number (see KINDS)        1 byte
                     number of axes, and each length   1 byte + 4 bytes an axis
    for each array:  its numbers, row after row

All but the last line is the *header*: it names and describes, and its size does not depend on how long the arrays are.
"""

import math
import struct

import numpy as np
import torch

from fedlib.flat import is_finite

MAGIC = b"fed1"
# The position is the code on the wire.
KINDS = (torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64)
NUMPY = ("<f4", "<f8", "|u1", "<i4", "<i8")


def header(arrays):
    """Return the header of a message of named arrays.

    Parameters
    ----------
    arrays : dict of tensors
        At most 255; names of 1 to 255 ASCII characters.

    Raises
    ------
    ValueError
        For a name or a kind of number that the layout has no place for.
    """
    if len(arrays) > 255:
        raise ValueError(f"a message holds at most 255 arrays, got {len(arrays)}")
    parts = [MAGIC, struct.pack("<B", len(arrays))]
    for name, array in arrays.items():
        if not (name.isascii() and name.isprintable() and 0 < len(name) < 256):
            raise ValueError(f"a name on the wire has 1 to 255 ASCII characters, got {name!r}")
        if array.dtype not in KINDS:
            raise ValueError(f"{name!r} holds {array.dtype}, which has no code: convert it to one of {KINDS}")
        parts += [struct.pack("<B", len(name)), name.encode(), struct.pack("<BB", KINDS.index(array.dtype), array.ndim)]
        parts.append(struct.pack(f"<{array.ndim}I", *array.shape))
    return b"".join(parts)


def pack(arrays):
    """Return the bytes of a message of named arrays.

    Examples
    --------
    >>> data = pack({"delta": torch.tensor([1.0, -2.0])})
    >>> len(data), len(data) - 2 * 4  # in all, and the header
    (25, 17)
    >>> unpack(data)
    {'delta': tensor([ 1., -2.])}
    """
    return header(arrays) + b"".join(array.contiguous().cpu().numpy().tobytes() for array in arrays.values())


def unpack(data, device="cpu"):
    """Return the named arrays of a message, as tensors on ``device``.

    Raises
    ------
    ValueError
        If ``data`` does not follow the layout from the first byte to the last.
    """
    read = _Reader(data)
    if read.take(4) != MAGIC:
        raise ValueError(f"not a message: it starts with {data[:4]!r}, not with {MAGIC!r}")
    described = {}
    for _ in range(read.number("<B")):
        name = read.take(read.number("<B")).decode("latin-1")
        code, ndim = read.number("<B"), read.number("<B")
        if not (name and name.isascii() and name.isprintable()) or name in described or code >= len(KINDS):
            raise ValueError(f"the header is damaged near array {name!r} of kind {code}")
        described[name] = np.dtype(NUMPY[code]), [read.number("<I") for _ in range(ndim)]
    # Compared before anything is allocated: a forged header must not cost the server its memory.
    wanted = sum(kind.itemsize * math.prod(shape) for kind, shape in described.values())
    if wanted != len(data) - read.position:
        raise ValueError(f"the header announces {wanted} bytes of numbers, {len(data) - read.position} follow")
    return {
        name: torch.from_numpy(
            np.frombuffer(read.take(kind.itemsize * math.prod(shape)), kind).reshape(shape).copy()
        ).to(device)
        for name, (kind, shape) in described.items()
    }


class _Reader:
    def __init__(self, data):
        self.data, self.position = data, 0

    def take(self, count):
        self.position += count
        if self.position > len(self.data):
            raise ValueError(f"the message ends after {len(self.data)} bytes, in the middle of something")
        return self.data[self.position - count : self.position]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]


def gather(messages, vectors, d):
    """Return ``{name: matrix}``, row k from message k, for messages that agree with each other and the model.

    Parameters
    ----------
    messages : list of K dicts of tensors
    vectors : tuple of str
        Names whose vectors must have shape ``[d]``.
    d : int

    Raises
    ------
    ValueError
        If names, kinds or shapes differ between messages, there is no ``"delta"``, or a number is not finite.
    """
    def described(message):
        return {name: (array.dtype, *array.shape) for name, array in message.items()}

    first = described(messages[0])
    first |= {name: (messages[0][name].dtype, d) for name in vectors if name in first}
    for message in messages:
        found = described(message)
        if found != first or "delta" not in found:
            raise ValueError(f"a message holds {found}, expected {first}")
        for name, array in message.items():
            if not array.is_floating_point() or not array.numel() or not is_finite(array):
                raise ValueError(f"{name!r} must hold finite numbers, got {array.dtype}: {array}")
    return {name: torch.stack([message[name] for message in messages]) for name in first}


# The ledger ------------------------------------------------------------------------------------------------


def dense_bytes(rounds, m, d):
    """Return 4 · T · m · d, the bytes that uncompressed float32 models need in *one* direction."""
    return 4 * rounds * m * d


def megabytes(lines, directions=("up", "down")):
    """Return the megabytes moved up to and including each round, headers included, shape ``[T]``.

    Parameters
    ----------
    lines : list of dict
        ``History.rounds``.
    directions : tuple of {"up", "down"}
    """
    # Lines from before headers were counted have none.
    each = [sum(line[f"bytes_{way}"] + line.get(f"header_{way}", 0) for way in directions) for line in lines]
    return np.cumsum(each) / 1e6


def megabytes_to(lines, target, directions=("up", "down")):
    """Return the megabytes until test accuracy first reaches ``target``; infinity if it never does."""
    for line, spent in zip(lines, megabytes(lines, directions)):
        if line.get("accuracy") is not None and line["accuracy"] >= target:
            return float(spent)
    return math.inf
