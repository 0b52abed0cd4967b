"""Checks for chapter 8, compression."""

import numpy as np
import torch

from fedlib.check.core import exercise
from fedlib.comm import pack
from fedlib.rng import stream


@exercise("Exercise 8.1, stochastic_quantize")
def stochastic_quantize(answer):
    """``stochastic_quantize(x [d], bits, rng) -> [d]``, each number rounded at random to the 2^bits-point grid min…max."""
    answer.undefined = "A constant layer became NaN: its range is zero, and you divide by it."
    rng = stream(0, "check", 801)

    def quantize(x, bits, seed=0):
        return answer.array(answer(x, bits, np.random.default_rng(seed)), x.shape)

    for value in (0.0, -2.5, 0.3):
        x = np.full(5, value)
        got = quantize(x, 4)
        answer.expect(answer.close(got, x), "constant vectors are exact",
                      f"All entries are {value}, so there is nothing to round, but you return {got[0]:.4g}.")  # fmt: skip

    n = 2_000
    for bits, low, high in ((3, -1.0, 4 / 3), (2, 0.5, 3.5), (8, -4.0, -1.0)):
        levels = 2**bits - 1
        step = (high - low) / levels
        parts = np.array([0.12, 0.3, 0.5, 0.77])
        values = np.r_[low, low + step * (rng.integers(0, levels, 4) + parts), high]
        x = np.tile(values, n)
        got = quantize(x, bits)
        eps = 1e-7 + 10 * answer.tolerance  # in steps
        scaled, wanted = (got - low) / step, (x - low) / step
        eps = max(eps, answer.tolerance * max(abs(low), abs(high)) / step)
        ends = np.isclose(x, low) | np.isclose(x, high)
        if np.array_equal(got, np.round(got)) and got.min() >= 0 and np.abs(got - wanted).max() < 1 + eps:
            answer.expect(False, "what returns are numbers, not codes",
                          "You return the codes 0, 1, 2, …; the server needs the numbers that they stand for.")  # fmt: skip
        wrong_end = np.abs(scaled - wanted)[ends].max()
        moved = (f"With {bits} bits the least number is {low:.3g} and the greatest {high:.3g}; both are grid points, and you "
                 f"move them by up to {wrong_end:.3g} steps.")  # fmt: skip
        usual = {
            2**bits: "The grid has 2^bits points, so 2^bits − 1 steps lie between least and greatest: your greatest number "
            "is out of reach.",
            2 ** (bits - 1) - 1: "That grid is symmetric around zero. Here it goes from the least number to the greatest.",
        }
        symmetric = np.abs(x).max() / (2 ** (bits - 1) - 1)
        off = np.abs(scaled - np.round(scaled))
        hint = "Your numbers lie between the grid points: nothing was rounded." if np.abs(got - x).max() < eps * step else (
            f"With {bits} bits there are {2**bits} equally spaced values; some of yours lie {off.max():.2g} steps off them."
        )
        if wrong_end > eps and np.abs(got / symmetric - np.round(got / symmetric)).max() < 1e-6:
            hint = usual[2 ** (bits - 1) - 1]
        elif wrong_end > eps and got.max() > got.min() and _on_grid(got, low, (high - low) / 2**bits):
            hint = usual[2**bits]
        elif off[ends].max() > eps:
            hint = moved
        answer.expect(off.max() <= eps, "every number lies on the grid", hint)
        far = np.abs(scaled - wanted).max()
        answer.expect(far < 1 + eps, "every number goes to one of its two neighbors",
                      f"You moved a number by {far:.2g} steps. It may go to the grid point below it or to the one above, no "
                      "farther.")  # fmt: skip
        answer.expect(
            np.array_equal(got, quantize(x, bits)) or answer.close(got, quantize(x, bits)),
            "the same generator gives the same result",
            "Two calls with equal generators differ: draw from the `rng` that you are given, not from one of your own.",
        )
        draws = scaled.reshape(n, -1)
        inner = draws[:, 1:-1]
        above = np.floor(wanted.reshape(n, -1)[0, 1:-1] + 1e-9) + 0.5
        share = (inner > above).mean(axis=0)  # of the draws that went up, before a wrong rule is seen at the ends
        sure = np.all((share == 0) | (share == 1))
        if sure:
            hint = {
                (0, 0, 0, 0): "You always round down. Everything arrives too small, however often it is sent.",
                (1, 1, 1, 1): "You always round up. Everything arrives too large, however often it is sent.",
            }.get(tuple(share.astype(int)))
            fixed = not any(_differ(quantize(x, bits, seed), got, eps * step) for seed in (1, 2, 3))
            if not fixed:
                hint = None
            elif hint is None and tuple(share[[0, 1, 3]]) == (0, 0, 1):
                hint = ("That is nearest rounding. A value 0.3 of a step above the grid is sent wrong the same way every "
                        "time; more draws do not help.")  # fmt: skip
            hint = hint or ("Entries that are equal all go the same way: you drew one random number for the whole vector. Each entry "
                            "needs its own.")  # fmt: skip
            answer.expect(False, "equal entries are rounded independently", hint)
        answer.expect(_differ(quantize(x, bits, 1), got, eps * step), "another generator gives another result",
                      "Two generators with different seeds give the same result: you draw from a generator of your own that starts "
                      "anew each time, so every message gets the same errors. Draw from `rng`.")  # fmt: skip
        deviation = 5 * np.sqrt(parts * (1 - parts) / n)
        usual = {
            "You round up with the probability of rounding down: a value 0.3 of a step above the grid should go up in 30 % "
            "of the draws.": 1 - parts,
            "You toss a fair coin between the two neighbors. Closer ones must come more often.": np.full(4, 0.5),
        }
        hint = next(
            (text for text, wrong in usual.items() if np.all(np.abs(share - wrong) <= deviation + 0.02)),
            f"Values {', '.join(f'{part:.2f}' for part in parts)} of a step above the grid went up in "
            f"{', '.join(f'{s:.2f}' for s in share)} of {n} draws.",
        )
        answer.expect(np.all(np.abs(share - parts) <= deviation), "right in the mean over 2,000 draws", hint)
        answer.expect(wrong_end <= eps, "the least and the greatest number are exact", moved)
        answer.expect(draws.var(axis=0).max() <= 0.25 * (1 + 1e-3) + eps, "the variance is at most step²/4",
                      "Your draws vary more than a coin between two neighbors can.")  # fmt: skip

    low, high = 3e-8, 1e-7
    x = np.r_[low, rng.uniform(low, high, 50), high]
    scaled, wanted = ((values - low) / (high - low) * 7 for values in (quantize(x, 3), x))
    eps = 1e-5 + 20 * answer.tolerance
    answer.expect(
        np.abs(scaled - np.round(scaled)).max() <= eps and np.abs(scaled - wanted).max() < 1 + eps,
        "small numbers are rounded like large ones",
        f"From {low} to {high} the range is small but not zero, and its grid has 8 points as well. Treat only equal least and "
        "greatest entries apart, and add nothing to the step.",
    )


def _differ(a, b, limit):
    return np.abs(a - b).max() > limit


def _on_grid(x, low, step):
    scaled = (x - low) / step
    return np.abs(scaled - np.round(scaled)).max() < 1e-5


@exercise("Exercise 8.2, top_k")
def top_k(answer):
    """``top_k(x [d], k) -> [d]``, x with all but its max(k, 1) largest magnitudes set to zero."""
    rng = stream(0, "check", 802)
    cases = [(np.array([2.0, -5.0, 1.0, 3.0]), 1), (np.array([3.0, -7.0, 2.0, 5.0, -4.0]), 3)]
    cases += [(rng.normal(size=d), k) for d, k in ((20, 6), (31, 1), (8, 8), (12, 0))]
    ties = np.array([2.0, -2.0, 2.0, 1.0, -2.0, 2.0])
    for x, k in [*cases, (ties, 2), (ties, 3), (np.full(7, -1.5), 4)]:
        got = answer.array(answer(x, k), x.shape, wanted="Keep the length: dropped entries become zero.")
        order = np.argsort(-np.abs(x), kind="stable")
        kept = max(k, 1)
        tied = len(np.unique(np.abs(x))) < len(x)

        def only(places, x=x):
            return np.where(np.isin(np.arange(len(x)), places), x, 0)

        nonzero = np.count_nonzero(np.abs(got) > 1e-12)
        threshold = np.abs(x) >= np.abs(x)[order[kept - 1]]
        if not tied:
            usual = {
                "Top-1 of (2, −5, 1, 3) is −5: it is the magnitude that counts, not the sign.": only(np.argsort(-x)[:kept]),
                "Your kept entries have lost their signs.": np.abs(only(order[:kept])),
                "You keep the smallest entries and drop the largest.": only(np.argsort(np.abs(x))[:kept]),
                "You keep the first entries, whatever they are.": only(np.arange(kept)),
                "You return what was dropped.": x - only(order[:kept]),
                "Your kept entries have moved to the front: each must stay in its own place.": np.r_[
                    x[order[:kept]], np.zeros(len(x) - kept)
                ],
                "One entry too many: k of them are kept.": only(order[: kept + 1]),
                "One entry is missing: is the k-th compared with > where ≥ is needed?": only(order[: kept - 1]),
                "Your kept entries are ones. Send the values.": np.sign(np.abs(only(order[:kept]))),
            }
            if k == 0:
                usual = {"k = 0 would send nothing at all, round after round: keep one entry.": 0 * x,
                         "k = 0, and everything is kept.": x, **usual}  # fmt: skip
            if kept == len(x):
                usual = {"k = d keeps everything, and you drop something.": got if not answer.close(got, x) else x + 1}
            wanted = only(order[:kept])
            hint = next((text for text, wrong in usual.items() if answer.close(got, wrong)),
                        f"x = {np.round(x[:6], 2)}…, k = {k}: you keep {nonzero} entries with squares summing to "
                        f"{np.sum(got**2):.4g}; the {kept} largest have {np.sum(wanted**2):.4g}.")  # fmt: skip
            answer.expect(answer.close(got, wanted), "keeps the max(k, 1) largest magnitudes with their signs", hint)
        else:
            hint = (
                "With ties you sent more than you paid for: several entries are as large as the k-th. Choose among them."
                if nonzero > kept and answer.close(got, np.where(threshold, x, 0)) else
                "With ties you keep fewer than k: entries as large as the k-th may be kept as well."
                if nonzero < kept else f"k = {k}, and you keep {nonzero} entries: {got}."
            )  # fmt: skip
            answer.expect(nonzero == kept, "exactly k entries, also with ties", hint)
            answer.expect(
                answer.close(got, np.where(np.abs(got) > 0, x, 0)) and np.all(threshold[np.abs(got) > 0]),
                "which of several equal entries are kept does not matter",
                f"x = {x}, k = {k}: you return {got}, where something is kept that is not among the largest.",
            )
        answer.expect(
            np.sum((x - got) ** 2) <= (1 - kept / len(x)) * np.sum(x**2) + answer.tolerance * max(1, np.sum(x**2)),
            "‖x − C(x)‖² ≤ (1 − k/d) ‖x‖²",
            "What you drop is larger than the mean of what could be dropped.",
        )


@exercise("Exercise 8.3, error_feedback")
def error_feedback(answer):
    """``error_feedback(stages, residual [d], update [d]) -> (message [d], residual [d])`` with a list of functions."""
    rng = stream(0, "check", 803)
    answer.in_place[1] = (
        "You changed the old residual in place. If the server rejects this message, the client must still have it: return "
        "a new one."
    )
    random = _Coin(stream(0, "check", 804))
    chains = ([_sparse(4), _halved], [_sparse(4), _coarse(3)], [_coarse(1)], [_sparse(1)], [_halved, _sparse(5), _coarse(2)])

    def send(stages, residual, update):
        message, left = answer.pair(
            answer(stages, residual, update),
            "returns a pair (message, residual)",
            "Return two vectors, what arrives at the server and what is left for the next round.",
        )
        return answer.array(message, update.shape, "the message"), answer.array(left, update.shape, "the residual")

    for stages in chains:
        for residual in (rng.normal(size=9), np.zeros(9)):
            update = rng.normal(size=9)
            message, left = send(stages, residual, update)
            wanted = residual + update
            sent, bare = _run(stages, wanted), _run(stages, update)
            usual = {
                "Your message is what was wanted, uncompressed: run it through the stages.": wanted,
                "The residual is not used: add it to the update before anything is compressed.": bare,
                "You add the residual to the compressed message. Then the message is no longer compressed.": bare + residual,
                "The residual is subtracted. It is what the server has not got yet, so it is owed.": _run(
                    stages, update - residual
                ),
                "Only the first stage is run.": stages[0](wanted),
                "Only the last stage is run. Each takes what the one before it returned.": stages[-1](wanted),
                "You return the residual in place of the message: the message comes first in the pair.": wanted - sent,
                "The stages run in the wrong order: the first in the list comes first.": _run(stages[::-1], wanted),
                "You compress the residual only; the update belongs to the message too.": _run(stages, residual),
            }
            hint = _hint(answer, usual, message, f"update = {np.round(update, 3)}, residual = {np.round(residual, 3)}: run their "
                                                 "sum through the stages.")  # fmt: skip
            answer.expect(answer.close(message, sent), "the message is the compressed sum of update and residual", hint)
            usual = {
                "The residual is that of the first stage, zero where something was sent. What later stages lose is never put back: "
                f"after 100 rounds {_vanished(stages):.1g} of the updates has disappeared.": wanted - stages[0](wanted),
                "New residual = update − sent: what was left over from last round is gone.": update - sent,
                "Your residual has the wrong sign: it is what was wanted minus what arrives.": sent - wanted,
                "The old residual is returned although part of it was sent.": residual,
                "You return zero: what was left out is forgotten, and that is what feedback is against.": 0 * wanted,
                "You return what was wanted, but part of it has been sent.": wanted,
                "You add the residual once more to what is left: next round it counts twice.": wanted - sent + residual,
                "Your residual is what is missing from the message without the residual.": update - bare,
                "You return the message a second time.": sent,
            }
            hint = _hint(answer, usual, left, "The residual is what was wanted, update plus old residual, minus the message.")
            answer.expect(answer.close(left, wanted - sent), "the residual is what was wanted minus what arrives", hint)

    for stages in (*chains, [_sparse(2), random]):
        total, arrived, residuals = np.zeros((2, 9)), np.zeros((2, 9)), np.zeros((2, 9))
        for _ in range(100):
            k = rng.integers(2)  # one client a round, each with its own residual
            update = rng.normal(size=9)
            message, residuals[k] = send(stages, residuals[k], update)
            total[k] += update
            arrived[k] += message
        gap = np.abs(arrived + residuals - total).max()
        limit = 1e-12 if answer.tolerance < 2e-6 else 100 * answer.tolerance
        hint = f"After 100 rounds {gap:.1g} has disappeared or was sent twice."
        if stages[-1] is random:
            hint = (f"With a stage that rounds at random {gap:.1g} has disappeared. You seem to run the stages twice: the "
                    "residual must belong to the message that was sent, not to another draw.")  # fmt: skip
        answer.expect(gap <= limit, "for each client, messages + last residual = updates", hint)


def _alike(value, result):
    """Return ``result`` in the form of ``value``: an array, a tensor or a list."""
    if hasattr(value, "detach"):
        return value.new_tensor(result.tolist())
    return result.tolist() if isinstance(value, list) else result


def _plain(value):
    return np.asarray(value.detach().numpy() if hasattr(value, "detach") else value, dtype=float)


def _sparse(k):
    def stage(x):
        v = _plain(x)
        keep = np.argsort(-np.abs(v), kind="stable")[:k]
        return _alike(x, np.where(np.isin(np.arange(len(v)), keep), v, 0))

    return stage


def _coarse(bits):
    def stage(x):
        v = _plain(x)
        step = (v.max() - v.min()) / (2**bits - 1) or 1.0
        return _alike(x, v.min() + step * np.round((v - v.min()) / step))

    return stage


def _halved(x):
    return _alike(x, _plain(x) / 2)


class _Coin:
    """A stage that rounds each entry to a whole number, up or down at random."""

    def __init__(self, rng):
        self.rng = rng

    def __deepcopy__(self, memo):
        return self  # its draws go on, whoever holds it

    def __call__(self, x):
        v = _plain(x)
        return _alike(x, np.floor(v + self.rng.random(len(v))))


def _run(stages, x):
    for stage in stages:
        x = stage(x)
    return x


def _vanished(stages):
    """Return what 100 rounds lose if only the first stage's residual is kept."""
    rng, residual, total, arrived = stream(0, "check", 805), np.zeros(9), np.zeros(9), np.zeros(9)
    for _ in range(100):
        update = rng.normal(size=9)
        wanted = residual + update
        arrived, total, residual = arrived + _run(stages, wanted), total + update, wanted - stages[0](wanted)
    return np.abs(arrived + residual - total).max()


def _hint(answer, usual, got, otherwise):
    return next((text for text, wrong in usual.items() if answer.close(got, wrong)), otherwise)


@exercise("Exercise 8.4, message_bytes")
def message_bytes(answer):
    """``message_bytes(d, k, value_bits, index_bits, header) -> (bytes, share of both directions)``."""
    cases = [(*_packed(d, k), header) for d, k, header in ((997, 10, True), (4_999, 333, True))]
    cases += [((d, k, value_bits, index_bits), None, header) for d, k, value_bits, index_bits, header in (
        (1_070_794, 10_708, 8, 32, 0), (991, 7, 4, 20, 21), (991, 5, 4, 19, 21), (991, 3, 1, 17, 21),
        (70_000, 700, 2, 17, 30), (101, 101, 8, 8, 5))]  # fmt: skip
    for (d, k, value_bits, index_bits), length, header in cases:
        if length is not None:
            header = length - 5 * k
        size, share = answer.pair(
            answer(d, k, value_bits, index_bits, header),
            "returns a pair (bytes, share)",
            "Return two numbers: the bytes of the message, and the share of uncompressed traffic in both directions.",
        )
        size, share = answer.array(size, (), "the bytes"), answer.array(share, (), "the share")
        values, indices = -(-k * value_bits // 8), -(-k * index_bits // 8)
        wanted = header + values + indices
        usual = {
            "You have the values only. How does the server know where they go?": header + values,
            "You have places, but no values.": header + indices,
            "You count bits: a byte has eight.": header + k * (value_bits + index_bits),
            "The header is missing: names, kinds and the range are sent as well.": values + indices if header else -1,
            "You pay for a place for each of the d parameters. Only the k kept ones have one.": (
                header + values + -(-d * index_bits // 8) if d > k else -1
            ),
            "You pay for d values, but only k are sent.": header + -(-d * value_bits // 8) + indices if d > k else -1,
            "Part of a byte cannot be sent: a block of codes ends with a whole one, so round up, values and places each.": (
                header + k * value_bits // 8 + k * index_bits // 8
            ),
            "A byte that is filled only in part is sent as well: round up, not to the nearest.": (
                header + round(k * value_bits / 8) + round(k * index_bits / 8)
            ),
            "Each block is rounded up to whole bytes, not each number: small codes share a byte.": (
                header + k * -(-value_bits // 8) + k * -(-index_bits // 8)
            ),
            "Values and places are two blocks; each ends with a whole byte.": header + -(-k * (value_bits + index_bits) // 8),
            "That is the message without compression.": header + 4 * d,
            "The values are no float32 any more: they have `value_bits` each.": header + 4 * k + indices,
        }
        usual = {text: wrong for text, wrong in usual.items() if wrong != wanted}
        what = "equals the length of what the library packs" if length else "header, values and places in whole bytes"
        hint = next((text for text, wrong in usual.items() if abs(size - wrong) < 0.26),
                    f"d = {d}, k = {k}, {value_bits} bits a value, {index_bits} a place, header {header}: the message has "
                    f"{wanted} bytes, not {size:.10g}.")  # fmt: skip
        answer.expect(abs(size - wanted) < 1e-6 * wanted, what, hint)
        both = (wanted + 4 * d) / (8 * d)
        usual = {
            "That is the share of the uplink. The broadcast did not shrink.": wanted / (4 * d),
            "Only the message is counted, over both directions. The model still goes down uncompressed.": wanted / (8 * d),
            "You compare with one direction: uncompressed, 4·d bytes go up *and* 4·d come down.": (wanted + 4 * d) / (4 * d),
            "The broadcast is not compressed, only the message is.": 2 * wanted / (8 * d),
            "That is what was saved. Asked is what is left.": 1 - both,
            "That is a percentage. Return the share, a number between 0 and 1.": 100 * both,
            "That is how many times less. Return the share that is left.": 1 / both,
            "The model has d float32 numbers, of four bytes each.": (wanted + d) / (2 * d),
        }
        usual = {text: wrong for text, wrong in usual.items() if abs(wrong - both) > 1e-9}
        hint = next((text for text, wrong in usual.items() if abs(share - wrong) < 2e-6 * max(1, abs(wrong))),
                    f"{wanted} bytes go up and {4 * d} come down, of {8 * d} without compression: that is {both:.5f}, "
                    f"not {share:.5f}.")  # fmt: skip
        answer.expect(abs(share - both) < 2e-6, "the share counts the broadcast as well", hint)


def _packed(d, k):
    """Return the settings of a real message, and its length."""
    arrays = {
        "delta.values": torch.zeros(k, dtype=torch.uint8),
        "delta.index": torch.arange(k, dtype=torch.int32),
        "delta.range": torch.zeros(1, 2),
    }
    return (d, k, 8, 32), len(pack(arrays))
