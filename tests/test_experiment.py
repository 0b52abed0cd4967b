"""Run, record, resume: the same bits after a kill, and a clear refusal of anything damaged or foreign."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from two_clients import Given, Line, Scaffold, laboratory, local

from fedlib import experiment, models
from fedlib.experiment import describe, fingerprint, load_history, run
from fedlib.federation import Federation
from fedlib.selection import Uniform

HERE = Path(__file__).parent


def play(folder=None, rounds=4, seed=0, lr=0.1, **kwargs):
    method = Federation(local(Scaffold(), lr=lr), select=Uniform(1))
    return run(laboratory(sizes=(3, 1)), method, rounds, seed=seed, record=folder, **kwargs)


def snapshot(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_killed_run_continues_to_the_same_bits(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, HERE / "kill_driver.py", tmp_path], capture_output=True, text=True,
                          env=environment, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["operations"] > 30 and result["interrupted"] > 0
    assert all(all(outcome) for outcome in result["outcomes"])


def test_recording_does_not_change_the_result(tmp_path):
    assert play(tmp_path / "r").sha256 == play().sha256


def test_a_continued_run_plays_only_what_is_missing(tmp_path, monkeypatch):
    played = []

    def counted(task, method, model, seed, state):
        played.append(state.t)
        return real(task, method, model, seed, state)

    real = experiment.play_round
    monkeypatch.setattr(experiment, "play_round", counted)
    play(tmp_path / "r", rounds=3)
    longer = play(tmp_path / "r", rounds=5)
    assert played == [0, 1, 2, 3, 4]
    assert longer.sha256 == play(rounds=5).sha256 and longer.rounds == play(rounds=5).rounds
    again = play(tmp_path / "r", rounds=5)
    assert played[5:] == [0, 1, 2, 3, 4] * 2  # of the two unrecorded runs; the finished record needed none
    assert again.sha256 == longer.sha256 and again.rounds == longer.rounds


def test_a_torn_last_line_is_normal(tmp_path):
    play(tmp_path / "r", rounds=2)
    with open(tmp_path / "r" / "rounds.jsonl", "a") as file:
        file.write('{"t": 2, "clie')
    resumed = play(tmp_path / "r")
    assert resumed.rounds == play().rounds
    lines = (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == resumed.rounds


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_a_committed_row(path):
    data = bytearray(path.read_bytes())
    for i in range(0, len(data), 4):  # both slots of every row
        data[i] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("checkpoint.npz", truncate),
        ("checkpoint.npz", flip_a_byte),
        ("checkpoint.npz", Path.unlink),
        ("config.json", truncate),
        ("config.json", Path.unlink),
        ("rounds.jsonl", truncate),
        ("rounds.jsonl", flip_a_byte),
        ("rounds.jsonl", Path.unlink),
        ("rows-correction.bin", truncate),
        ("rows-correction.bin", flip_a_committed_row),
        ("rows-correction.bin", Path.unlink),
    ],
)
def test_damage_is_an_error_that_names_the_file_and_nothing_is_overwritten(tmp_path, name, harm):
    folder = tmp_path / "r"
    play(folder, rounds=3)
    harm(folder / name)
    before = snapshot(folder)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        play(folder)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("change", "what"),
    [({"lr": 0.2}, "method"), ({"seed": 1}, "seed"), ({"evaluate_every": 2}, "evaluate_every")],
)
def test_a_record_of_another_experiment_is_refused(tmp_path, change, what):
    play(tmp_path / "r", rounds=2)
    before = snapshot(tmp_path / "r")
    with pytest.raises(ValueError, match=f"config.json belongs to another experiment: its {what}"):
        play(tmp_path / "r", **change)
    assert snapshot(tmp_path / "r") == before


def test_a_record_of_other_data_is_refused(tmp_path):
    method = Federation(local())
    run(laboratory(sizes=(3, 1)), method, 1, record=tmp_path / "r")
    with pytest.raises(ValueError, match="its task"):
        run(laboratory(sizes=(4, 1)), method, 1, record=tmp_path / "r")


def test_the_fingerprint_tells_owners_and_labels_apart():
    task = laboratory(sizes=(3, 1))
    other_owners = dataclasses.replace(task, partition=Given((2, 2)))
    other_labels = dataclasses.replace(
        task, data=dataclasses.replace(task.data, train_y=task.data.train_y + 1)
    )
    assert len({fingerprint(each) for each in (task, other_owners, other_labels)}) == 3
    assert fingerprint(laboratory(sizes=(3, 1))) == fingerprint(task)


def test_a_folder_with_something_else_in_it_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("five years of work")
    with pytest.raises(ValueError, match="config.json is damaged .missing"):
        play(tmp_path)
    assert snapshot(tmp_path) == {"thesis.tex": b"five years of work"}


def test_asking_for_fewer_rounds_than_recorded_is_an_error(tmp_path):
    play(tmp_path / "r", rounds=3)
    with pytest.raises(ValueError, match="3 rounds already"):
        play(tmp_path / "r", rounds=2)


def test_a_full_disk_names_the_file_and_the_record_can_be_continued(tmp_path):
    # A limit on the size of files makes real writes fail as a full disk does: the checkpoint does not fit.
    script = """
import resource, signal, sys
import test_experiment as t
t.play(t.Path(sys.argv[1]), rounds=2)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
t.play(t.Path(sys.argv[1]))
"""
    folder = tmp_path / "r"
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"}
    done = subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True, text=True, env=environment
    )
    assert done.returncode != 0 and "checkpoint.npz could not be written" in done.stderr, done.stderr
    assert "the record stands at round 2" in done.stderr
    assert sorted(snapshot(folder)) == [
        "checkpoint.npz",
        "config.json",
        "rounds.jsonl",
        "rows-correction.bin",
    ]
    assert play(folder).sha256 == play().sha256


def test_evaluation_happens_when_asked_and_only_then():
    assert [("loss" in line) for line in play(rounds=5, evaluate_every=2).rounds] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert not any("loss" in line for line in play(evaluate_every=0).rounds)
    rounds, values = play(rounds=5, evaluate_every=2).series("loss")
    assert rounds.tolist() == [2, 4] and values.shape == (2,)
    with pytest.raises(ValueError, match="'accuracy'.*bytes_up"):
        play().series("accuracy")


def test_the_final_loss_is_that_of_the_final_vector():
    history = play()
    x = history.w.item()
    assert history.rounds[-1]["loss"] == pytest.approx(
        x**2 / 2, rel=1e-6
    )  # the test sample is client 0's: a=1, b=0


def test_a_saved_history_comes_back(tmp_path):
    history = play()
    history.save(tmp_path / "small.json")
    loaded = load_history(tmp_path / "small.json")
    assert loaded.rounds == history.rounds and loaded.sha256 == history.sha256 and loaded.w is None
    assert loaded.config["method"]["local"]["correction"] == {"is": "Scaffold", "warm": False}
    assert loaded.config["task"]["data"]["name"] == "laboratory"
    assert loaded.setting == "laboratory, float32, cpu, seed 0"
    assert loaded.config["environment"]["torch"] == torch.__version__


def test_no_global_generator_is_read_or_changed():
    import random

    def states():
        return torch.random.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    first = play().sha256
    assert states() == before
    torch.manual_seed(77)
    np.random.seed(77)
    assert play().sha256 == first


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    play()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_settings_become_json():
    assert describe(functools.partial(models.mlp, hidden=8)) == {
        "is": "fedlib.models.mlp",
        "args": [],
        "hidden": 8,
    }
    assert describe({3: np.float64(0.5), "x": (np.int64(1), None, True)}) == {"3": 0.5, "x": [1, None, True]}
    assert describe(Line) == "two_clients.Line"
    with pytest.raises(TypeError, match="named functions"):
        describe(lambda x: x)


def test_the_config_tells_methods_apart():
    method = Federation(local())
    other = dataclasses.replace(method, select=Uniform(2))
    assert describe(method) != describe(other)


def test_negative_rounds_are_refused():
    with pytest.raises(ValueError, match="-1"):
        play(rounds=-1)
