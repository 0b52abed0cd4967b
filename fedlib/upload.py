"""Part 3 of a round: what happens to a client's message on its way to the server, and how many bytes it is.

A message is a dictionary of named vectors, ``{"delta": [d], ...}``. A client's half turns it into a payload
of named arrays, the server's half turns the payloads of a round back into one matrix for each name.
"""

from dataclasses import dataclass

import torch

from fedlib import compress
from fedlib.comm import gather
from fedlib.flat import is_finite


@dataclass(frozen=True)
class Dense:
    """Send every vector as it is: 4 bytes a number."""

    remembers = False  # whether a message may hold what earlier ones left out

    def row_size(self, ctx):
        """Length of the private row that a client keeps for its uploads; 0 means none."""
        return 0

    def encode(self, ctx, message, row):
        """Client half: return the payload (named arrays) and the client's new row."""
        return message, row

    def decode(self, ctx, payloads):
        """Server half: turn a list of K payloads into ``{name: matrix [K, ...]}``, row k from payload k."""
        return _gathered(ctx, payloads)


@dataclass(frozen=True, init=False)
class Compress:
    """Send a message's vectors through a chain of stages: ``Compress(TopK(0.01), Quantize(bits=8))``.

    What is lost on the way is lost.  Compressed are the vectors that ``ctx.vectors`` names, the ones with an entry for each
    parameter; single numbers beside them are sent as they are.
    """

    stages: tuple
    remembers = False

    def __init__(self, *stages):
        kinds = [type(stage) for stage in stages]
        if not stages or any(kind not in (compress.TopK, compress.Quantize) for kind in kinds) or len(set(kinds)) < len(kinds):
            raise ValueError(f"give at most one TopK(…) and one Quantize(…), got {stages}")
        if compress.Quantize in kinds[:-1]:
            raise ValueError("Quantize must come last: it turns numbers into codes, which have no magnitude to choose by")
        object.__setattr__(self, "stages", stages)

    def row_size(self, ctx):
        """Length of the private row that a client keeps for its uploads; 0 means none."""
        return 0

    def encode(self, ctx, message, row):
        """Client half: return the payload (named arrays) and the client's new row."""
        rng, payload = ctx.stream("quantize"), {}
        _require_lengths(ctx, message)
        for name, vector in message.items():
            arrays = compress.shrink(self.stages, vector, rng) if name in ctx.vectors else {"": vector}
            payload |= {f"{name}.{part}" if part else name: array for part, array in arrays.items()}
        return payload, row

    def decode(self, ctx, payloads):
        """Server half: turn a list of K payloads into ``{name: matrix [K, ...]}``, row k from payload k."""
        return _gathered(ctx, [self.arrived(ctx, payload) for payload in payloads])

    def arrived(self, ctx, payload):
        """Return the message ``{name: vector}`` that the server reads from one payload."""
        parts = {}
        for name, array in payload.items():
            name, _, part = name.partition(".")
            parts.setdefault(name, {})[part] = array
        if odd := [name for name in parts if name not in ctx.vectors and parts[name].keys() != {""}]:
            raise ValueError(f"the payload holds parts of {odd}, but only {ctx.vectors} are sent in parts")
        return {
            name: compress.restore(self.stages, arrays, ctx.layout.size) if name in ctx.vectors else payload[name]
            for name, arrays in parts.items()
        }


class ErrorFeedback(Compress):
    """Compress with a memory: what one message leaves out is added to the next (Seide et al. 2014).

    Around the *whole* chain: the residual is what was wanted minus what the server decodes.  So the sum of all that
    arrived plus the residual equals the sum of all updates, for each client and each of its vectors.

    Not so for ``ctx.tracked`` vectors.  They are compressed, but a residual would count twice what they left out, for they are
    changes from what arrived and bring it themselves (the principle of EF21, Richtárik et al. 2021).
    """

    remembers = True

    def row_size(self, ctx):
        return len(_remembered(ctx)) * ctx.layout.size

    def encode(self, ctx, message, row):
        names = _remembered(ctx)
        _require_lengths(ctx, message)
        if row is None:
            row = torch.zeros(self.row_size(ctx), device=message["delta"].device)
        _require_length("the client's row of residuals", row, self.row_size(ctx))
        residuals = dict(zip(names, row.split(ctx.layout.size), strict=True))
        wanted = {name: vector + residuals.get(name, 0) for name, vector in message.items()}
        if broken := [name for name, vector in wanted.items() if not is_finite(vector)]:
            if all(is_finite(message[name]) for name in broken):
                raise ValueError(f"with what earlier messages left out {', '.join(broken)} would not be finite")
            raise ValueError(f"only finite numbers can be sent, got NaN or infinity in {', '.join(broken)}")
        payload, _ = super().encode(ctx, wanted, None)
        sent = self.arrived(ctx, payload)
        # A vector that is not in this round's message keeps its residual.
        left = [wanted[name] - sent[name] if name in wanted else residuals[name] for name in names]
        return payload, torch.cat(left)


def _gathered(ctx, messages):
    if not messages:
        raise ValueError("a round without payloads has nothing to decode: give at least one")
    return gather(messages, ctx.vectors, ctx.layout.size)


def _require_lengths(ctx, message):
    for name, vector in message.items():
        if name in ctx.vectors:
            _require_length(repr(name), vector, ctx.layout.size)


def _require_length(what, vector, length):
    if vector.shape != (length,):
        raise ValueError(f"{what} must have shape [{length}], got {list(vector.shape)}")


def _remembered(ctx):
    return [name for name in ctx.vectors if name not in ctx.tracked]


def num_bytes(arrays):
    """Return the serialized size in bytes of named arrays, without the header that names them (see ``comm``)."""
    return sum(array.numel() * array.element_size() for array in arrays.values())
