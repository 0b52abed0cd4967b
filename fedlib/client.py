"""A client's part of a round: begin, train, and turn what came out into a message.

A client that fails (its data are broken, its memory is full) is dropped from the round and named; a mistake in the
program is an error.
"""

import warnings
from dataclasses import dataclass

import torch

from fedlib import batched, comm
from fedlib.flat import is_finite
from fedlib.local import local_sgd, make_batches

# What may go wrong with one client's data or device. Anything else (a TypeError, say) is a mistake in a program.
CLIENT_FAULTS = (RuntimeError, ValueError, ArithmeticError, OSError)


@dataclass(frozen=True)
class Report:
    """One client's share of a round: its message in bytes and what stays with it, or why it was dropped."""

    client: int
    dropped: str | None = None
    result: object = None
    payload: bytes = None
    carry: dict = None
    upload_row: object = None


def client_work(ctx, task, method, model, state, w):
    """Run client ``ctx.client`` from the broadcast model ``w`` (shape ``[d]``) and return its ``Report``."""
    if not task.sizes[ctx.client]:
        return Report(ctx.client, dropped="no samples")
    try:
        start, batches, carry = client_begin(ctx, task, method, model, state, w)
        settings = method.local.at(ctx.t)
        result = local_sgd(settings, task, model, start, batches, carry, ctx.stream("augment"))
        return client_end(ctx, method, state, carry, result)
    except CLIENT_FAULTS as error:
        fault = f"{type(error).__name__}: {error}"
        warnings.warn(f"client {ctx.client} was dropped in round {ctx.t}: {fault}", stacklevel=2)
        return Report(ctx.client, dropped=fault)


def client_begin(ctx, task, method, model, state, w):
    """Return where the client starts (shape ``[d]``), its batches, and what its correction carries along."""
    row = read_row(state.rows.get("correction"), ctx.client, w)
    start, carry = method.local.correction.begin(ctx, state.server, row, w)
    return start, own_batches(ctx, task, method.local, model), carry


def own_batches(ctx, task, settings, model):
    """Return the client's minibatches of this round; with early stopping they end when ``model`` no longer gains."""
    indices, aside = task.clients[ctx.client], ()
    if settings.stop:
        indices, aside = settings.stop.split(indices, ctx.seed, ctx.client)
    labels = task.data.train_y[indices].cpu().numpy() if settings.balance else None
    batches = make_batches(indices, settings, ctx.stream("batches"), model.theta.device, labels)
    return settings.stop.watch(batches, settings.epochs, task, model, aside) if len(aside) else batches


def client_end(ctx, method, state, carry, result):
    """Return the client's ``Report``: its message, refused if it is not finite, encoded, and packed."""
    message = method.local.correction.end(ctx, carry, result)
    broken = [name for name, vector in message.items() if not is_finite(vector)]
    if broken:
        return Report(ctx.client, dropped=f"not finite: {', '.join(broken)}", result=result)
    row = read_row(state.rows.get("upload"), ctx.client, result.delta)
    try:
        payload, upload_row = method.upload.encode(ctx, message, row)
    except ValueError as error:  # together with what earlier messages left out it may be too large
        return Report(ctx.client, dropped=f"cannot be sent: {error}", result=result)
    return Report(ctx.client, None, result, comm.pack(payload), carry, upload_row)


def clients_together(contexts, task, method, model, state, starts):
    """Do the ``client_work`` of several clients in one batched training, and return their reports."""
    able = [(ctx, w) for ctx, w in zip(contexts, starts) if task.sizes[ctx.client]]
    begun = [client_begin(ctx, task, method, model, state, w) for ctx, w in able]
    results = batched.local_sgd_rows(method.local.at(contexts[0].t), task, model, *map(list, zip(*begun))) if begun else []
    reports = {
        ctx.client: client_end(ctx, method, state, carry, result)
        for (ctx, _), (_, _, carry), result in zip(able, begun, results)
    }
    return [reports.get(ctx.client, Report(ctx.client, dropped="no samples")) for ctx in contexts]


def read_row(store, client, like):
    """Return what ``store`` has for ``client``, on the device of ``like``; None if there is no store or no row."""
    row = store.read(client) if store is not None else None
    return None if row is None else torch.from_numpy(row).to(like.device)
