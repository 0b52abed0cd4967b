"""Part 3 of a round: what happens to a client's message on its way to the server, and how many bytes it is.

A message is a dictionary of named vectors, ``{"delta": [d], ...}``. A client's half turns it into a payload
of named arrays, the server's half turns the payloads of a round back into one matrix for each name.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Dense:
    """Send every vector as it is: 4 bytes a number."""

    def row_size(self, layout):
        """Length of the private row that a client keeps for its uploads; 0 means none."""
        return 0

    def encode(self, ctx, message, row):
        """Client half: return the payload (named arrays) and the client's new row."""
        return message, row

    def decode(self, ctx, payloads):
        """Server half: turn a list of K payloads into ``{name: matrix [K, ...]}``, row k from payload k."""
        return {name: torch.stack([payload[name] for payload in payloads]) for name in payloads[0]}


def num_bytes(arrays):
    """Return the serialized size in bytes of named arrays, without the few bytes that name them."""
    return sum(array.numel() * array.element_size() for array in arrays.values())
