"""The flat vector: views stay views, and a step is bit for bit a step of torch.optim.SGD."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedlib import models
from fedlib.flat import FlatModel, is_finite


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 3, (3, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 3 * 4, 5))


@pytest.fixture(autouse=True)
def keep_global_generator():
    with torch.random.fork_rng(devices=[]):
        yield


def test_the_vector_holds_the_parameters_in_order_and_shape():
    module = network()
    original = {name: p.detach().clone() for name, p in module.named_parameters()}
    model = FlatModel(module)
    assert model.layout.names == list(original) and model.layout.size == sum(
        p.numel() for p in original.values()
    )
    for name, tensor in model.layout.tensors(model.theta).items():
        assert torch.equal(tensor, original[name])
    assert torch.equal(model.theta[model.layout["3.bias"]], original["3.bias"])
    # Convolutions lie channels-last: output, height, width, input.
    assert torch.equal(
        model.theta[model.layout["0.weight"]], original["0.weight"].permute(0, 2, 3, 1).flatten()
    )


def test_the_slices_cover_the_vector_without_gap_or_overlap():
    layout = FlatModel(network()).layout
    covered = torch.zeros(layout.size)
    for name in layout.names:
        covered[layout[name]] += 1
    assert torch.equal(covered, torch.ones(layout.size))


def test_writing_the_vector_changes_the_network_and_back():
    model = FlatModel(network())
    x = torch.randn(4, 2, 5, 5)
    before = model(x)
    model.theta.mul_(0)
    assert torch.equal(model(x), torch.zeros_like(before))
    with torch.no_grad():
        model.module[3].bias.fill_(2)
    assert torch.equal(model.theta[model.layout["3.bias"]], torch.full((5,), 2.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("model", [models.cnn, models.mlp, models.logistic])
def test_steps_equal_torch_sgd_bit_for_bit(model, momentum):
    flat = models.build(model, (3, 8, 8), 4, seed=1)
    plain = models.build(model, (3, 8, 8), 4, seed=1).module
    plain = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=momentum)
    x, y = torch.randn(16, 8, 8, 3).permute(0, 3, 1, 2), torch.randint(0, 4, (16,))
    velocity = torch.zeros_like(flat.theta)
    for _ in range(10):
        step = velocity.mul_(momentum).add_(flat.gradient(F.cross_entropy(flat(x), y)))
        flat.theta.sub_(step, alpha=0.05)
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for name, p in plain.named_parameters():
        assert torch.equal(flat.layout.tensors(flat.theta)[name], p.detach())


def test_the_gradient_is_fresh_each_time():
    model = FlatModel(network())
    x = torch.randn(4, 2, 5, 5)
    first = model.gradient(model(x).square().mean()).clone()
    assert torch.equal(model.gradient(model(x).square().mean()), first) and first.norm() > 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_load_copies_and_forgets_its_argument(seed):
    model = FlatModel(network())
    w = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(seed))
    kept = w.clone()
    model.load(w)
    model.theta.add_(1)
    assert torch.equal(w, kept)
    for name, tensor in model.layout.tensors(kept + 1).items():
        assert torch.equal(dict(model.module.named_parameters())[name].detach(), tensor)


def break_zero_grad(model):
    model.module.zero_grad(set_to_none=True)


def break_to(model):
    model.module[3].weight.data = model.module[3].weight.data.clone()


@pytest.mark.parametrize("harm", [break_zero_grad, break_to])
def test_broken_views_are_noticed(harm):
    model = FlatModel(network())
    harm(model)
    with pytest.raises(RuntimeError, match="no longer views"):
        model.load(torch.zeros(model.layout.size))


def test_gradients_that_left_the_vector_are_noticed():
    model = FlatModel(network())
    model.module.zero_grad(set_to_none=True)
    with pytest.raises(RuntimeError, match="no longer views"):
        model.gradient(model(torch.randn(4, 2, 5, 5)).sum())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_one_bad_number_is_found_wherever_it_is(bad, place):
    vector = torch.full((10,), 3e38)  # large, but finite: sums and squares of it are not
    assert is_finite(vector) and is_finite(-vector)
    vector[place] = bad
    assert not is_finite(vector)


def test_a_deep_copy_is_refused():
    with pytest.raises(TypeError, match="cannot be deep-copied"):
        copy.deepcopy(FlatModel(network()))


def test_models_with_buffers_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="(?s)buffers.*running_mean.*GroupNorm"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "no parameters"),
        (nn.Linear(2, 2).double(), "float64"),
        (nn.Linear(2, 2).requires_grad_(False), "frozen"),
    ],
)
def test_other_unsuitable_models_are_refused(module, message):
    with pytest.raises(ValueError, match=message):
        FlatModel(module)


def test_wrong_shapes_and_names_are_refused():
    model = FlatModel(network())
    with pytest.raises(ValueError, match=r"shape \(3,\)|got \(3,\)"):
        model.load(torch.zeros(3))
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        model.layout.tensors(torch.zeros(3))
    with pytest.raises(ValueError, match="'fc9'.*0.weight"):
        model.layout["fc9"]
