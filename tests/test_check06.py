"""The checks of chapter 6 accept every right answer and tell wrong ones apart."""

import numpy as np
import pytest
import torch
from checking import every_exercise

from fedlib.check import chapter06 as check

# 6.1 scaffold_client ---------------------------------------------------------------------------------------


def client_by_hand(gradients, w, c, c_k, lr, epochs):
    w_k = w.copy()
    for _ in range(epochs):
        for gradient in gradients:
            w_k -= lr * (gradient(w_k) - c_k + c)
    H = epochs * len(gradients)
    return w_k - w, c_k - c - (w_k - w) / (H * lr)


def client_that_averages(gradients, w, c, c_k, lr, epochs):
    y, seen = w, []
    for gradient in gradients * epochs:
        seen.append(gradient(y))
        y = y - lr * (seen[-1] + (c - c_k))
    return [y - w, np.mean(seen, axis=0)]


def client_with_lists(gradients, w, c, c_k, lr, epochs):
    y = w + []
    for gradient in gradients * epochs:
        y = [v - lr * (g - o + s) for v, g, o, s in zip(y, gradient(np.array(y)), c_k, c, strict=True)]
    length = lr * len(gradients) * epochs
    delta = [a - b for a, b in zip(y, w, strict=True)]
    return delta, [o - s - d / length for o, s, d in zip(c_k, c, delta, strict=True)]


def client_with_tensors(gradients, w, c, c_k, lr, epochs):
    y, steps = w.clone(), 0
    for _ in range(epochs):
        for gradient in gradients:
            y.sub_(torch.as_tensor(gradient(y.numpy())) + c.sub(c_k), alpha=lr)
            steps += 1
    return y.sub(w), c_k - c + (w - y) / (steps * lr)


def client_in_single_precision(gradients, w, c, c_k, lr, epochs):
    delta, new = client_by_hand(gradients, w, c, c_k, lr, epochs)
    return np.float32(delta), np.float32(new)


CLIENT = [client_by_hand, client_that_averages, client_with_lists, client_with_tensors, client_in_single_precision]


def client(step=lambda g, c, c_k: g - c_k + c, renew=None, result=None, walk=None, direction=-1, lr_in_step=True):
    """Return an answer in which one thing is done differently."""

    def answer(gradients, w, c, c_k, lr, epochs):
        y, seen = w, []
        for gradient in walk(gradients, epochs) if walk else gradients * epochs:
            seen.append(gradient(y))
            y = y + direction * (lr if lr_in_step else 1) * step(seen[-1], c, c_k)
        delta, H = y - w, epochs * len(gradients)
        facts = {"H": H, "lr": lr, "batches": len(gradients), "epochs": epochs, "seen": seen, "w": w, "gradients": gradients}
        new = renew(c, c_k, delta, facts) if renew else c_k - c - delta / (H * lr)
        return result(y, delta, new) if result else (delta, new)

    return answer


def mean_gradient(gradients, epochs):
    return [lambda x: np.mean([g(x) for g in gradients], axis=0)] * epochs


CLIENT_WRONG = {
    "doubles the gradient": client(step=lambda g, c, c_k: g + c_k - c),
    "its plain gradient": client(step=lambda g, c, c_k: g),
    "it is where the client ended": client(result=lambda y, delta, new: (y, new)),
    "You return Δc_k, the change. The": client(renew=lambda c, c_k, D, f: -c - D / (f["H"] * f["lr"])),
    "uphill: w_k": client(direction=1),
    "where is the learning rate?": client(lr_in_step=False),
    "Your c_k is lr times the gradient": client(renew=lambda c, c_k, D, f: c_k - c - D / f["H"]),
    "the gradient uphill": client(renew=lambda c, c_k, D, f: c_k - c + D / (f["H"] * f["lr"])),
    "when is it renewed?": client(renew=lambda c, c_k, D, f: c_k),
    "but c is missing: without": client(step=lambda g, c, c_k: g - c_k),
    "in your steps with the wrong sign": client(step=lambda g, c, c_k: g - c_k - c),
    "your client seems to make one": client(walk=lambda gradients, epochs: gradients),
    "It should step after each batch": client(walk=mean_gradient),
    "H counts *all* local steps": client(renew=lambda c, c_k, D, f: c_k - c - D / (f["batches"] * f["lr"])),
    "You count the epochs only": client(renew=lambda c, c_k, D, f: c_k - c - D / (f["epochs"] * f["lr"])),
    "a sum of gradients, not their mean": client(renew=lambda c, c_k, D, f: c_k - c - D / f["lr"]),
    "c is missing in the renewal": client(renew=lambda c, c_k, D, f: c_k - D / (f["H"] * f["lr"])),
    "c has the wrong sign in the renewal": client(renew=lambda c, c_k, D, f: c_k + c - D / (f["H"] * f["lr"])),
    "That is option I": client(renew=lambda c, c_k, D, f: np.mean([g(f["w"]) for g in f["gradients"]], axis=0)),
    "the last step": client(renew=lambda c, c_k, D, f: f["seen"][-1]),
    "Return two vectors": client(result=lambda y, delta, new: delta),
}


def impatient(gradients, w, c, c_k, lr, epochs):
    """Renew c_k after each epoch, within the round."""
    y = w
    for _ in range(epochs):
        start = y
        for gradient in gradients:
            y = y - lr * (gradient(y) - c_k + c)
        c_k = c_k - c - (y - start) / (len(gradients) * lr)
    return y - w, c_k


CLIENT_ALSO_WRONG = {
    "renewed within the round": impatient,
    "exchanged": client(result=lambda y, delta, new: (new, delta)),
    "no c_k": client(step=lambda g, c, c_k: g + c),
    "the mean step": client(renew=lambda c, c_k, D, f: -D / (f["H"] * f["lr"])),
    "batches backwards": client(walk=lambda gradients, epochs: gradients[::-1] * epochs),
    "the first gradient": client(renew=lambda c, c_k, D, f: f["seen"][0]),
    "always zero": client(result=lambda y, delta, new: (0 * delta, new)),
    "one epoch too many": client(walk=lambda gradients, epochs: gradients * (epochs + 1)),
}

# 6.2 server_control ----------------------------------------------------------------------------------------


def control_with_numpy(c, delta_c, ids, p):
    return c + p[ids] @ delta_c


def control_in_a_loop(c, delta_c, ids, p):
    c = c.copy()
    for row, k in zip(delta_c, ids, strict=True):
        c += p[k] * row
    return c


def control_with_lists(c, delta_c, ids, p):
    return [value + sum(p[k] * row[j] for row, k in zip(delta_c, ids + [], strict=True)) for j, value in enumerate(c)]


def control_with_tensors(c, delta_c, ids, p):
    return c.add((p[ids].unsqueeze(1) * delta_c).sum(dim=0))


CONTROL = [control_with_numpy, control_in_a_loop, control_with_lists, control_with_tensors]

CONTROL_WRONG = {
    "You divide by the number drawn": lambda c, D, ids, p: c + D.mean(axis=0),
    "need not sum to 1 here": lambda c, D, ids, p: c + p[ids] @ D / p[ids].sum(),
    "Equal weights, 1/N": lambda c, D, ids, p: c + D.sum(axis=0) / len(p),
    "No weights at all": lambda c, D, ids, p: c + D.sum(axis=0),
    "weights of the first clients": lambda c, D, ids, p: c + p[: len(ids)] @ D,
    "in place of c": lambda c, D, ids, p: p[ids] @ D,
    "You scale up by N/m": lambda c, D, ids, p: c + len(p) / len(ids) * p[ids] @ D,
    "You subtract": lambda c, D, ids, p: c - p[ids] @ D,
    "did not change": lambda c, D, ids, p: c + 0,
}

CONTROL_ALSO_WRONG = {
    "transposed": lambda c, D, ids, p: (D.T * p[ids]).T,
    "half": lambda c, D, ids, p: c + p[ids] @ D / 2,
    "a moving average": lambda c, D, ids, p: 0.9 * c + p[ids] @ D,
    "only the first row": lambda c, D, ids, p: c + p[ids[0]] * D[0],
    "scaled by the weight that was drawn": lambda c, D, ids, p: c * p[ids].sum() + p[ids] @ D,
    "rounded": lambda c, D, ids, p: np.round(c + p[ids] @ D, 3),
}

# 6.3 ema_control -------------------------------------------------------------------------------------------


def ema_loop(g, beta, t):
    c = 0.0
    for _ in range(t):
        corrected = g - c
        c = c + beta * (corrected - c)
    return c


def ema_series(g, beta, t):
    return beta * g * np.sum((1 - 2 * beta) ** np.arange(t))


EMA = [
    ema_loop,
    ema_series,
    lambda g, beta, t: g / 2 * (1 - (1 - 2 * beta) ** t),
    lambda g, beta, t: torch.tensor(g, dtype=torch.float64) * (1 - (1 - 2 * beta) ** t) / 2,
    lambda g, beta, t: np.float32(g / 2 * (1 - (1 - 2 * beta) ** t)),
]

EMA_WRONG = {
    "the recursion on the raw gradient": lambda g, beta, t: g * (1 - (1 - beta) ** t),
    "That is the limit. With": lambda g, beta, t: g / 2,
    "The limit is right": lambda g, beta, t: g / 2 * (1 - (1 - beta) ** t),
    "The pace is right": lambda g, beta, t: g * (1 - (1 - 2 * beta) ** t),
    "You are one step ahead": lambda g, beta, t: g / 2 * (1 - (1 - 2 * beta) ** (t + 1)),
    "still has to go": lambda g, beta, t: g / 2 * (1 - 2 * beta) ** t,
    "the corrected gradient g − c": lambda g, beta, t: g - ema_loop(g, beta, t),
    "the first step times t": lambda g, beta, t: t * beta * g,
}

EMA_ALSO_WRONG = {
    "an exponential": lambda g, beta, t: g / 2 * (1 - np.exp(-2 * beta * t)),
    "zero": lambda g, beta, t: 0.0,
    "one step behind": lambda g, beta, t: ema_loop(g, beta, max(t - 1, 0)),
    "sign": lambda g, beta, t: -ema_loop(g, beta, t),
}

# 6.4 equivalent_mu -----------------------------------------------------------------------------------------

MU = [
    lambda beta, lr: beta / lr,
    lambda beta, lr: np.divide(beta, lr),
    lambda beta, lr: torch.tensor([beta], dtype=torch.float64) / lr,
    lambda beta, lr: np.float32(beta / lr),
]

MU_WRONG = {
    "What converts one into the other?": lambda beta, lr: beta,
    "Double β": lambda beta, lr: lr / beta,
    "go the other way": lambda beta, lr: beta * lr,
    "with β → 0 there is none": lambda beta, lr: 1 / lr,
    "toward a trailing average": lambda beta, lr: beta / (lr * (1 - beta)),
    "Twice too strong": lambda beta, lr: 2 * beta / lr,
}

MU_ALSO_WRONG = {
    "half": lambda beta, lr: beta / lr / 2,
    "a square": lambda beta, lr: beta**2 / lr,
    "negative": lambda beta, lr: -beta / lr,
    "nearly": lambda beta, lr: beta / lr * (1 + 1e-7),
    "beta over lr squared": lambda beta, lr: beta / lr**2,
}

# 6.5 bytes_per_round ---------------------------------------------------------------------------------------


def bytes_from_lists(method, m, d):
    down = {"fedavg": [d], "scaffold": [d, d], "rebuilt": [d, d]}[method]
    up = {"fedavg": [d], "scaffold": [d, d], "rebuilt": [d, 1]}[method]
    return m * 4 * (sum(down) + sum(up))


def bytes_by_formula(method, m, d):
    if method == "rebuilt":
        return 12 * m * d + 4 * m
    return (8 if method == "fedavg" else 16) * m * d


def bytes_from_arrays(method, m, d):
    vector = np.zeros(d, dtype=np.float32)
    sent = [vector] * (2 if method == "fedavg" else 4 if method == "scaffold" else 3)
    return m * (sum(array.nbytes for array in sent) + 4 * (method == "rebuilt"))


BYTES = [bytes_from_lists, bytes_by_formula, bytes_from_arrays]


def only(method, wrong):
    return lambda name, m, d: wrong(m, d) if name == method else bytes_by_formula(name, m, d)


BYTES_WRONG = {
    "The client needs c before it can start": lambda method, m, d: 8 * m * d,
    "who pays for the broadcast?": lambda method, m, d: {"fedavg": 4 * m * d, "scaffold": 8 * m * d}.get(method, 4 * m * d + 4 * m),
    "You count numbers": lambda method, m, d: bytes_by_formula(method, m, d) // 4,
    "numbers of eight bytes": lambda method, m, d: 2 * bytes_by_formula(method, m, d),
    "it is sent m times": lambda method, m, d: 4 * (d + m * d) if method == "fedavg" else bytes_by_formula(method, m, d),
    "there are m of them": lambda method, m, d: bytes_by_formula(method, m, d) // m,
    "count what goes down": only("rebuilt", lambda m, d: 8 * m * d + 4 * m),
    "From what would the server rebuild": only("rebuilt", lambda m, d: 12 * m * d),
    "its own step count": only("rebuilt", lambda m, d: 12 * m * d + 4),
    "you have only three": only("scaffold", lambda m, d: 12 * m * d),
    "Nothing is rebuilt for free": only("rebuilt", lambda m, d: 16 * m * d),
}

BYTES_ALSO_WRONG = {
    "the same everywhere": lambda method, m, d: 16 * m * d,
    "bits": lambda method, m, d: 8 * bytes_by_formula(method, m, d),
    "no uplink": lambda method, m, d: (4 if method == "fedavg" else 8) * m * d,
    "kilobytes": lambda method, m, d: bytes_by_formula(method, m, d) / 1000,
}

# All five --------------------------------------------------------------------------------------------------

EXERCISES = {
    "scaffold_client": (CLIENT, CLIENT_WRONG, CLIENT_ALSO_WRONG),
    "server_control": (CONTROL, CONTROL_WRONG, CONTROL_ALSO_WRONG),
    "ema_control": (EMA, EMA_WRONG, EMA_ALSO_WRONG),
    "equivalent_mu": (MU, MU_WRONG, MU_ALSO_WRONG),
    "bytes_per_round": (BYTES, BYTES_WRONG, BYTES_ALSO_WRONG),
}


TestEveryExercise = every_exercise(check, EXERCISES, inputs=["scaffold_client", "server_control"])


def test_the_hint_about_equal_weights_in_c_is_true():
    """With p = (0.8, 0.2) a uniform c ends at 0.8 whatever the deltas weigh; one client a round in turn."""
    a, b, p = check.A, check.B, np.array([0.8, 0.2])
    x, c, own = 3.0, 0.0, np.zeros(2)
    for _ in range(400):
        y = np.full(2, x)
        for _ in range(check.H):
            y -= check.LR * (a * (y - b) - own + c)
        new = own - c - (y - x) / (check.H * check.LR)
        x, c, own = x + p @ (y - x), c + (new - own).mean(), new
    assert x == pytest.approx(0.8, abs=1e-6)


def test_the_bytes_are_those_of_the_ledger():
    from two_clients import local, task_from

    from fedlib.control import Scaffold
    from fedlib.experiment import run
    from fedlib.federation import Federation

    for method, correction in {"fedavg": None, "scaffold": Scaffold(), "rebuilt": Scaffold(rebuild=True)}.items():
        task = task_from(np.ones((2, 3)), np.ones((2, 3)), [1, 1])
        line = run(task, Federation(local(correction)), 1).rounds[0]
        assert bytes_by_formula(method, 2, 3) == line["bytes_down"] + line["bytes_up"]
