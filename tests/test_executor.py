"""Who runs the clients: any number of workers gives the same bits, and nothing is left behind."""

import threading
import warnings

import numpy as np
import pytest
import torch
from two_clients import PersonalSlice

from fedlib import local, models, partition
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.ema import EMAControl
from fedlib.executor import Workers, num_workers, one_thread
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.prox import FedProx
from fedlib.selection import Uniform
from fedlib.task import Task

RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "prox": {"correction": FedProx(0.5)},
    "SCAFFOLD": {"correction": Scaffold(start="own")},
    "EMA": {"correction": EMAControl(0.1, kept=True)},
    "personal slice": {"correction": PersonalSlice(10, 30)},
    "bf16": {"precision": "bf16"},
}


def task(model=models.cnn, shape=(1, 8, 8), num_clients=7, n=210):
    rng = np.random.default_rng(1)
    y = torch.from_numpy(np.arange(n) % 3)
    x = torch.from_numpy(rng.normal(size=(n, *shape)).astype(np.float32))
    return Task(model, Dataset("noise", x, y, x, y, 3), partition.dirichlet(alpha=0.3, num_clients=num_clients))


@pytest.fixture(autouse=True)
def bf16_anywhere(monkeypatch):
    monkeypatch.setattr(local, "cpu_has_bf16", lambda: True)


@pytest.mark.parametrize("rule", RULES)
def test_any_number_of_workers_gives_the_same_bits(rule):
    method = Federation(LocalSGD(lr=0.05, epochs=2, batch_size=8, **RULES[rule]), select=Uniform(5))
    alone, *others = (run(task(), method, 3, workers=count) for count in (1, 2, 3, 6))
    for other in others:
        assert other.sha256 == alone.sha256
        assert other.rounds == alone.rounds


def test_a_run_may_be_continued_with_another_number_of_workers(tmp_path):
    local = LocalSGD(lr=0.05, batch_size=8, correction=Scaffold(start="own"))
    method, plain = Federation(local, select=Uniform(4)), task()
    straight = run(plain, method, 6, workers=1)
    for rounds, workers in ((2, 2), (3, 1), (6, 3)):
        continued = run(plain, method, rounds, workers=workers, record=tmp_path / "record")
    assert continued.sha256 == straight.sha256 and continued.rounds == straight.rounds


def test_jobs_start_with_the_largest_and_come_back_in_their_order():
    started, lock = [], threading.Lock()
    both_are_there = threading.Barrier(2)

    def work(model, name):
        with lock:
            started.append(name)
        if name in ("largest", "large"):
            both_are_there.wait(10)  # so that the two threads take these two, and the others wait
        return name, model

    jobs, costs = [("small",), ("largest",), ("large",), ("smallest",)], [2, 9, 8, 1]
    with Workers(["a", "b"]) as team:
        results = team.map(work, jobs, costs)
    assert [name for name, _ in results] == ["small", "largest", "large", "smallest"]
    assert set(started[:2]) == {"largest", "large"}
    assert {model for _, model in results} == {"a", "b"}


def test_two_jobs_never_share_a_network():
    inside, lock = set(), threading.Lock()

    def work(model, _):
        with lock:
            assert model not in inside
            inside.add(model)
        threading.Event().wait(0.001)
        with lock:
            inside.remove(model)

    with Workers(["a", "b", "c"]) as team:
        team.map(work, [(i,) for i in range(60)], [1] * 60)


def test_the_threads_compute_on_one_core_each():
    with one_thread(), Workers(["a", "b"]) as team:
        assert set(team.map(lambda *_: torch.get_num_threads(), [(i,) for i in range(8)], [1] * 8)) == {1}


class Fails(Correction):
    """Raises on one client, in the middle of its training."""

    def __init__(self, error, client=2):
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "client", client)

    def begin(self, ctx, server, row, w):
        return w, {"client": ctx.client}

    def correct(self, grad, theta, carry):
        if carry["client"] == self.client:
            raise self.error
        return grad


def play(correction, workers, rounds=2):
    method = Federation(LocalSGD(lr=0.05, epochs=2, batch_size=8, correction=correction))
    return run(task(), method, rounds, workers=workers, evaluate_every=0)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ValueError("bad picture"), OSError("disk")])
def test_a_client_that_fails_is_dropped_and_named_and_the_round_goes_on(workers, error, monkeypatch):
    monkeypatch.setattr("fedlib.experiment.describe_run", lambda *_: {})
    with pytest.warns(UserWarning, match=f"client 2 was dropped in round 0: {type(error).__name__}: {error}"):
        history = play(Fails(error), workers, rounds=1)
    for line in history.rounds:
        assert line["dropped"] == {"2": f"{type(error).__name__}: {error}"}
        assert line["clients"] == [0, 1, 3, 4, 5, 6] and sum(line["weights"]) == pytest.approx(1)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("error", [TypeError, NameError, AttributeError, KeyError, AssertionError])
def test_a_mistake_in_a_program_is_not_swallowed(workers, error, monkeypatch):
    monkeypatch.setattr("fedlib.experiment.describe_run", lambda *_: {})
    with pytest.raises(error, match="mistake"):
        play(Fails(error("mistake")), workers)


def test_a_correction_with_the_wrong_signature_is_an_error(monkeypatch):
    class Wrong(Correction):
        def correct(self, grad):
            return grad

    with pytest.raises(TypeError, match="argument"):
        play(Wrong(), workers=2)


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), KeyError("x")])
def test_an_interrupt_stops_the_others_and_restores_the_threads(error, monkeypatch):
    monkeypatch.setattr("fedlib.experiment.describe_run", lambda *_: {})
    steps, largest = [], int(np.argmax(task().sizes))

    class Counts(Fails):
        def correct(self, grad, theta, carry):
            steps.append(carry["client"])
            if carry["client"] == self.client and set(steps) != {self.client}:
                return super().correct(grad, theta, carry)
            return grad

    before, torch_before = threading.active_count(), torch.get_num_threads()
    torch.set_num_threads(2)
    method = Federation(LocalSGD(lr=0.01, epochs=400, batch_size=8, correction=Counts(error, largest)))
    with warnings.catch_warnings(), pytest.raises(type(error)):
        warnings.simplefilter("error")
        run(task(), method, 1, workers=3, evaluate_every=0)
    assert torch.get_num_threads() == 2 and threading.active_count() == before
    torch.set_num_threads(torch_before)
    assert len(steps) < 2 * 400  # two clients at least had begun, and each would have taken 400 epochs


def test_a_stopped_network_can_be_used_again():
    with Workers([task().new_model(0) for _ in range(2)]) as team:
        with pytest.raises(ZeroDivisionError):
            team.map(lambda model: 1 / 0, [()], [1])
        assert not any(model.stopped for model in team.models)


def test_one_thread_inside_and_the_old_number_after_an_error():
    torch.set_num_threads(2)
    with pytest.raises(KeyError), one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_one_worker_has_no_thread():
    with Workers(["only"]) as team:
        (name,) = team.map(lambda model, _: threading.current_thread().name, [(0,)], [1])
    assert name == threading.current_thread().name


def test_the_number_of_workers():
    with one_thread():
        assert num_workers(None, "cpu") == 1
        torch.set_num_threads(2)
        assert num_workers(None, "cpu") == 2 and num_workers(None, "cuda") == 1 and num_workers(5, "cpu") == 5
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match="workers must be an integer of at least 1"):
            num_workers(wrong, "cpu")


def test_precisions_that_the_device_lacks_are_refused(monkeypatch):
    monkeypatch.setattr(local, "cpu_has_bf16", lambda: False)
    for precision, advice in (("bf16", "no bfloat16"), ("fp16", "for GPUs")):
        with pytest.raises(ValueError, match=f"precision='{precision}' does not go with device 'cpu'.*{advice}"):
            run(task(), Federation(LocalSGD(lr=0.1, precision=precision)), 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert 'precision="fp16"' in local.reason_against_precision("bf16", "cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert local.reason_against_precision("bf16", "cuda") == local.reason_against_precision("fp16", "cuda") == ""


def test_the_precision_is_in_the_record_and_in_the_caption():
    history = run(task(), Federation(LocalSGD(lr=0.05, precision="bf16")), 1)
    assert history.config["method"]["local"]["precision"] == "bf16" and "bf16" in history.setting


def test_fp16_comes_close_to_float32_and_recovers_from_an_overflow(monkeypatch):
    monkeypatch.setattr("fedlib.federation.reason_against_precision", lambda *_: "")
    exact = run(task(), Federation(LocalSGD(lr=0.05)), 2)
    rough = run(task(), Federation(LocalSGD(lr=0.05, precision="fp16")), 2)
    w0 = task().new_model(0).theta
    error = (rough.w - exact.w).norm() / (exact.w - w0).norm()
    assert 0 < error < 0.1
    monkeypatch.setattr(local, "FIRST_SCALE", 2.0**40)  # every first step overflows
    long = run(task(), Federation(LocalSGD(lr=0.05, epochs=20, precision="fp16")), 1)
    assert torch.isfinite(long.w).all() and 0 < (long.w - w0).norm()
