"""How good is a model?  Loss, accuracy, and accuracy for each class, on the test set."""

import math

import torch


def outputs(workers, w, x, chunk=500):
    """Return the outputs ``[n, C]`` of the network with parameters ``w`` (``[d]``) for samples ``x``.

    ``workers`` is an ``executor.Workers``; chunks are fixed in size, so that their number changes nothing.
    """

    def forward(model, part):
        model.load(w)
        with torch.no_grad():
            return model(part)

    parts = x.split(chunk)
    return torch.cat(workers.map(forward, [(part,) for part in parts], [len(part) for part in parts]))


def evaluate(task, workers, w):
    """Measure ``w`` on the task's test set, with the networks of ``workers`` side by side.

    Returns
    -------
    dict
        ``loss`` (the task's mean loss; None if it is not finite) and, for classes, ``accuracy`` in [0, 1] and
        ``class_accuracy``, a list over all classes of the task (None for a class without test samples).
    """
    y = task.data.test_y
    predicted = outputs(workers, w, task.data.test_x)
    loss = float(task.loss(predicted, y))
    scores = {"loss": loss if math.isfinite(loss) else None}
    if not y.is_floating_point():
        correct = predicted.argmax(1) == y
        total = torch.bincount(y, minlength=task.data.num_classes).tolist()
        right = torch.bincount(y[correct], minlength=task.data.num_classes).tolist()
        scores["accuracy"] = sum(right) / sum(total)
        scores["class_accuracy"] = [r / n if n else None for r, n in zip(right, total)]
    return scores
