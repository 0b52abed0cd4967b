"""Random flips and shifts, against a loop over pictures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedlib import models, partition
from fedlib.augment import flip_and_crop
from fedlib.data import Dataset
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.task import Task


def test_every_result_is_a_window_of_the_padded_picture_or_of_its_mirror_image():
    x = torch.arange(1.0, 1 + 60 * 2 * 5 * 6).view(60, 2, 5, 6)
    changed = flip_and_crop(x, np.random.default_rng(0), pad=2)
    assert changed.shape == x.shape
    found = set()
    for before, after in zip(F.pad(x, (2, 2, 2, 2)), changed):
        windows = {
            (flipped, down, right): before[:, down : down + 5, right : right + 6].flip(2 if flipped else ())
            for flipped in (False, True) for down in range(5) for right in range(5)
        }  # fmt: skip
        matches = [key for key, window in windows.items() if torch.equal(window, after)]
        assert len(matches) == 1
        found.add(matches[0])
    assert len(found) > 30 and {flipped for flipped, _, _ in found} == {False, True}


def test_without_a_shift_half_of_the_pictures_are_mirrored():
    x = torch.arange(2.0 * 4000).view(4000, 1, 1, 2)
    flipped = (flip_and_crop(x, np.random.default_rng(1), pad=0) != x).any(dim=(1, 2, 3)).float().mean()
    assert abs(flipped - 0.5) < 5 * 0.5 / 4000**0.5


def test_the_pictures_themselves_stay_as_they_are_and_equal_generators_give_equal_pictures():
    x = torch.randn(7, 3, 8, 8)
    kept = x.clone()
    first, second = (flip_and_crop(x, np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(x, kept)
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match="needs pictures"):
        flip_and_crop(torch.zeros(3, 8), np.random.default_rng(0))


def test_local_training_uses_it_with_a_stream_of_each_client_and_round():
    x, y = torch.randn(60, 1, 8, 8), torch.arange(60) % 3
    task = Task(models.cnn, Dataset("noise", x, y, x, y, 3), partition.iid(num_clients=3))
    method = Federation(LocalSGD(lr=0.1, augment=flip_and_crop, batch_size=10))
    plain = run(task, Federation(LocalSGD(lr=0.1, batch_size=10)), 2)
    one, two = (run(task, method, 2, workers=workers) for workers in (1, 2))
    assert one.sha256 == two.sha256 != plain.sha256
    assert one.config["method"]["local"]["augment"] == "fedlib.augment.flip_and_crop"
    with pytest.raises(ValueError, match="flip_and_crop changes pictures one by one"):
        run(Task(models.mlp, task.data, task.partition), Federation(LocalSGD(lr=0.1, augment=flip_and_crop, batched=True)), 1)
