"""What leaks is exact where the chapter says so, and gradient matching finds a small picture and no noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedlib import data, leakage, models, partition
from fedlib.control import Scaffold
from fedlib.experiment import run
from fedlib.federation import Federation
from fedlib.leakage import Attack
from fedlib.local import LocalSGD
from fedlib.rng import stream
from fedlib.task import Task


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random(*shape, seed=0):
    return torch.from_numpy(stream(seed, "toy", 90).normal(size=shape))


def small(shape=(1, 8, 8), classes=4, width=8, seed=0):
    """Return a smooth network for tiny pictures, and its parameters in double precision."""

    def build(input_shape, num_classes):
        return leakage.smooth_cnn(input_shape, num_classes, width)

    model = models.build(build, shape, classes, seed)
    return model, model.theta.double()


def picture(seed=0, shape=(1, 8, 8)):
    """Return a smooth picture with pixels between 0 and 1."""
    up, across = (torch.linspace(-1, 1, shape[-1], dtype=torch.float64) for _ in range(2))
    a, b, c = stream(seed, "toy", 91).uniform(1, 3, 3)
    waves = [torch.sin(a * up[:, None] + b * across + c * i) for i in range(shape[0])]
    return 0.5 + 0.4 * torch.stack(waves)[None]


# Exact identities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [1, 4, 16])
def test_a_linear_layer_gives_its_input_away(hidden):
    net = torch.nn.Sequential(torch.nn.Linear(12, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3)).double()
    x = random(1, 12)
    cross_entropy(net(x), torch.tensor([2])).backward()
    found = leakage.invert_linear(net[0].weight.grad, net[0].bias.grad)
    assert torch.allclose(found, x[0], atol=1e-8, rtol=0)


def test_silent_units_are_passed_over_and_silence_is_an_error():
    x, reacted = random(5), torch.tensor([0.0, 0.0, -1e-3, 1e-13])
    found = leakage.invert_linear(reacted[:, None] * x + 1e-17, reacted.double())
    assert torch.allclose(found, x, atol=1e-8)
    with pytest.raises(ValueError, match="no unit of this layer reacted"):
        leakage.invert_linear(torch.zeros(4, 5), torch.zeros(4))
    with pytest.raises(ValueError, match=r"got \(4, 5\) and \(5,\)"):
        leakage.invert_linear(torch.zeros(4, 5), torch.ones(5))


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_labels_are_right_for_undecided_and_confident_models(scale, classes):
    for i in range(20):
        z, y = scale * random(classes, seed=i), i % classes
        b = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        cross_entropy((z + b)[None], torch.tensor([y])).backward()
        assert leakage.infer_label(b.grad) == y
        assert ((b.grad < 0).nonzero().ravel() == y).all()


@pytest.mark.parametrize("scale", [0.01, 5.0])
def test_counts_are_exact_if_the_mean_probabilities_are_known(scale):
    z, y = scale * random(32, 10), torch.from_numpy(stream(1, "toy").integers(10, size=32))
    b = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    cross_entropy(z + b, y).backward()
    counts = leakage.infer_counts(b.grad, z.softmax(1).mean(0), 32)
    assert torch.allclose(counts, torch.bincount(y, minlength=10).double(), atol=1e-8)


def test_one_full_batch_step_of_scaffold_puts_the_gradient_into_c_k():
    pixels = picture(shape=(3, 8, 8)).float()
    one = data.Dataset("one picture", pixels, torch.tensor([1]), pixels, torch.tensor([1]), 4)
    task = Task(models.mlp, one, partition.iid(num_clients=1))
    model, sent = task.new_model(seed=3), []

    class Watched(Scaffold):
        def commit(self, ctx, server, messages):
            sent.append(messages["control"][0].clone())
            return super().commit(ctx, server, messages)

    start = model.theta.clone()
    run(task, Federation(LocalSGD(lr=0.1, batch_size=None, correction=Watched())), 1, seed=3)
    gradient = leakage.gradient(model, start.double(), pixels.double(), one.train_y)
    assert torch.allclose(sent[0].double(), gradient, atol=1e-5)
    found = leakage.invert_linear(sent[0][model.layout["1.weight"]].view(16, -1), sent[0][model.layout["1.bias"]])
    assert torch.allclose(found, pixels.ravel(), atol=1e-3)


# Gradients that can be differentiated ----------------------------------------------------------------------


def test_the_gradient_is_the_one_that_training_takes_and_changes_nothing():
    model, w = small()
    before, x, y = model.theta.clone(), picture(), torch.tensor([3])
    got = leakage.gradient(model, w, x, y)
    assert torch.equal(model.theta, before) and not w.requires_grad
    trained = model.gradient(cross_entropy(model(x.float()), y))
    assert torch.allclose(got.float(), trained, atol=1e-6)


def test_the_gradient_is_differentiable_in_the_pictures():
    model, w = small(width=2)
    assert torch.autograd.gradcheck(
        lambda x: leakage.gradient(model, w, x, torch.tensor([1])), picture().requires_grad_(), fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda x: leakage.local_delta(model, w, x, torch.tensor([1]), 0.3, 3), picture().requires_grad_(), fast_mode=True
    )


def test_local_steps_are_those_of_the_library():
    x = torch.cat([picture(seed) for seed in (0, 1, 2)])
    few = data.Dataset("three pictures", x.float(), torch.tensor([0, 2, 2]), x.float(), torch.tensor([0, 2, 2]), 4)

    def build(input_shape, num_classes):
        return leakage.smooth_cnn(input_shape, num_classes, 8)

    task = Task(build, few, partition.iid(num_clients=1))
    model = task.new_model(seed=5)
    start = model.theta.clone()
    history = run(task, Federation(LocalSGD(lr=0.2, epochs=4, batch_size=None)), 1, seed=5)
    delta = leakage.local_delta(model, start.double(), x, few.train_y, 0.2, 4)
    assert torch.allclose(delta.float(), history.w - start, atol=1e-6)
    assert delta.norm() > 0.1


def test_the_network_has_the_size_that_the_chapter_counts_with():
    model = models.build(leakage.smooth_cnn, (3, 32, 32), 10, 0)
    assert model.layout.size == 896 + 2 * 9_248 + 2_048 * 10 + 10 == 39_882
    for shape in ((3, 30, 32), (3, 32, 30), (32, 32)):
        with pytest.raises(ValueError, match="divisible by 4"):
            leakage.smooth_cnn(shape, 10)


# Matching --------------------------------------------------------------------------------------------------


def attacked(noise=0.0, smoothness=1e-4, seed=0, **settings):
    """Return a picture, what is found of it, and everything that was kept."""
    model, w = small(seed=seed)
    x, y = picture(seed), torch.tensor([seed % 4])
    message = leakage.gradient(model, w, x, y).detach()
    message = leakage.add_noise(message, noise, stream(seed, "noise"))
    attack = Attack(smoothness, **({"iterations": 150} | settings))
    kept = leakage.reconstruct(message, lambda x: leakage.gradient(model, w, x, y), x.shape, attack, seed)
    return x, kept[-1], kept


def baseline(x):
    others = torch.cat([picture(seed) for seed in range(10, 60)])
    return leakage.psnr(x, leakage.mean_picture(others)).item()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_picture_is_found_from_its_gradient(seed):
    x, found, _ = attacked(smoothness=1e-6, seed=seed)
    assert leakage.psnr(x, found) > max(30, baseline(x) + 10)


def test_nothing_is_found_under_large_noise():
    x, found, _ = attacked(noise=10.0)
    assert leakage.psnr(x, found) < baseline(x)
    assert found.min() == 0 and found.max() == 1, "what goes out of range is cut to it"


def test_smoothness_helps_against_noise_and_makes_pictures_smooth():
    x, rough, _ = attacked(noise=0.5, smoothness=0.0)
    _, smooth, _ = attacked(noise=0.5, smoothness=0.3)
    assert leakage.psnr(x, smooth) > leakage.psnr(x, rough) + 2
    assert leakage.total_variation(smooth) < leakage.total_variation(rough)


def test_the_attack_is_the_same_each_time_and_starts_from_its_seed():
    assert torch.equal(attacked(iterations=5)[1], attacked(iterations=5)[1])
    model, w = small()
    x, y = picture(), torch.tensor([0])
    message = leakage.gradient(model, w, x, y).detach()
    first, second = (
        leakage.reconstruct(message, lambda x: leakage.gradient(model, w, x, y), x.shape, Attack(iterations=2), seed)
        for seed in (0, 1)
    )
    assert not torch.allclose(first[-1], second[-1])


def test_pictures_on_the_way_are_kept_and_get_better():
    x, found, kept = attacked(iterations=30, keep_every=10)
    assert len(kept) == 3 and torch.equal(kept[-1], found)
    assert torch.allclose(found, attacked(iterations=30)[1], atol=1e-9), "to look changes nothing"
    scores = [leakage.psnr(x, k).item() for k in kept]
    assert scores[0] < scores[1] < scores[2]
    assert all(0 <= k.min() and k.max() <= 1 for k in kept)


@pytest.mark.parametrize("seed", [0, 1])
def test_who_knows_the_number_of_steps_can_undo_them(seed):
    model, w = small(seed=seed)
    x, y = picture(seed), torch.tensor([1])

    def simulate(x):
        return leakage.local_delta(model, w, x, y, 0.5, 3)

    found = leakage.reconstruct(simulate(x).detach(), simulate, x.shape, Attack(1e-6, iterations=150))[-1]
    assert leakage.psnr(x, found) > baseline(x) + 10


def test_a_message_without_content_is_refused():
    for message in (torch.zeros(3), torch.full((3,), math.nan), torch.full((3,), math.inf)):
        with pytest.raises(ValueError, match="there is nothing to match"):
            leakage.reconstruct(message.double(), None, (1, 1, 8, 8), Attack())


@pytest.mark.parametrize("settings", [{"smoothness": -1.0}, {"smoothness": math.nan}, {"iterations": 0},
                                      {"iterations": 5, "keep_every": 6}, {"iterations": 5, "keep_every": 2},
                                      {"keep_every": -1}, {"keep_every": 0}])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="must"):
        Attack(**settings)


# Scores ----------------------------------------------------------------------------------------------------


def test_psnr_by_hand():
    x = torch.zeros(3, 1, 2, 2, dtype=torch.float64)
    x_hat = torch.stack([x[0] + 0.1, x[0] + 1.0, x[0]])
    x_hat[0, 0, 0, 0] = 0.0  # three of four pixels are off by 0.1: MSE 0.0075
    assert torch.allclose(leakage.psnr(x, x_hat)[:2], torch.tensor([21.249387366083, 0.0], dtype=torch.float64))
    assert leakage.psnr(x, x_hat)[2] == math.inf


def test_psnr_agrees_with_the_usual_formula_on_bytes():
    rng = stream(0, "toy")
    a, b = (rng.integers(256, size=(1, 3, 4, 4)) for _ in range(2))
    usual = 10 * np.log10(255**2 / np.mean((a - b).astype(float) ** 2))
    got = leakage.psnr(torch.from_numpy(a / 255), torch.from_numpy(b / 255))
    assert got.item() == pytest.approx(usual)


def test_pictures_of_a_batch_are_matched_whatever_their_order():
    x = random(5, 3, 2, 2)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(leakage.match(x, x[order] + 0), x)
    # The best pairs together, not the best partner for each: the second picture must leave the first its only one.
    x, found = (torch.tensor(v).view(2, 1, 1, 1) for v in ([0.0, 1.0], [0.9, 2.5]))
    assert leakage.match(x, found).ravel().tolist() == pytest.approx([0.9, 2.5])


def test_noise_has_the_length_that_was_asked_for():
    message = random(40_000) * 3
    noise = leakage.add_noise(message, 0.5, stream(0, "noise")) - message
    assert (noise.norm() / message.norm()).item() == pytest.approx(0.5, rel=0.02)
    assert abs(noise.mean()) < 0.02 * 3
    assert torch.equal(leakage.add_noise(message, 0, stream(0, "noise")), message)


def test_total_variation_by_hand():
    x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]).view(1, 1, 2, 3)
    assert leakage.total_variation(x).item() == pytest.approx((1 + 0 + 0 + 1) / 4 + (0 + 1 + 0) / 3)


def test_pixels_and_normalizer_undo_each_other():
    pictures = replace(data.shapes32(20, 2), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
    x = leakage.pixels(pictures, torch.tensor([3, 7]))
    assert x.dtype == torch.float64 and torch.allclose(
        leakage.normalizer(pictures)(x), pictures.train_x[[3, 7]].double(), atol=1e-6
    )
    seen = pictures.pictures([3, 7])
    plain = leakage.pixels(data.shapes32(20, 2), [3, 7])
    assert np.array_equal((255 * plain).round().permute(0, 2, 3, 1).numpy(), data.shapes32(20, 2).pictures([3, 7]))
    assert seen.shape == (2, 32, 32, 3)


def test_the_mean_picture_is_the_best_guess_without_a_message():
    x = random(50, 1, 3, 3)
    guess = leakage.mean_picture(x)
    assert guess.shape == (1, 1, 3, 3)
    for other in (torch.zeros_like(guess), x[:1], guess + 0.1, x.median(0, keepdim=True).values):
        assert (x - guess).square().mean() < (x - other).square().mean()


def test_gradients_that_are_none_are_refused():
    nan = torch.tensor([0.1, float("nan")])
    for call in (lambda: leakage.infer_label(nan), lambda: leakage.invert_linear(torch.ones(2, 3), nan)):
        with pytest.raises(ValueError, match="NaN or infinity"):
            call()
    with pytest.raises(ValueError, match=r"shape \[C\], got shape \(1, 2\)"):
        leakage.infer_label(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"got shapes \(3, 1\) and \(3,\)"):
        leakage.infer_counts(torch.zeros(3, 1), torch.zeros(3), 8)


@pytest.mark.parametrize(
    ("simulate", "match"),
    [
        (lambda x: x.flatten()[:4, None], r"of shape \(4,\) .* got shape \(4, 1\)"),
        (lambda x: x.flatten()[:4] * float("nan"), "with NaN or infinity"),
        (lambda x: torch.ones(4, dtype=torch.float64), "without a gradient"),
    ],
)
def test_a_simulation_that_cannot_be_matched_is_refused(simulate, match):
    with pytest.raises(ValueError, match=match):
        leakage.reconstruct(torch.ones(4, dtype=torch.float64), simulate, (1, 1, 2, 2), Attack())


@pytest.mark.parametrize("score", [leakage.psnr, leakage.match])
def test_only_pictures_of_one_shape_are_compared(score):
    for x, found in (((3, 4, 4), (3, 4, 4)), ((2, 3, 4, 4), (2, 3, 4, 5)), ((3, 3, 4, 4), (2, 3, 4, 4))):
        with pytest.raises(ValueError, match="expected pictures of one shape"):
            score(torch.zeros(x), torch.zeros(found))
