"""How a method may bend local training: what control variates, FedProx and personal layers share.

State has two homes. ``server`` is a dictionary of named tensors, broadcast with the model in every round
(so its bytes are counted). ``row`` is one private vector a client, kept where the client is; None until
first written. The base class is plain local SGD; a method overrides only what it needs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Correction:
    """No correction: local SGD as it is.  Also the base class of all corrections.

    The methods are called in this order: ``prepare`` once, then in every round ``begin``, ``correct`` (each
    step), ``end`` on every client, ``commit`` on the server, ``keep`` for every client whose message was used, and
    ``describe``.

    ``plain_steps_only`` is for methods whose formulas assume steps of exactly lr · gradient: it makes
    ``validate`` refuse local momentum. ``rowwise`` says that ``correct`` treats every entry by itself, so that it may
    be handed matrices with one row a client instead of vectors.
    ``vectors`` names what ``end`` may send that has an entry for each parameter: that is what an upload compresses.
    ``tracked`` are those of them that a client sends as the change from what *arrived* of it so far.  What a lossy upload
    leaves out of such a change is part of the next one anyway.  ``reads_delta`` says that more than the model is computed from
    the delta, which therefore must be of this round's steps only.
    """

    plain_steps_only = False
    rowwise = False
    vectors = ("delta",)
    tracked = ()
    reads_delta = False

    def check(self, local):
        """Raise ValueError if the method cannot work with the settings ``local`` of local training."""

    def row_size(self, layout):
        """Length of a client's private row; 0 means that clients keep nothing."""
        return 0

    def prepare(self, ctx, w):
        """Return the server state and ``{client: row}`` before round 0; here warm starts live."""
        return {}, {}

    def begin(self, ctx, server, row, w):
        """Return the vector a client starts from (w, or w with personal entries) and ``carry``, a dictionary.

        ``carry`` accompanies this client through this round; the other methods may read and change it.
        """
        return w, {}

    def correct(self, grad, theta, carry):
        """Return the gradient to step with, shape ``[d]``; ``grad`` is live and may be overwritten."""
        return grad

    def end(self, ctx, carry, result):
        """Return the message: named vectors, of which ``"delta"`` is what the client changed."""
        return {"delta": result.delta}

    def keep(self, carry, sent):
        """Return the client's new row, from the message as the server received it; None keeps the old one."""
        return None

    def commit(self, ctx, server, messages):
        """Return the new server state; ``messages[name]`` has one row for each of ``ctx.clients``."""
        return server

    def describe(self, server, carries):
        """Return numbers for the round's line, from the new server state and the ``carry`` of each client used."""
        return {}
