"""How good is a model?  Loss, accuracy, and accuracy for each class, on the test set."""

import math

import torch


def outputs(model, w, x, chunk=500, workers=None):
    """Return the outputs ``[n, C]`` of the network with parameters ``w`` (``[d]``) for samples ``x``.

    With ``workers`` (an ``executor.Workers``) its networks are used side by side, else ``model`` alone.  Chunks are
    fixed in size, so that this changes nothing.
    """

    def forward(model, part):
        model.load(w)
        with torch.no_grad():
            return model(part)

    parts = x.split(chunk)
    if workers is None:
        return torch.cat([forward(model, part) for part in parts])
    return torch.cat(workers.map(forward, [(part,) for part in parts], [len(part) for part in parts]))


def evaluate(task, model, w, workers=None):
    """Measure ``w`` on the task's test set.

    Returns
    -------
    dict
        ``loss`` (the task's mean loss; None if it is not finite) and, for classes, ``accuracy`` in [0, 1] and
        ``class_accuracy``, a list over all classes of the task (None for a class without test samples).
    """
    y = task.data.test_y
    predicted = outputs(model, w, task.data.test_x, workers=workers)
    loss = float(task.loss(predicted, y))
    scores = {"loss": loss if math.isfinite(loss) else None}
    if not y.is_floating_point():
        correct = predicted.argmax(1) == y
        total = torch.bincount(y, minlength=task.data.num_classes).tolist()
        right = torch.bincount(y[correct], minlength=task.data.num_classes).tolist()
        scores["accuracy"] = sum(right) / sum(total)
        scores["class_accuracy"] = [r / n if n else None for r, n in zip(right, total)]
    return scores
