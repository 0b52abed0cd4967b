"""``shapes32``: generated 32×32 color pictures of ten shapes, for machines without CIFAR-10.

A useful stand-in must be hard in the way pictures are. Position, size, rotation, and colors vary freely, so
single pixels say little and a linear model does badly; weak contrast, an occluding bar and noise keep a
small CNN well below 100 %. As in photographs the background gives a hint (each class has a favorite hue
that it shows some of the time).

On 10,000 training and 2,000 test pictures: see ``tests/test_data.py`` for the measured accuracies.
"""

import numpy as np

CLASS_NAMES = (
    "disk",
    "ring",
    "square",
    "frame",
    "triangle",
    "cross",
    "star",
    "crescent",
    "hourglass",
    "dots",
)


def draw_shapes(num, rng):
    """Draw ``num`` pictures.

    Parameters
    ----------
    num : int
    rng : numpy.random.Generator

    Returns
    -------
    pixels : array, shape [num, 32, 32, 3], uint8
    labels : array, shape [num], int64
        Classes in random order, as equally frequent as ``num`` allows.
    """
    if num < 1:
        raise ValueError(f"asked for {num} pictures: choose at least 1")
    labels = rng.permutation(np.arange(num) % 10)
    blocks = [
        _draw_block(block, rng) for block in np.array_split(labels, max(1, num // 1000))
    ]  # bounds the memory
    return np.concatenate(blocks), labels


def _draw_block(labels, rng):
    n = len(labels)

    def uniform(low, high, *shape):
        return rng.uniform(low, high, (n, *shape)).astype(np.float32)

    mask = _coverage(labels, uniform)
    background = _colors(labels, uniform, rng) + _gradient(uniform)
    # The foreground is the background moved through color space, mostly towards light, by a little or a lot.
    direction = rng.normal(0.5, 1, size=(n, 3)).astype(np.float32)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    foreground = background + (direction * uniform(0.2, 0.85, 1))[:, None, None, :]
    pixels = background + mask[..., None] * (foreground - background)
    pixels = np.where(_bar(uniform)[..., None], uniform(0, 1, 1, 1, 3), pixels)
    pixels += rng.normal(size=pixels.shape).astype(np.float32) * uniform(0.02, 0.11, 1, 1, 1)
    return np.round(255 * pixels.clip(0, 1)).astype(np.uint8)


def _coverage(labels, uniform):
    """Return how much of each pixel the shape covers, in [0, 1], shape ``[n, 32, 32]``."""
    grid = np.arange(32, dtype=np.float32) - 15.5
    x, y = grid[None, None, :] - uniform(-4.5, 4.5, 1, 1), grid[None, :, None] - uniform(-4.5, 4.5, 1, 1)
    angle, radius = uniform(-0.4, 0.4, 1, 1), uniform(7.5, 11.5, 1, 1)
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    distance = np.empty(u.shape, dtype=np.float32)
    for c, shape in enumerate(SHAPES):
        distance[labels == c] = shape(u[labels == c], v[labels == c])
    return (0.5 - distance * radius).clip(0, 1)  # one pixel of smooth edge


def _polygon(u, v, sides, apothem):
    angles = 2 * np.pi * np.arange(sides) / sides
    return np.max([u * np.cos(a) + v * np.sin(a) for a in angles], axis=0) - apothem


def _box(u, v, half_width, half_height):
    return np.maximum(np.abs(u) - half_width, np.abs(v) - half_height)


def _star(u, v):
    return np.hypot(u, v) - (0.72 + 0.3 * np.cos(5 * np.arctan2(v, u)))


# Signed distances, roughly: negative inside, in units of the shape's radius.
SHAPES = (
    lambda u, v: np.hypot(u, v) - 0.9,
    lambda u, v: np.abs(np.hypot(u, v) - 0.75) - 0.2,
    lambda u, v: _box(u, v, 0.78, 0.78),
    lambda u, v: np.abs(_box(u, v, 0.65, 0.65)) - 0.18,
    lambda u, v: _polygon(u, v, 3, 0.55),
    lambda u, v: np.minimum(_box(u, v, 0.95, 0.26), _box(u, v, 0.26, 0.95)),
    _star,
    lambda u, v: np.maximum(np.hypot(u, v) - 0.95, 0.75 - np.hypot(u - 0.5, v)),
    lambda u, v: np.maximum(np.abs(v) - 0.8, np.abs(u) - np.abs(v) - 0.1),
    lambda u, v: np.hypot(np.abs(u) - 0.58, v) - 0.38,
)


def _colors(labels, uniform, rng):
    """Background colors ``[n, 1, 1, 3]``: random, but a quarter of them show their class's favorite hue."""
    favorite = 0.4 + 0.25 * np.cos(2 * np.pi * (labels[:, None] / 10 + np.arange(3) / 3))
    favors = rng.random((len(labels), 1)) < 0.25
    return np.where(favors, favorite + uniform(-0.12, 0.12, 3), uniform(0.1, 0.7, 3))[
        :, None, None, :
    ].astype(np.float32)


def _gradient(uniform):
    """A slope of brightness across each picture, shape ``[n, 32, 32, 1]``."""
    grid = np.linspace(-1, 1, 32, dtype=np.float32)
    return (uniform(-0.2, 0.2, 1, 1) * grid[None, None, :] + uniform(-0.2, 0.2, 1, 1) * grid[None, :, None])[
        ..., None
    ]


def _bar(uniform):
    """Pixels under a straight bar that crosses about half of the pictures, shape ``[n, 32, 32]``."""
    grid = np.arange(32, dtype=np.float32) - 15.5
    angle = uniform(0, np.pi, 1, 1)
    across = (
        np.cos(angle) * grid[None, None, :] + np.sin(angle) * grid[None, :, None] - uniform(-12, 12, 1, 1)
    )
    return np.abs(across) < uniform(-2, 2, 1, 1)
