"""Run an experiment, record it, and continue it after a crash: ``history = run(task, method, rounds=50)``."""

import dataclasses
import functools
import hashlib
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import fedlib
from fedlib import record as records
from fedlib.evaluate import evaluate
from fedlib.executor import Workers, num_workers, one_thread
from fedlib.federation import State, begin, delivered, play_round, validate
from fedlib.progress import progress
from fedlib.store import ClientStore


@dataclass
class History:
    """What a run left behind.

    ``config`` says what was run, ``rounds`` holds one dictionary a round, ``sha256`` fingerprints the final
    vector and ``w`` is that vector, shape ``[d]`` (None if the history was loaded from a committed result).
    """

    config: dict
    rounds: list
    sha256: str
    w: torch.Tensor | None = None

    @property
    def setting(self):
        """One line for captions: data source, number format, device, seed."""
        data, device = self.config["task"]["data"]["name"], self.config["environment"]["device"]
        precision = self.config["method"]["local"]["precision"]
        return f"{data}, {precision}, {device}, seed {self.config['seed']}"

    def series(self, name):
        """Return two arrays: after which rounds ``name`` (accuracy, say) was measured, and its values."""
        found = [(line["t"] + 1, line[name]) for line in self.rounds if line.get(name) is not None]
        if not found:
            known = sorted({key for line in self.rounds for key in line})
            raise ValueError(f"nothing called {name!r} was measured: this history has {known}")
        rounds, values = zip(*found)
        return np.array(rounds), np.array(values)

    def save(self, path):
        """Write everything but the vector to one JSON file, small enough to be committed."""
        content = {"config": self.config, "sha256": self.sha256, "rounds": self.rounds}
        Path(path).write_text(json.dumps(content, allow_nan=False))


def load_history(path):
    """Return the ``History`` that ``save`` wrote to ``path``."""
    return History(**json.loads(Path(path).read_text()))


def run(task, method, rounds, seed=0, record=None, evaluate_every=1, workers=None):
    """Play ``rounds`` rounds of ``method`` on ``task``.

    Parameters
    ----------
    task : Task
    method : Federation
    rounds : int
        Total number of rounds; a record that has some of them already is continued.
    seed : int
        Determines the initial model, the drawn clients and their batches.
    record : path-like, optional
        Folder to record the run in. Where there is one already, the run continues from its last completed
        round, and ends with the same bits as if it had never stopped.
    evaluate_every : int
        Measure the test set after every this many rounds; 0 means never.
    workers : int, optional
        How many clients to train side by side, each on one core; by default as many as there are cores.  The
        result is the same for every number.

    Returns
    -------
    History

    Raises
    ------
    ValueError
        If the parts do not go together (see ``validate``), or the record is damaged or of another experiment.
    """
    if rounds < 0 or evaluate_every < 0:
        raise ValueError(f"rounds and evaluate_every must not be negative, got {rounds} and {evaluate_every}")
    validate(method, task)
    config = describe_run(task, method, seed, evaluate_every)
    count = num_workers(workers, task.device)
    with one_thread(), Workers([task.new_model(seed) for _ in range(count)]) as team:
        model = team.models[0]
        if record is None:
            book, lines, state = None, [], begin(task, method, model, seed)
        else:
            book, state = _open(Path(record), config, task, method, model, seed)
            lines = list(book.lines)
            if len(lines) > rounds:
                raise ValueError(
                    f"{record} has {len(lines)} rounds already, more than {rounds}: ask for that many"
                )
        precision = method.local.precision
        for _ in progress(range(state.t, rounds), "rounds" if precision == "float32" else f"rounds ({precision})"):
            state, line = play_round(task, method, team, seed, state)
            if evaluate_every and state.t % evaluate_every == 0:
                line.update(evaluate(task, model, delivered(method, state), team))
            lines.append(line)
            if book:
                book.append(line, _pack(state))
    for store in state.rows.values():
        store.close()
    w = delivered(method, state)
    return History(config, lines, hashlib.sha256(w.cpu().numpy()).hexdigest(), w)


def describe_run(task, method, seed, evaluate_every):
    """Return what identifies a run, and where it was run, as JSON-ready dictionaries."""
    return {
        "task": {**describe(task), "fingerprint": fingerprint(task)},
        "method": describe(method),
        "seed": describe(seed),
        "evaluate_every": evaluate_every,
        "environment": environment(task.device),
    }


def environment(device="cpu"):
    """Return where a result comes from, as a JSON-ready dictionary: command, versions and device."""
    return {
        "command": " ".join(Path(argument).name for argument in sys.argv),  # folders are nobody's business
        "fedlib": fedlib.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
    }


def describe(thing):
    """Turn settings (dataclasses, functions, numbers, containers of these) into something JSON can hold."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return list(thing.shape)
    if dataclasses.is_dataclass(thing):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing) if f.init}
        return {"is": type(thing).__name__, **fields}
    if isinstance(thing, functools.partial):
        return {"is": describe(thing.func), "args": describe(thing.args), **describe(thing.keywords)}
    if callable(thing) and thing.__name__ != "<lambda>":
        return f"{thing.__module__}.{thing.__qualname__}"
    if isinstance(thing, dict):
        return {str(key): describe(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if isinstance(thing, np.generic):
        return thing.item()
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    raise TypeError(
        f"{thing!r} cannot be written into a record: use numbers, strings, dataclasses or named functions"
    )


def fingerprint(task):
    """Return a hash of who owns what, of all labels, and of a sample of the pixels."""
    digest = hashlib.sha256()
    for indices in task.clients:
        digest.update(indices.tobytes() + b"|")
    data = task.data
    for tensor in (
        data.train_y,
        data.test_y,
        *(x[:: len(x) // 100 + 1] for x in (data.train_x, data.test_x)),
    ):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _open(folder, config, task, method, model, seed):
    """Open the record at ``folder``, created if there is none, and return it with the state it stands at."""

    def start(work):
        state = begin(task, method, model, seed, work)
        for store in state.rows.values():
            store.close()
        return _pack(state)

    if records.is_empty(folder):
        records.create(folder, config, start)
    book, arrays = records.open_record(folder, config)
    return book, _unpack(folder, arrays, task.num_clients, task.device)


def _pack(state):
    """Turn a state into named arrays; of the rows only the index, for they are on disk already."""
    arrays = {"t": np.array(state.t), "w": state.w.cpu().numpy()}
    arrays |= {f"server.{name}": tensor.cpu().numpy() for name, tensor in state.server.items()}
    arrays |= {f"step.{name}": tensor.cpu().numpy() for name, tensor in state.step.items()}
    arrays |= {f"rows.{name}": store.index for name, store in state.rows.items()}
    arrays |= {f"row_size.{name}": np.array(store.d) for name, store in state.rows.items()}
    return arrays


def _unpack(folder, arrays, num_clients, device):
    def named(prefix):
        return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}

    def tensors(prefix):
        return {name: torch.from_numpy(value).to(device) for name, value in named(prefix).items()}

    rows = {}
    for name, index in named("rows.").items():
        path = folder / f"rows-{name}.bin"
        if not path.exists():
            raise ValueError(
                f"{path} is missing: the run cannot be continued. Restore the file, or start again"
            )
        rows[name] = ClientStore(num_clients, int(arrays[f"row_size.{name}"]), path)
        rows[name].index = index
    w = torch.from_numpy(arrays["w"]).to(device)
    return State(int(arrays["t"]), w, tensors("server."), tensors("step."), rows)
