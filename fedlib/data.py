"""The pictures: CIFAR-10 from wherever it can be found, and a generated stand-in where it cannot.

``images()`` is what chapters call. It looks in the folder named by the environment variable
``FEDLIB_DATA``, then in the user's cache, then tries one short download, and else generates ``shapes32``.
The data set's ``name`` says which it was; every number computed from it carries that name.
"""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlib import download
from fedlib.files import atomic_file
from fedlib.rng import stream
from fedlib.shapes import CLASS_NAMES as SHAPE_NAMES
from fedlib.shapes import draw_shapes

if TYPE_CHECKING:  # at run time torch is imported only where tensors are made: source_name() must stay cheap
    import torch

CIFAR10, CIFAR10_JPEG, SHAPES32 = "CIFAR-10", "CIFAR-10 (JPEG)", "shapes32 (stand-in)"
BATCHES, PACK = "cifar-10-batches-py", "cifar10-jpeg.npz"
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
# Mean and standard deviation of CIFAR-10's training pixels by channel, on the scale 0 to 1.
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, each one pair of tensors, already normalized.

    ``train_x`` has shape ``[n, ...]`` (float32), ``train_y`` shape ``[n]``; classes are integers in
    [0, num_classes).  ``mean`` and ``std`` undo the normalization of pictures.
    """

    name: str
    train_x: "torch.Tensor"
    train_y: "torch.Tensor"
    test_x: "torch.Tensor"
    test_y: "torch.Tensor"
    num_classes: int
    class_names: tuple = ()
    mean: tuple = ()
    std: tuple = ()

    def __post_init__(self):
        for split, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise ValueError(f"{split}: {len(x)} samples but {len(y)} labels")
            if (
                not y.is_floating_point()
                and len(y)
                and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes
            ):
                raise ValueError(
                    f"{split}: labels run from {int(y.min())} to {int(y.max())}, "
                    f"but num_classes is {self.num_classes}"
                )

    @property
    def input_shape(self):
        """Shape of one sample, for example (3, 32, 32)."""
        return tuple(self.train_x.shape[1:])

    def to(self, device):
        """Return the same data on ``device``."""
        tensors = {
            name: getattr(self, name).to(device) for name in ("train_x", "train_y", "test_x", "test_y")
        }
        return replace(self, **tensors)

    def pictures(self, indices, split="train"):
        """Return samples ``indices`` as displayable pictures, shape ``[len, 32, 32, 3]``, uint8."""
        x = (self.train_x if split == "train" else self.test_x)[indices]
        pixels = x.cpu().permute(0, 2, 3, 1).numpy() * np.float32(self.std) + np.float32(self.mean)
        return np.round(255 * pixels.clip(0, 1)).astype(np.uint8)


def hold_out(dataset, num, seed=0):
    """Replace the test split by ``num`` training samples, which leave the training split.

    For choosing hyperparameters: the real test set is not in the result, so it cannot be looked at.
    """
    if not 0 < num < len(dataset.train_x):
        raise ValueError(f"num must lie between 1 and {len(dataset.train_x) - 1}, got {num}")
    order = stream(seed, "split").permutation(len(dataset.train_x))
    held, kept = np.sort(order[:num]), np.sort(order[num:])
    x, y = dataset.train_x, dataset.train_y
    return replace(dataset, name=f"{dataset.name}, held-out", train_x=x[kept], train_y=y[kept],
                   test_x=x[held], test_y=y[held])  # fmt: skip


def images(num_train=50_000, num_test=10_000):
    """Return CIFAR-10 if it can be had, else the stand-in ``shapes32`` with a warning that says so."""
    try:
        return cifar10(num_train, num_test)
    except download.DownloadError as error:
        warnings.warn(f"{error}\nUsing {SHAPES32}: numbers are not comparable with CIFAR-10's", stacklevel=2)
        return shapes32(num_train, num_test)


def cifar10(num_train=50_000, num_test=10_000):
    """Return the first ``num_train`` and ``num_test`` pictures of CIFAR-10 (Krizhevsky 2009).

    Raises
    ------
    ValueError
        If ``FEDLIB_DATA`` names a folder without CIFAR-10, or more pictures are asked for than there are.
    fedlib.download.DownloadError
        If there is no local copy and it cannot be downloaded.
    """
    name, path = _find()
    if path is None:
        download.fetch_archive(URL, SHA256, cache_folder() / BATCHES)
        name, path = _find()
    train, test = (read_pack if name == CIFAR10_JPEG else read_batches)(path)
    return _normalized(
        name, _first(train, num_train), _first(test, num_test), CLASS_NAMES, CIFAR10_MEAN, CIFAR10_STD
    )


def shapes32(num_train=50_000, num_test=10_000, seed=0):
    """Return generated 32×32 color pictures of ten shapes, CIFAR-10's stand-in where there is no network."""
    train = draw_shapes(num_train, stream(seed, "toy", 0))
    test = draw_shapes(num_test, stream(seed, "toy", 1))
    return _normalized(SHAPES32, train, test, SHAPE_NAMES, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def source_name():
    """Name the data that ``images()`` would find on this machine, without loading or downloading."""
    return _find()[0]


def cache_folder():
    """Return the folder for downloads and decoded pictures: ``FEDLIB_CACHE``, else in the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEDLIB_CACHE") or Path(root) / "fedlib")


def read_batches(folder):
    """Read the six pickled batches; each split is a pair of pixels ``[n, 32, 32, 3]`` (uint8) and labels."""
    import pickle

    def read(name):
        try:
            with open(folder / name, "rb") as file:
                batch = pickle.load(file, encoding="bytes")
            return batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), batch[b"labels"]
        except Exception as error:
            raise ValueError(
                f"{folder / name} is missing or damaged ({error}): delete the folder, load again"
            ) from error

    pixels, labels = zip(*[read(f"data_batch_{i}") for i in range(1, 6)])
    test_pixels, test_labels = read("test_batch")
    return (np.concatenate(pixels), np.concatenate(labels)), (test_pixels, np.array(test_labels))


def read_pack(path):
    """Read the JPEG pack, decoding it once into the cache; returns the same as ``read_batches``."""
    stamp = f"{path.stat().st_size}-{path.stat().st_mtime_ns}"
    with np.load(path) as pack:
        return tuple(
            (
                _decoded(pack, split, cache_folder() / f"cifar10-jpeg-{split}-{stamp}.npy"),
                pack[f"{split}_labels"],
            )
            for split in ("train", "test")
        )


def _decoded(pack, split, cached):
    try:
        return np.load(cached, mmap_mode="r")
    except (OSError, ValueError):  # absent, or cut short by something other than us
        pixels = np.stack([_decode(jpeg) for jpeg in _streams(pack, split)])
        with atomic_file(cached) as file:
            np.save(file, pixels)
        return pixels


def _streams(pack, split):
    jpeg, offsets = pack[f"{split}_jpeg"], pack[f"{split}_offsets"]
    return (jpeg[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:]))


def _decode(jpeg):
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def _find():
    folder = os.environ.get("FEDLIB_DATA")
    places = [Path(folder)] if folder else [cache_folder()]
    for place in places:
        for name, path in ((CIFAR10, place / BATCHES), (CIFAR10_JPEG, place / PACK)):
            if path.exists():
                return name, path
    if folder:
        raise ValueError(f"FEDLIB_DATA={folder} holds neither {BATCHES} nor {PACK}: correct it or unset it")
    return SHAPES32, None


def _first(split, num):
    pixels, labels = split
    if not 1 <= num <= len(labels):
        raise ValueError(f"asked for {num} pictures: choose between 1 and {len(labels)}")
    return pixels[:num], labels[:num]


def _normalized(name, train, test, class_names, mean, std):
    import torch

    def tensors(pixels, labels):
        x = torch.from_numpy(np.array(pixels)).float().div_(255)
        x.sub_(torch.tensor(mean)).div_(torch.tensor(std))
        return x.permute(0, 3, 1, 2), torch.from_numpy(
            labels.astype(np.int64)
        )  # NCHW to look at, NHWC in memory

    return Dataset(name, *tensors(*train), *tensors(*test), len(class_names), class_names, mean, std)
