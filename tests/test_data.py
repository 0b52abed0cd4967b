"""Where pictures come from, and that a failed download never leaves anything that looks like data."""

import contextlib
import hashlib
import http.server
import io
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlib import data, download
from fedlib.shapes import draw_shapes

ROOT = Path(__file__).parent.parent
REAL = {name: os.environ.get(name) for name in ("FEDLIB_DATA", "FEDLIB_CACHE")}  # before the tests hide them


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """Nobody's real data or cache is used, and nothing outside is contacted."""
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(data, "URL", "http://127.0.0.1:9/refused.tar.gz")


def little_pictures():
    """600 pictures, 100 a batch: every picture has one color, which tells its position."""
    n = np.arange(600)
    colors = np.stack([n % 251, n // 251, n % 10], 1).astype(np.uint8)
    return np.broadcast_to(colors[:, None, None], (600, 32, 32, 3)), n % 10


def write_batches(folder):
    """The layout of the original archive: six pickles, pictures as rows of 3 · 1024 numbers."""
    folder.mkdir(parents=True)
    pixels, labels = little_pictures()
    for i, name in enumerate([f"data_batch_{j}" for j in range(1, 6)] + ["test_batch"]):
        part = slice(100 * i, 100 * (i + 1))
        rows = np.ascontiguousarray(pixels[part].transpose(0, 3, 1, 2)).reshape(100, 3072)
        (folder / name).write_bytes(pickle.dumps({b"data": rows, b"labels": labels[part].tolist()}))


def write_pack(path):
    """A JPEG pack of 100 training and 50 test pictures: picture i is red to the degree i."""
    content = {}
    for split, n in (("train", 100), ("test", 50)):
        streams = []
        for i in range(n):
            buffer = io.BytesIO()
            Image.new("RGB", (32, 32), (i, 100, 50)).save(buffer, "JPEG", quality=95)
            streams.append(buffer.getvalue())
        content[f"{split}_jpeg"] = np.frombuffer(b"".join(streams), dtype=np.uint8)
        content[f"{split}_offsets"] = np.concatenate([[0], np.cumsum([len(s) for s in streams])])
        content[f"{split}_labels"] = (np.arange(n) % 10).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **content)


def check_little(dataset, num_train, num_test):
    assert dataset.train_x.shape == (num_train, 3, 32, 32) and dataset.test_x.shape == (num_test, 3, 32, 32)
    assert dataset.train_y.tolist() == [i % 10 for i in range(num_train)]
    pixels, _ = little_pictures()
    assert np.array_equal(dataset.pictures([0, num_train - 1]), pixels[[0, num_train - 1]])
    assert np.array_equal(dataset.pictures([0, 7], "test"), pixels[[500, 507]])


def test_the_folder_in_the_environment_comes_first(tmp_path, monkeypatch):
    write_batches(tmp_path / "mine" / data.BATCHES)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "mine"))
    dataset = data.images(300, 80)
    assert dataset.name == data.source_name() == "CIFAR-10"
    check_little(dataset, 300, 80)


def test_then_the_cache(tmp_path):
    write_batches(tmp_path / "cache" / data.BATCHES)
    assert data.source_name() == "CIFAR-10"
    check_little(data.cifar10(500, 100), 500, 100)


def test_the_jpeg_pack_names_itself_and_is_decoded_once(tmp_path, monkeypatch):
    write_pack(tmp_path / "mine" / data.PACK)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "mine"))
    first = data.images(100, 50)
    assert first.name == data.source_name() == "CIFAR-10 (JPEG)"
    color = first.pictures([30])[0, 16, 16].astype(int)
    assert np.abs(color - [30, 100, 50]).max() <= 3  # JPEG loses a little
    monkeypatch.setattr(data, "_decode", None)  # not called again
    assert torch.equal(data.images(100, 50).train_x, first.train_x)


def test_a_truncated_decoded_cache_is_decoded_again(tmp_path, monkeypatch):
    write_pack(tmp_path / "mine" / data.PACK)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "mine"))
    first = data.images(100, 50)
    cached = sorted((tmp_path / "cache").iterdir())
    assert [path.suffix for path in cached] == [".npy", ".npy"]
    for path in cached:
        path.write_bytes(path.read_bytes()[:20_000])
    again = data.images(100, 50)
    assert torch.equal(again.train_x, first.train_x) and torch.equal(again.test_x, first.test_x)
    assert sorted((tmp_path / "cache").iterdir()) == cached


def test_a_folder_without_pictures_is_an_error_not_a_silent_stand_in(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    for call in (data.images, data.source_name):
        with pytest.raises(ValueError, match=f"FEDLIB_DATA={tmp_path} holds neither"):
            call()


def test_a_damaged_batch_names_the_file(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / data.BATCHES
    write_batches(folder)
    (folder / "data_batch_3").write_bytes(b"torn")
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "mine"))
    with pytest.raises(ValueError, match="data_batch_3 is missing or damaged"):
        data.cifar10()


def test_without_data_and_network_the_stand_in_is_used_and_says_so():
    assert data.source_name() == "shapes32 (stand-in)"
    with pytest.warns(UserWarning, match="(?s)ConnectionRefusedError.*Using shapes32"):
        dataset = data.images(50, 20)
    assert dataset.name == "shapes32 (stand-in)"


@pytest.mark.parametrize(("num_train", "num_test"), [(0, 10), (501, 10), (10, 101)])
def test_more_pictures_than_there_are_is_an_error(tmp_path, num_train, num_test):
    write_batches(tmp_path / "cache" / data.BATCHES)
    with pytest.raises(ValueError, match="choose between 1 and"):
        data.cifar10(num_train, num_test)


@pytest.mark.skipif(not REAL["FEDLIB_DATA"], reason="FEDLIB_DATA is not set")
def test_the_real_pictures_are_balanced_and_normalized(monkeypatch):
    for name, value in REAL.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    dataset = data.images(5000, 1000)
    assert dataset.name.startswith("CIFAR-10") and dataset.name == data.source_name()
    np.testing.assert_allclose(dataset.train_x.mean((0, 2, 3)), 0, atol=0.05)
    np.testing.assert_allclose(dataset.train_x.std((0, 2, 3)), 1, atol=0.05)
    counts = torch.bincount(dataset.train_y, minlength=10)
    assert counts.sum() == 5000 and (counts - 500).abs().max() < 100
    # Ships and planes are bluer than frogs and deer.
    blue = [dataset.pictures(torch.where(dataset.train_y == c)[0])[..., 2].mean() for c in (0, 8, 6, 4)]
    assert min(blue[:2]) > max(blue[2:])


# The download, against a server on this machine.


@contextlib.contextmanager
def server(respond):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            with contextlib.suppress(OSError):
                respond(self)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}/archive.tar.gz"
        finally:
            httpd.shutdown()


def send(body, length=None, status=200):
    def respond(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(length or len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return respond


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive") / data.BATCHES
    write_batches(folder)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=data.BATCHES)
    return buffer.getvalue()


def point_to(monkeypatch, url, archive):
    monkeypatch.setattr(data, "URL", url)
    monkeypatch.setattr(data, "SHA256", hashlib.sha256(archive).hexdigest())


def test_a_good_download_is_unpacked_and_used_from_then_on(tmp_path, monkeypatch, archive):
    with server(send(archive)) as url:
        point_to(monkeypatch, url, archive)
        check_little(data.cifar10(100, 50), 100, 50)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [data.BATCHES]
    assert data.source_name() == "CIFAR-10"
    check_little(data.cifar10(100, 50), 100, 50)  # the server is gone


def stall(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    handler.wfile.write(b"x" * 1000)
    handler.wfile.flush()
    time.sleep(3)


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda a: send(a[: len(a) // 2], len(a)), "wrong checksum|IncompleteRead|ended early"),
        (lambda a: send(a[:-1] + b"!"), "wrong checksum"),
        (
            lambda a: send(b"<!DOCTYPE html><p>Please log in to this network"),
            "starts with b'<!DOCTYPE html>'",
        ),
        (lambda a: send(b"", 1, status=503), "503"),
        (lambda a: send(b"no", status=404), "404"),
        (lambda a: lambda handler: handler.wfile.write(b"220 this is a mail server\r\n"), "BadStatusLine"),
        (lambda a: stall, "timed out|TimeoutError"),
        (lambda a: drip, "not finished after"),
    ],
)
def test_a_failed_download_says_why_and_leaves_nothing(tmp_path, monkeypatch, archive, fault, message):
    monkeypatch.setattr(download, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(download, "TOTAL_SECONDS", 1)
    with server(fault(archive)) as url:
        point_to(monkeypatch, url, archive)
        with pytest.raises(download.DownloadError, match=message) as caught:
            data.cifar10(100, 50)
    assert "FEDLIB_DATA" in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []
    assert data.source_name() == "shapes32 (stand-in)"


def test_a_refused_connection_is_one_clear_error():
    with pytest.raises(download.DownloadError, match="ConnectionRefusedError.*FEDLIB_DATA"):
        data.cifar10()


def test_a_name_look_up_that_hangs_is_abandoned(monkeypatch):
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(data, "URL", "http://nowhere.invalid/archive.tar.gz")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(1) or [])
    with pytest.raises(download.DownloadError, match="no answer within 0.2 s"):
        data.cifar10()


def test_an_archive_that_was_half_unpacked_by_a_killed_process_is_not_used(tmp_path):
    (tmp_path / "cache" / "download-abc" / data.BATCHES).mkdir(parents=True)
    assert data.source_name() == "shapes32 (stand-in)"


# shapes32


def test_shapes_are_reproducible_balanced_and_different_in_the_splits():
    first, again, other = data.shapes32(200, 100), data.shapes32(200, 100), data.shapes32(200, 100, seed=1)
    assert torch.equal(first.train_x, again.train_x) and not torch.equal(first.train_x, other.train_x)
    assert torch.bincount(first.train_y).tolist() == [20] * 10 and first.num_classes == 10
    equal = data.shapes32(100, 100)
    assert not torch.equal(equal.train_x, equal.test_x)
    assert first.input_shape == (3, 32, 32) and len(first.class_names) == 10


def test_shapes_use_the_whole_range_of_colors():
    pixels, labels = draw_shapes(500, np.random.default_rng(0))
    assert pixels.dtype == np.uint8 and pixels.min() == 0 and pixels.max() == 255
    assert 30 < pixels.std() < 90 and len(labels) == 500


def test_no_shapes_is_an_error():
    with pytest.raises(ValueError, match="asked for 0"):
        draw_shapes(0, np.random.default_rng(0))


# Data sets in general


def test_pictures_are_normalized_and_channels_last_in_memory():
    dataset = data.shapes32(50, 20)
    raw, _ = draw_shapes(50, data.stream(0, "toy", 0))
    expected = (raw / 255 - 0.5) / 0.25
    np.testing.assert_allclose(dataset.train_x.permute(0, 2, 3, 1).numpy(), expected, atol=1e-6)
    assert dataset.train_x.is_contiguous(memory_format=torch.channels_last)
    assert dataset.train_x[[3, 1]].is_contiguous(memory_format=torch.channels_last)


def test_holding_out_takes_from_training_and_hides_the_test_set():
    dataset = data.shapes32(50, 20)
    held = data.hold_out(dataset, 10, seed=3)
    assert len(held.train_x) == 40 and len(held.test_x) == 10 and "held-out" in held.name
    together = torch.cat([held.train_x, held.test_x]).flatten(1)
    original = dataset.train_x.flatten(1)
    assert sorted(together.sum(1).tolist()) == pytest.approx(sorted(original.sum(1).tolist()))
    with pytest.raises(ValueError, match="between 1 and 49"):
        data.hold_out(dataset, 50)


def test_labels_outside_the_configured_classes_are_refused():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 4])
    with pytest.raises(ValueError, match="0 to 4, but num_classes is 3"):
        data.Dataset("bad", x, y, x, y, 3)
    with pytest.raises(ValueError, match="3 samples but 2 labels"):
        data.Dataset("bad", x, y[:2], x, y, 5)


# Imports stay cheap.


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import fedlib", ["torch", "sklearn", "matplotlib", "pandas", "numpy"]),
        ("from fedlib import data; data.source_name()", ["torch", "sklearn", "torchvision", "PIL"]),
        ("import fedlib.federation", ["sklearn", "torchvision", "pandas", "matplotlib", "PIL", "scipy"]),
        ("import fedlib.experiment", ["sklearn", "torchvision", "pandas", "matplotlib", "PIL", "scipy"]),
    ],
)
def test_imports_pull_in_nothing_heavy(statement, forbidden):
    code = f"import sys; {statement}; print([name for name in {forbidden} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
