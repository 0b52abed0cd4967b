"""The networks: their sizes, and that building one depends on its seed alone."""

import pytest
import torch
import torch.nn.functional as F

from fedlib import models


@pytest.mark.parametrize(
    ("model", "shape", "classes", "size"),
    [
        # By hand: 32·(3·9+1) + 64·(32·9+1) + 256·(4096+1) + 10·(256+1)
        (models.cnn, (3, 32, 32), 10, 1_070_794),
        (models.mlp, (8,), 4, 16 * 9 + 4 * 17),
        (models.logistic, (8,), 3, 27),
    ],
)
def test_sizes(model, shape, classes, size):
    network = models.build(model, shape, classes, seed=0)
    assert network.layout.size == size
    assert network(torch.zeros(2, *shape)).shape == (2, classes)


def test_the_shares_of_the_layers_that_the_course_quotes():
    layout = models.build(models.cnn, (3, 32, 32), 10, seed=0).layout
    fc2 = sum(len(range(*layout[name].indices(layout.size))) for name in ("fc2.weight", "fc2.bias"))
    fc1 = sum(len(range(*layout[name].indices(layout.size))) for name in ("fc1.weight", "fc1.bias"))
    assert round(100 * fc2 / layout.size, 2) == 0.24 and round(100 * (fc1 + fc2) / layout.size) == 98


def test_the_cnn_is_conv_relu_pool():
    network = models.build(models.cnn, (3, 32, 32), 10, seed=0)
    m, x = network.module, torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    h = F.max_pool2d(F.relu(F.conv2d(x, m.conv1.weight, m.conv1.bias, padding=1)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, m.conv2.weight, m.conv2.bias, padding=1)), 2)
    expected = F.linear(F.relu(F.linear(h.flatten(1), m.fc1.weight, m.fc1.bias)), m.fc2.weight, m.fc2.bias)
    torch.testing.assert_close(network(x), expected)


def test_equal_seeds_give_equal_networks_and_the_global_generator_is_untouched():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = models.build(models.mlp, (8,), 4, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(models.build(models.mlp, (8,), 4, seed=0).theta, first.theta)
    assert not torch.equal(models.build(models.mlp, (8,), 4, seed=1).theta, first.theta)


@pytest.mark.parametrize("shape", [(8,), (3, 30, 32)])
def test_shapes_that_the_cnn_cannot_pool_are_refused(shape):
    with pytest.raises(ValueError, match="divisible by 4"):
        models.build(models.cnn, shape, 10, seed=0)
