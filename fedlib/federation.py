"""The round: select → local training → upload → aggregate → step; the library's only round loop.

To follow a delta from a client to the model, read ``local.local_sgd``, ``client.client_work``, ``play_round``
and, where that calls them, the aggregator's ``combine`` and the server's ``step``. Who runs the clients, side by side or
one after another, changes nothing about it and is told in ``executor``.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from fedlib import batched, comm, rng
from fedlib.aggregate import WeightedMean
from fedlib.client import client_work, clients_together, read_row
from fedlib.context import Context
from fedlib.flat import is_finite
from fedlib.local import LocalSGD, full_gradient, reason_against_precision
from fedlib.selection import All
from fedlib.server import ServerSGD
from fedlib.store import ClientStore
from fedlib.upload import Dense, num_bytes


@dataclass(frozen=True)
class Federation:
    """A method: a choice of the five parts of a round.  The defaults are FedAvg (McMahan et al. 2017).

    A round in which fewer than ``min_clients`` messages arrive is skipped: the model stays as it is.
    """

    local: LocalSGD
    aggregate: object = field(default_factory=WeightedMean)
    upload: object = field(default_factory=Dense)
    step: object = field(default_factory=ServerSGD)
    select: object = field(default_factory=All)
    min_clients: int = 1


@dataclass(frozen=True)
class State:
    """Everything that one round hands to the next.

    ``w`` is the model, ``server`` the correction's broadcast state, ``step`` the server step's private one,
    and ``rows`` holds a ``ClientStore`` for each part (``"correction"``, ``"upload"``, ``"aggregate"``) that keeps rows.
    """

    t: int
    w: torch.Tensor
    server: dict
    step: dict
    rows: dict


def validate(method, task):
    """Refuse what cannot work, before any work; returns nothing.

    Raises
    ------
    ValueError
        Naming both things that do not go together, and why.
    """
    expected = method.select.expected_size(task.num_clients)
    if expected > task.num_clients:
        raise ValueError(
            f"{method.select} draws {expected} clients, but the task has only {task.num_clients}"
        )
    least = 0 if getattr(method.aggregate, "takes_nobody", False) else 1
    if not least <= method.min_clients <= expected:
        raise ValueError(
            f"min_clients={method.min_clients} must lie between {least} and the {expected:g} clients that "
            f"{method.select} draws" + (f": {method.aggregate} cannot combine nothing" if least else "")
        )
    if method.local.momentum and method.local.correction.plain_steps_only:
        raise ValueError(
            f"local momentum={method.local.momentum} does not go with {method.local.correction}, "
            "which infers gradients from lr times the number of steps: set momentum=0 (or use the server's)"
        )
    if method.upload.remembers and method.local.correction.reads_delta:
        raise ValueError(
            f"{method.upload} does not go with {method.local.correction}, which computes from the delta that arrives: with "
            "error feedback that is not this round's. Send the control variate itself, or use Compress"
        )
    reason = reason_against_precision(method.local.precision, task.device)
    if reason:
        raise ValueError(f"precision={method.local.precision!r} does not go with device {task.device!r}: {reason}")
    module = task.new_model(seed=0).module
    if method.local.batched and (reason := batched.reason_against(method.local, task, module)):
        raise ValueError(f"batched=True does not go with this task: {reason}. Set batched=False")
    if method.local.balance and task.data.train_y.is_floating_point():
        raise ValueError("balance=True needs classes to balance, but the targets are numbers: set balance=False")
    method.local.correction.check(method.local.at(0))
    if hasattr(method.aggregate, "check"):
        method.aggregate.check(method)
    if not task.data.train_y.is_floating_point():
        width = module(task.data.train_x[:1]).shape[1]
        if width != task.data.num_classes:
            raise ValueError(
                f"the model has {width} outputs, but the task has num_classes={task.data.num_classes}: "
                "build the last layer from the num_classes argument, never from a client's labels"
            )


def begin(task, method, model, seed, folder=None):
    """Return the ``State`` before round 0: the model's initial vector and the correction's warm start.

    ``folder`` holds the clients' rows; by default they live in memory or an anonymous file.
    An aggregator that ``remembers`` is given a row for each client as well, on the server: the last delta that arrived.
    """
    correction, w = method.local.correction, model.theta.clone()
    ctx = _context(task, method, model, seed, 0, np.arange(task.num_clients))
    sizes = {
        "correction": correction.row_size(model.layout),
        "upload": method.upload.row_size(ctx),
        "aggregate": model.layout.size if _remembers(method) else 0,
    }
    rows = {}
    for name, size in sizes.items():
        if size:
            rows[name] = ClientStore(task.num_clients, size, folder and folder / f"rows-{name}.bin")
    server, start_rows = correction.prepare(ctx, w)
    _write_rows(rows.get("correction"), start_rows)
    return State(0, w, server, method.step.prepare(w), rows)


def delivered(method, state):
    """Return the model to test and to hand over, shape ``[d]``: the server's own, or what its step makes of several."""
    deliver = getattr(method.step, "deliver", None)
    return deliver(state.step, state.w) if deliver else state.w


def play_round(task, method, workers, seed, state):
    """Play one round.

    Parameters
    ----------
    task : Task
    method : Federation
    workers : executor.Workers
        Networks to train clients on; their content is overwritten.
    seed : int
    state : State
        Its tensors are not changed; rows of clients whose message is used are.

    Returns
    -------
    State
        For the next round.
    dict
        What happened, ready for JSON.
    """
    method.local.correction.check(method.local.at(state.t))  # a schedule may have changed the learning rate
    jobs = method.select.draw(state.t, task.num_clients, rng.stream(seed, "select", state.t))
    drawn = np.array([client for client, _ in jobs], dtype=np.int64)
    model = workers.models[0]
    ctx = _context(task, method, model, seed, state.t, drawn, state.w)
    versions = {state.t: state.w}  # an asynchronous method would keep older models here

    def work(workspace, client, version):
        mine = replace(ctx, client=client, full_gradient=partial(full_gradient, task, workspace))
        return client_work(mine, task, method, workspace, state, versions[version])

    if method.local.batched:
        contexts = [replace(ctx, client=client) for client, _ in jobs]
        reports = clients_together(contexts, task, method, model, state, [versions[v] for _, v in jobs])
    else:
        reports = workers.map(work, jobs, costs=task.sizes[drawn])
    used = [report for report in reports if not report.dropped]
    ctx = replace(
        ctx,
        clients=np.array([report.client for report in used], dtype=np.int64),
        steps=np.array([report.result.steps for report in used], dtype=np.int64),
        last=partial(read_row, state.rows.get("aggregate"), like=state.w),  # for an aggregator that remembers
    )
    payloads = [comm.unpack(report.payload, state.w.device) for report in used]
    line = _describe(state, reports, used, payloads)
    if len(used) < method.min_clients:
        reason = f"{len(used)} usable messages, min_clients is {method.min_clients}"
        return replace(state, t=state.t + 1), {**line, "skipped": reason}

    nothing = {"delta": state.w.new_zeros(0, len(state.w))}
    messages = method.upload.decode(ctx, payloads) if used else nothing
    update, weights = method.aggregate.combine(ctx, messages["delta"])
    w, step = method.step.step(state.step, state.w, update)
    if not is_finite(w):
        return replace(state, t=state.t + 1), {**line, "skipped": "the new model would not be finite"}
    server = method.local.correction.commit(ctx, state.server, messages)
    _keep_rows(method, state.rows, used, messages)
    line["weights"] = [float(p) for p in weights]
    line |= method.local.correction.describe(server, [report.carry for report in used])
    return State(state.t + 1, w, server, step, state.rows), line


def _context(task, method, model, seed, t, drawn, w=None):
    correction, gradient = method.local.correction, partial(full_gradient, task, model)
    return Context(
        t, seed, drawn, drawn, task.weights, model.layout, gradient,
        w=w, vectors=correction.vectors, tracked=correction.tracked,
    )  # fmt: skip


def _remembers(method):
    return getattr(method.aggregate, "remembers", False)


def _keep_rows(method, stores, used, messages):
    """Let every client whose message was used keep its new rows, and the server its delta if it remembers."""
    rows = {"correction": {}, "upload": {}, "aggregate": {}}
    for k, report in enumerate(used):
        sent = {name: matrix[k] for name, matrix in messages.items()}
        rows["correction"][report.client] = method.local.correction.keep(report.carry, sent)
        rows["upload"][report.client] = report.upload_row
        rows["aggregate"][report.client] = sent["delta"]
    for name, store in stores.items():
        _write_rows(store, rows[name])


def _write_rows(store, rows):
    for client, row in rows.items():
        if row is not None:
            store.write(client, row.cpu().numpy())
    if store is not None:
        store.commit()


def _describe(state, reports, used, payloads):
    samples = sum(report.result.samples for report in used)
    broadcast = {"w": state.w} | {f"server.{name}": tensor for name, tensor in state.server.items()}
    bytes_up = sum(map(num_bytes, payloads))
    return {
        "t": state.t,
        "clients": [report.client for report in used],
        "dropped": {str(report.client): report.dropped for report in reports if report.dropped},
        "steps": [report.result.steps for report in used],
        "lr": sorted({report.result.lr for report in used}),
        "train_loss": sum(r.result.loss * r.result.samples for r in used) / samples if samples else None,
        "bytes_down": len(reports) * num_bytes(broadcast),
        "header_down": len(reports) * len(comm.header(broadcast)),
        "bytes_up": bytes_up,
        "header_up": sum(len(report.payload) for report in used) - bytes_up,
    }
