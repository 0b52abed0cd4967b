"""Checks for chapter 6, control variates."""

import numpy as np

from fedlib.check.core import exercise
from fedlib.rng import stream

A, B, LR, H = np.array([1.0, 4.0]), np.array([0.0, 1.0]), 0.1, 5  # the laboratory


@exercise("Exercise 6.1, scaffold_client")
def scaffold_client(answer):
    """``scaffold_client(gradients, w [d], c [d], c_k [d], lr, epochs) -> (delta [d], c_k [d])``, option II."""
    rng = stream(0, "check", 601)

    def train(gradients, w, c, c_k, lr, epochs):
        delta, new = answer.pair(
            answer(gradients, w, c, c_k, lr, epochs),
            "returns a pair (delta, new c_k)",
            "Return two vectors, how far the client came and its new control variate: `return w_k - w, c_k`.",
        )
        return answer.array(delta, w.shape, "the delta"), answer.array(new, w.shape, "the new c_k")

    # At the optimum of two parabolas, with the control variates that belong there, nothing may move.
    a, b, zero = rng.uniform(1, 3, 4), rng.normal(size=4), np.zeros(4)
    w = rng.normal(size=4)
    slope = a * (w - b)
    delta, new = train([lambda x: a * (x - b)], w, zero, slope, 0.1, 1)
    usual = {
        "At the optimum your correction doubles the gradient instead of canceling it: which of c and c_k is "
        "subtracted?": -0.1 * 2 * slope,
        "The client steps with its plain gradient: c and c_k do not enter its steps.": -0.1 * slope,
        "Your delta points at the right place, but it is where the client ended. How far did it come?": w,
    }
    hint = _hint(answer, usual, delta, "The gradient equals c_k and c is zero, so g − c_k + c is zero: stay where you are.")
    answer.expect(answer.close(delta, 0), "at the optimum the corrected gradient is zero", hint)
    usual = {
        "You return Δc_k, the change. The client wants its new c_k.": 0 * slope,
        "Your new c_k has the wrong sign, or Δ has: g − c_k + c was *subtracted* from w.": -slope,
    }
    hint = _hint(answer, usual, new, "Nothing moved, and c was zero: c_k − c − Δ/(H lr) is the old c_k.")
    answer.expect(answer.close(new, slope), "at the optimum c_k stays what it is", hint)

    # One full-batch step from zero: c_k becomes the gradient.
    delta, new = train([lambda x: a * (x - b)], w, zero, zero, 0.1, 1)
    usual = {
        "Your delta points uphill: w_k = w − lr · gradient.": 0.1 * slope,
        "You moved by the gradient itself: where is the learning rate?": -slope,
        "Your client does not move at all.": zero,
    }
    hint = _hint(answer, usual, delta, "c and c_k are zero and there is one batch: the delta is −lr times its gradient.")
    answer.expect(answer.close(delta, -0.1 * slope), "with zero control variates it is plain SGD", hint)
    usual = {
        "Your c_k is lr times the gradient. Δ/H is a step; a gradient is a step divided by lr.": 0.1 * slope,
        "Your c_k has the wrong sign: Δ points downhill, the gradient uphill.": -slope,
        "c_k is still zero: when is it renewed?": zero,
    }
    hint = _hint(answer, usual, new, "One step from zero: the mean gradient along the way is the gradient at w.")
    answer.expect(answer.close(new, slope), "after one full-batch step from zero c_k is ∇f_k(w)", hint)

    # Several batches and epochs, every vector in use.
    for num_batches, epochs, lr in ((2, 3, 0.2), (3, 1, 0.1), (1, 4, 0.15)):
        targets, c, own = rng.normal(size=(num_batches, 4)), rng.normal(size=4), rng.normal(size=4)
        gradients = [lambda x, target=target: a * (x - target) for target in targets]

        def path(correction, gradients=gradients, epochs=epochs, lr=lr):
            x, seen = w, []
            for _ in range(epochs):
                for gradient in gradients:
                    seen.append(gradient(x))
                    x = x - lr * (seen[-1] + correction)
            return x - w, np.array(seen)

        steps = num_batches * epochs
        wanted, seen = path(c - own)
        delta, new = train(gradients, w, c, own, lr, epochs)
        at_start = np.mean([gradient(w) for gradient in gradients], axis=0)
        usual = {
            "You subtract c_k, but c is missing: without it every client stands still at its own place.": path(-own)[0],
            "c is in your steps with the wrong sign.": path(-c - own)[0],
            "You add c, but do not subtract c_k.": path(c)[0],
            f"There are {epochs} epochs, and your client seems to make one.": path(c - own, epochs=1)[0],
            "Your client takes one step an epoch, with the mean gradient. It should step after each batch.": path(
                c - own, [lambda x: np.mean([g(x) for g in gradients], axis=0)]  # noqa: B023
            )[0],
        }
        hint = _hint(answer, usual, delta,
                     "Walk through `gradients` in order, `epochs` times, and step with g − c_k + c each time, the "
                     "old c_k throughout.")  # fmt: skip
        answer.expect(answer.close(delta, wanted), "steps with g − c_k + c, batch after batch", hint)
        usual = {
            f"With {epochs} epochs your c_k comes out {epochs} times too large: H counts *all* local steps.": (
                own - c - wanted / (num_batches * lr)
            ),
            "H is the number of steps, batches times epochs. You count the epochs only.": (
                own - c - wanted / (epochs * lr)
            ),
            "You divide by lr, but not by H: that is a sum of gradients, not their mean.": own - c - wanted / lr,
            "c is missing in the renewal. Each step held c as well, so it has to be taken out again.": (
                own - wanted / (steps * lr)
            ),
            "c has the wrong sign in the renewal.": own + c - wanted / (steps * lr),
            "Your new c_k is the corrected mean step. Taking c out and putting the old c_k back gives the gradient.": (
                -wanted / (steps * lr)
            ),
            "That is option I, the gradient at the model that was received. Wanted is option II, from the delta.": at_start,
            "You return Δc_k, the change; the client wants its new c_k.": -c - wanted / (steps * lr),
            "That is the gradient of the last step. c_k is the mean over all of them.": seen[-1],
        }
        hint = _hint(answer, usual, new,
                     "c_k − c − Δ/(H lr) is the mean of the gradients that the client saw; yours is not.")  # fmt: skip
        answer.expect(answer.close(new, seen.mean(axis=0)), "c_k becomes the mean gradient along the steps", hint)

    x, c, own = np.array([3.0]), np.zeros(1), np.zeros((2, 1))
    for _ in range(150):
        results = [
            train([lambda x, k=k: A[k] * (x - B[k])], x, c, own[k], LR, H) for k in range(2)
        ]
        own = np.array([new for _, new in results])
        x, c = x + np.mean([delta for delta, _ in results], axis=0), own.mean(axis=0)
    answer.expect(abs(x[0] - 0.8) < 1e-3, "the laboratory ends at the optimum 0.8",
                  f"In the laboratory your clients end at {x[0]:.4f}. The optimum is 0.8.")  # fmt: skip


@exercise("Exercise 6.2, server_control")
def server_control(answer):
    """``server_control(c [d], delta_c [m, d], ids [m], p [N]) -> [d]``, the server's c after a round with m of N."""
    rng = stream(0, "check", 602)
    p = np.array([0.4, 0.25, 0.15, 0.12, 0.08])
    own, c = np.zeros((5, 3)), np.zeros(3)
    for ids in ((1, 3), (4, 0, 2), (4,), (0, 1, 2, 3, 4), (3, 2)):
        drawn = np.array(ids)
        change = rng.normal(size=(len(ids), 3))
        before, p_drawn = c, p[drawn]
        own[drawn] += change
        c = answer.array(answer(before, change, drawn, p), (3,))
        usual = {
            "You divide by the number drawn. With equal weights the laboratory still ends at 0.8, so the end point will "
            "not warn you: compare c with the mean of *all* c_k.": before + change.mean(axis=0),
            "The weights of those drawn need not sum to 1 here: the others keep their c_k, with their weights.": (
                before + p_drawn @ change / p_drawn.sum()
            ),
            "Equal weights, 1/N. With p = (0.8, 0.2) the laboratory would end at 0.8, the optimum of the *unweighted* "
            "problem. The weighted one is at 0.5.": before + change.sum(axis=0) / 5,
            "No weights at all: c is a mean of the c_k, not their sum.": before + change.sum(axis=0),
            "Row j of delta_c belongs to client ids[j], in the order of ids; here they are not sorted.": (
                before + p[np.sort(drawn)] @ change
            ),
            "Those are the weights of the first clients, not of those who were drawn.": before + p[: len(ids)] @ change,
            "You put the new mean in place of c. Those who were not drawn are still part of it.": p_drawn @ change,
            "You scale up by N/m, as an unbiased estimate of a sum would. But c is not estimated, it is kept.": (
                before + 5 / len(ids) * p_drawn @ change
            ),
            "You subtract the change.": before - p_drawn @ change,
            "c did not change at all.": before,
        }
        wanted = p @ own
        hint = _hint(answer, usual, c, f"Clients {list(ids)} were drawn. c is not Σ p_k c_k: largest gap "
                                       f"{np.abs(c - wanted).max():.3g}.")  # fmt: skip
        answer.expect(answer.close(c, wanted), "c = Σ p_k c_k over all clients after every partial round", hint)

    # The laboratory with p = (0.8, 0.2), one client a round in turn.
    x, c, own, p = 3.0, np.zeros(1), np.zeros(2), np.array([0.8, 0.2])
    for k in rng.integers(2, size=600):
        y = x
        for _ in range(H):
            y -= LR * (A[k] * (y - B[k]) - own[k] + c[0])
        change = -c - (y - x) / (H * LR)
        x, own[k] = y, own[k] + change[0]
        c = answer.array(answer(c, change[None], np.array([k]), p), (1,))
    answer.expect(abs(x - 0.5) < 1e-3, "with p = (0.8, 0.2) the laboratory ends at the weighted optimum 0.5",
                  f"With p = (0.8, 0.2) and one client a round the laboratory ends at {x:.4f} instead of 0.5.")  # fmt: skip


@exercise("Exercise 6.3, ema_control")
def ema_control(answer):
    """``ema_control(g, beta, t) -> number``: c_t of g̃ = g − c, c ← c + β (g̃ − c) from c_0 = 0, g constant."""
    for g, beta, t in ((3.0, 0.1, 4), (-2.0, 0.3, 7), (5.0, 0.05, 1), (1.5, 0.2, 0), (4.0, 0.001, 657), (2.0, 0.7, 3)):
        c = 0.0
        for _ in range(t):
            c = c + beta * (g - c - c)
        got = answer.array(answer(g, beta, t), ())
        usual = {
            "That is the recursion on the raw gradient. Print the gradient after it has been corrected: that is what is "
            "averaged.": g * (1 - (1 - beta) ** t),
            "That is the limit. With β = 0.001, how far is it after 657 steps?": g / 2,
            "The limit is right, the pace is not: c is subtracted twice in each step, once in g̃ and once more.": (
                g / 2 * (1 - (1 - beta) ** t)
            ),
            "The pace is right, the limit is not. For which c does c = c + β(g − 2c) hold?": g * (1 - (1 - 2 * beta) ** t),
            "You are one step ahead: after t = 0 steps c is still zero.": g / 2 * (1 - (1 - 2 * beta) ** (t + 1)),
            "That is how far c still has to go.": g / 2 * (1 - 2 * beta) ** t,
            "That is the corrected gradient g − c, not c.": g - c,
            "1 − 2β is negative here: its powers change sign, and c overshoots its limit. Leave the sign alone.": (
                g / 2 * (1 - abs(1 - 2 * beta) ** t) if beta > 0.5 else np.nan
            ),
            "c goes toward g/2, not away from it: the sign of c is that of g.": -c,
            "That is the first step times t. c slows down as it grows.": t * beta * g,
        }
        hint = _hint(answer, usual, got, f"g = {g}, β = {beta}: a loop of {t} steps ends at {c:.6g}, you at {got:.6g}.")
        answer.expect(abs(got - c) <= answer.tolerance * max(1e-3, abs(c)) + 1e-12, "equals the loop", hint)


@exercise("Exercise 6.4, equivalent_mu")
def equivalent_mu(answer):
    """``equivalent_mu(beta, lr) -> mu`` with which FedProx is the moving average of the raw gradient."""
    rng = stream(0, "check", 604)
    for beta, lr in ((0.05, 0.2), (0.3, 0.1), (0.02, 0.01)):
        mu = float(answer.array(answer(beta, lr), ()))
        usual = {
            "c is a gradient, w_k − w a difference of parameters. What converts one into the other?": beta,
            "Double β: the pull must grow. Yours shrinks.": lr / beta,
            "lr turns a gradient into a step. To turn a difference of parameters into a gradient, go the other way.": (
                beta * lr
            ),
            "The pull depends on β: with β → 0 there is none.": 1 / lr,
            "That belongs to the *corrected* gradient, whose pull is toward a trailing average, not toward w.": (
                beta / (lr * (1 - beta))
            ),
            "Twice too strong: the 2β belongs to the other reading.": 2 * beta / lr,
            "Half of it: the limit g/2 belongs to the other reading.": beta / lr / 2,
            "A pull toward w needs a positive μ.": -beta / lr,
        }
        x, y, w, c, gap = *[rng.normal(size=3)] * 3, np.zeros(3), 0.0
        for _ in range(400):
            noise = rng.normal(size=3)
            g_x, g_y = x * np.array([0.5, 1, 2]) + noise, y * np.array([0.5, 1, 2]) + noise
            x, c = x - lr * (g_x - c), c + beta * (g_x - c)
            y = y - lr * (g_y + mu * (y - w))
            gap = max(gap, float(np.abs(x - y).max()))
        hint = _hint(answer, usual, mu, f"β = {beta}, lr = {lr}: with your μ the two paths part by {gap:.3g}. Write down the "
                                        "first two steps of both.")  # fmt: skip
        limit = 1e-12 if answer.tolerance < 2e-6 else 1e-3
        answer.expect(gap <= limit, "both paths agree over 400 random stochastic gradients", hint)


@exercise("Exercise 6.5, bytes_per_round")
def bytes_per_round(answer):
    """``bytes_per_round(method, m, d) -> int``, both directions; "fedavg", "scaffold" or "rebuilt", float32."""
    for m, d in ((3, 1000), (7, 212), (1, 10)):
        for method, down, up in (("fedavg", [d], [d]), ("scaffold", [d, d], [d, d]), ("rebuilt", [d, d], [d, 1])):
            got = answer.array(answer(method, m, d), ())
            wanted = 4 * m * (sum(down) + sum(up))
            usual = {
                "That is FedAvg's traffic. The client needs c before it can start.": 8 * m * d if method != "fedavg" else -1,
                "Only the uplink: who pays for the broadcast?": 4 * m * sum(up),
                "Only the broadcast: how does the server hear of the result?": 4 * m * sum(down),
                "You count numbers. A float32 is four bytes.": wanted / 4,
                "Those would be numbers of eight bytes. Models are float32.": 2 * wanted,
                "Every client gets its own copy of the broadcast: it is sent m times.": 4 * (sum(down) + m * sum(up)),
                "One client's traffic: there are m of them.": wanted / m if m > 1 else -1,
                "The client needs c as well: count what goes down.": 8 * m * d + 4 * m if method == "rebuilt" else -1,
                "From what would the server rebuild Δc_k? One number a client is missing.": (
                    12 * m * d if method == "rebuilt" else -1
                ),
                "Each client sends its own step count.": 12 * m * d + 4 if method == "rebuilt" else -1,
                "Two vectors each way: you have only three.": 12 * m * d if method == "scaffold" else -1,
                "Nothing is rebuilt for free here: without Δc_k in the message only the delta and one number go up.": (
                    16 * m * d if method == "rebuilt" else -1
                ),
            }
            hint = _hint(answer, usual, got, f'"{method}" with m = {m}, d = {d}: {len(down)} vector(s) go down and '
                                             f"{'one goes' if len(up) == 1 or method == 'rebuilt' else 'two go'} up, for each "
                                             f"client. You count {got:g} bytes.")  # fmt: skip
            answer.expect(answer.close(got, wanted), "equals the ledger of the round, in both directions", hint)


def _hint(answer, usual, got, otherwise):
    return next((text for text, wrong in usual.items() if answer.close(got, wrong)), otherwise)
