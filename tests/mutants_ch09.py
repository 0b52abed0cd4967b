"""The planted mistakes of chapter 9; ``tests/mutants.py`` lists them with all others."""


def mutant(name, file, old, new, *tests):
    return {
        "name": name,
        "file": f"fedlib/{file}",
        "old": old,
        "new": new,
        "tests": [f"tests/{test}" for test in tests],
    }


def leak(name, old, new):
    return mutant(name, "leakage.py", old, new, "test_leakage.py")


def checked(name, old, new):
    return mutant(name, "check/chapter09.py", old, new, "test_check09.py")


MUTANTS = [
    # exact leaks
    leak("the first unit inverts", "unit = grad_b.abs().argmax()", "unit = 0"),
    leak("the most positive unit inverts", "unit = grad_b.abs().argmax()", "unit = grad_b.argmax()"),
    leak("silence inverted", "if grad_b[unit] == 0:", "if False:"),
    leak("bright by unit length", "return grad_W[unit] / grad_b[unit]", "return grad_W[unit] / grad_W[unit].norm()"),
    leak("shapes of a layer unchecked", "if grad_W.ndim != 2 or grad_W.shape[:1] != grad_b.shape:", "if False:"),
    leak("label is the largest entry", "return int(grad_b.argmin())", "return int(grad_b.argmax())"),
    leak("label by magnitude", "return int(grad_b.argmin())", "return int(grad_b.abs().argmax())"),
    leak("even probabilities for all models", "(mean_p - grad_b)", "(1 / len(grad_b) - grad_b)"),
    leak("counts added", "(mean_p - grad_b)", "(mean_p + grad_b)"),
    leak("counts as shares", "return batch_size * (", "return 1 * ("),
    # gradients
    leak(
        "gradient of the model's own parameters",
        "model.layout.tensors(w), (x,)",
        "model.layout.tensors(0 * w + model.theta), (x,)",
    ),
    leak(
        "gradient without a graph",
        "nn.functional.cross_entropy(outputs, y), w, create_graph=True",
        "nn.functional.cross_entropy(outputs, y), w",
    ),
    leak("sum for mean loss", "cross_entropy(outputs, y), w", 'cross_entropy(outputs, y, reduction="sum"), w'),
    leak(
        "all steps from the start",
        "w = w - lr * gradient(model, w, x, y)",
        "w = w - lr * gradient(model, start, x, y)",
    ),
    leak("delta backward", "return w - start", "return start - w"),
    leak("one step for several", "for _ in range(steps):", "for _ in range(1):"),
    leak("parameters marked for good", "w = w.detach().requires_grad_()", "w = w.requires_grad_()"),
    leak(
        "a wider network",
        "nn.Conv2d(width, width, 3, padding=1), nn.GELU(),\n        nn.Flatten()",
        "nn.Conv2d(width, width, 5, padding=2), nn.GELU(),\n        nn.Flatten()",
    ),
    leak("odd pictures accepted", "input_shape[1] % 4 or input_shape[2] % 4", "input_shape[1] % 4"),
    # matching
    leak(
        "direction ignored",
        "(simulate(x) - message).square().sum() / size",
        "(simulate(x).square().sum() - size) ** 2 / size**2",
    ),
    leak("smoothness ignored", "attack.smoothness * total_variation(x)", "0 * total_variation(x)"),
    leak("start without a seed", 'stream(seed, "attack").random(shape)', 'stream(0, "attack").random(shape)'),
    leak("global start", 'stream(seed, "attack").random(shape)', "__import__('numpy').random.random(shape)"),
    leak("pixels out of range", "kept.append(x.detach().clamp(0, 1))", "kept.append(x.detach().clone())"),
    leak("one stretch only", "range(attack.iterations // stretch)", "range(1)"),
    leak("empty messages accepted", "if not 0 < size < math.inf:", "if False:"),
    leak(
        "senseless settings accepted",
        "if not (math.isfinite(self.smoothness) and self.smoothness >= 0):",
        "if False:",
    ),
    leak(
        "the rest after the last stretch is lost",
        "(self.keep_every < 1 or self.iterations % self.keep_every)",
        "self.keep_every < 1",
    ),
    leak(
        "stretches of no length",
        "(self.keep_every < 1 or self.iterations % self.keep_every)",
        "self.iterations % (self.keep_every or 1)",
    ),
    # scores
    leak("natural decibels", "-10 * torch.log10(", "-10 * torch.log("),
    leak(
        "peak of the reconstruction",
        "(x - x_hat).square().flatten(1).mean(1))",
        "(x - x_hat).square().flatten(1).mean(1) / x_hat.max() ** 2)",
    ),
    leak("sum of squares", "square().flatten(1).mean(1))", "square().flatten(1).sum(1))"),
    leak("one score for a batch", "square().flatten(1).mean(1))", "square().mean().expand(len(x)))"),
    leak("each its nearest", "linear_sum_assignment(squares.numpy())[1]", "squares.numpy().argmin(1)"),
    leak(
        "order of the batch kept",
        "return x_hat[torch.from_numpy(linear_sum_assignment(squares.numpy())[1])]",
        "return x_hat",
    ),
    leak("noise a coordinate", "ratio * message.norm() / math.sqrt(len(message))", "ratio * message.norm()"),
    leak(
        "noise of its own size",
        "ratio * message.norm() / math.sqrt(len(message))",
        "ratio / math.sqrt(len(message))",
    ),
    leak("variation across only", " + x.diff(dim=-2).abs().mean()", ""),
    leak("median picture", "return x.mean(0, keepdim=True)", "return x.median(0, keepdim=True).values"),
    leak(
        "pixels stay normalized",
        "return dataset.train_x[indices].double() * std + mean",
        "return dataset.train_x[indices].double() * std",
    ),
    # checks
    leak("NaN is a label", "    _require_finite(grad_b=grad_b)\n    return int", "    return int"),
    leak("any simulation matched", "if first.shape != message.shape or", "if False and"),
    leak("pictures of any shape", "if x.ndim != 4 or x_hat.shape[1:] != x.shape[1:]", "if False and x_hat.shape[1:] != x.shape[1:]"),
    checked("negative gradients unasked", "grad_b = np.array([-0.5, 0.0, -0.3])", "grad_b = np.array([0.5, 0.0, 0.3])"),
    checked("small gradients unasked", "small = 1e-6 * grad_b", "small = 1.0 * grad_b"),
    checked("exact probabilities only", "(not trained) * 1e-3", "(not trained) * 0.0"),
    checked("signs of the biases left to chance", "        if sign:  #", "        if False:  #"),
    checked("silent units unasked", "for zeros in ((0, 1, 2), (3, 4, 5), (0, 2, 4)):", "for zeros in ((5,),):"),
    checked(
        "cancelling gradients unasked",
        "grad_b = np.array([0.5, 0.25, -0.5, -0.25])",
        "grad_b = np.array([0.5, 0.25, 0.5, 0.25])",
    ),
    checked("rounding unasked", "grad_b = np.array([0.0, 1e-14, 0.5])", "grad_b = np.array([0.0, 0.4, 0.5])"),
    checked("silence unasked", "raised is not None,\n", "True,\n"),
    checked("two classes unasked", "(2, 1.0), (2, 4.0), ", ""),
    checked("only untrained models counted", "(5, 12, 2.0, True), (3, 7, 3.0, True)", "(5, 12, 0.01, False)"),
    checked(
        "one normalization",
        "for mean, std in (([0.0] * 3, [1.0] * 3), ([0.5, 0.4, 0.45], [0.25] * 3), ([0.5] * 3, [0.2, 0.3, 0.4])):",
        "for mean, std in (([0.0] * 3, [1.0] * 3),):",
    ),
    checked("equality unasked", "same == math.inf,\n", "True,\n"),
    checked("the only client", "c = (c_k + sum(", "c = c_k + 0 * (sum("),
]
