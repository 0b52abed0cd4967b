"""The checks of chapter 8 accept every right answer and tell wrong ones apart."""

import numpy as np
import pytest
import torch
from checking import (
    assert_accepted,
    assert_all_rejected_differently,
    assert_rejects_changed_inputs,
    assert_survives_everything,
)

from fedlib.check import chapter08 as check
from fedlib.comm import pack
from fedlib.compress import Quantize, TopK, restore, shrink

# 8.1 stochastic_quantize -----------------------------------------------------------------------------------


def quantize_with_floor(x, bits, rng):
    low, high = x.min(), x.max()
    if low == high:
        return x.copy()
    step = (high - low) / (2**bits - 1)
    return low + step * np.floor((x - low) / step + rng.random(len(x))).clip(max=2**bits - 1)


def quantize_with_a_coin(x, bits, rng):
    low, step = x.min(), (x.max() - x.min()) / (2**bits - 1) or 1.0
    below = np.floor(np.round((x - low) / step, 9))
    up = rng.uniform(size=x.shape) < (x - low) / step - below
    return np.minimum(low + step * (below + up), x.max())


def quantize_by_noise_and_nearest(x, bits, rng):
    span = x.max() - x.min()
    if span == 0:
        return x
    scaled = (x - x.min()) / span * (2**bits - 1)
    codes = np.round(scaled + rng.uniform(-0.5, 0.5, len(x))).clip(0, 2**bits - 1)
    return x.min() + codes * span / (2**bits - 1)


def quantize_a_list(x, bits, rng):
    low, high = min(x + []), max(x)
    step = (high - low) / (2**bits - 1)
    return [v if step == 0 else low + step * min(int((v - low) / step + rng.random()), 2**bits - 1) for v in x]


def quantize_with_tensors(x, bits, rng):
    low, high = x.aminmax()
    levels = 2**bits - 1
    scaled = ((x - low) / (high - low)).nan_to_num() * levels
    codes = (scaled + torch.from_numpy(rng.random(len(x)))).floor().clamp(max=levels)
    return torch.lerp(low, high, codes / levels)


def quantize_in_single_precision(x, bits, rng):
    return np.float32(quantize_with_floor(x, bits, rng))


def quantize_with_the_library(x, bits, rng):
    stages = [Quantize(bits, "stochastic")] if bits != 3 else None
    if stages is None:  # the library packs 1, 2, 4 or 8 bits
        return quantize_with_floor(x, bits, rng)
    x = torch.from_numpy(x)
    return restore(stages, shrink(stages, x, rng), len(x)).numpy()


QUANTIZE = [
    quantize_with_floor, quantize_with_a_coin, quantize_by_noise_and_nearest, quantize_a_list, quantize_with_tensors,
    quantize_in_single_precision, quantize_with_the_library,
]  # fmt: skip


def quantizer(codes=None, levels=lambda bits: 2**bits - 1, constant=True, ends=None, result=None):
    """Return an answer in which one thing is done differently."""

    def answer(x, bits, rng):
        low, high = ends(x) if ends else (x.min(), x.max())
        if constant and x.min() == x.max():
            return x.copy()
        step = (high - low) / levels(bits)
        scaled = (x - low) / step
        drawn = codes(scaled, rng) if codes else np.floor(np.round(scaled, 9) + rng.random(len(x)))
        drawn = np.clip(drawn, 0, levels(bits))
        return result(x, drawn, low, step) if result else low + step * drawn

    return answer


def by_parts(x, bits, goes_up):
    """Return numbers that go up by a rule about how far above a grid point they are, also where they are on one."""
    low, step = x.min(), (x.max() - x.min()) / (2**bits - 1)
    below = np.floor(np.round((x - low) / step, 9))
    return low + step * (below + goes_up((x - low) / step - below))


def fraction(scaled):
    return scaled - np.floor(np.round(scaled, 9))


QUANTIZE_WRONG = {
    "A constant layer became NaN": quantizer(constant=False),
    "so there is nothing to round": quantizer(constant=False, result=lambda x, codes, low, step: np.nan_to_num(low + step * codes)),
    "That is nearest rounding": quantizer(lambda scaled, rng: np.round(scaled)),
    "You always round down": quantizer(lambda scaled, rng: np.floor(np.round(scaled, 9))),
    "You always round up": quantizer(lambda scaled, rng: np.ceil(np.round(scaled, 9))),
    "you drew one random number": quantizer(lambda scaled, rng: np.floor(np.round(scaled, 9) + rng.random())),
    "with the probability of rounding down": lambda x, bits, rng: x if x.min() == x.max() else by_parts(
        x, bits, lambda part: rng.random(len(x)) > part
    ),
    "You toss a fair coin": lambda x, bits, rng: x if x.min() == x.max() else by_parts(
        x, bits, lambda part: rng.random(len(x)) < 0.5
    ),
    "and you move them by up to 1 steps": lambda x, bits, rng: x if x.min() == x.max() else by_parts(
        x, bits, lambda part: (rng.random(len(x)) < part) | (x == x.max())
    ),
    "that starts anew each time": lambda x, bits, rng: quantize_with_floor(x, bits, np.random.default_rng(42)),
    "the range is small but not zero": lambda x, bits, rng: x.copy() if x.max() - x.min() < 1e-3 else (
        quantize_with_floor(x, bits, rng)
    ),
    "your greatest number is out of reach": quantizer(
        lambda scaled, rng: np.minimum(np.floor(np.round(scaled, 9) + rng.random(len(scaled))), scaled.max() - 1),
        levels=lambda bits: 2**bits,
    ),
    "That grid is symmetric": lambda x, bits, rng: x if x.min() == x.max() else (
        np.floor(x / (s := np.abs(x).max() / (2 ** (bits - 1) - 1)) + rng.random(len(x))) * s
    ),
    "You return the codes": quantizer(result=lambda x, codes, low, step: codes),
    "nothing was rounded": lambda x, bits, rng: x,
    "some of yours lie": quantizer(result=lambda x, codes, low, step: np.where(
        (x == x.min()) | (x == x.max()), x, np.clip(low + step * (codes + 0.25), x.min(), x.max()))),
    "You moved a number by": quantizer(lambda scaled, rng: np.where(
        (scaled < 1e-8) | (scaled > scaled.max() - 1e-8), scaled, np.floor(scaled + 2 * rng.random(len(scaled))))),
    "draw from the `rng` that you are given": lambda x, bits, rng: quantize_with_floor(x, bits, np.random.default_rng()),
}  # fmt: skip

def quantize_with_the_global_generator(x, bits, rng):
    np.random.seed(0)
    return quantize_with_floor(x, bits, np.random.mtrand._rand)


QUANTIZE_ALSO_WRONG = {
    "a global generator": quantize_with_the_global_generator,
    "a little added to the step": quantizer(levels=lambda bits: 2**bits - 1, result=lambda x, codes, low, step: (
        low + (step + 1e-12) * codes
    )),
    "a little added to the range": lambda x, bits, rng: x if x.min() == x.max() else x.min() + (
        np.floor((x - x.min()) / (x.max() - x.min() + 1e-12) * (2**bits - 1) + rng.random(len(x)))
        * (x.max() - x.min() + 1e-12) / (2**bits - 1)
    ),
    "one seed for ever": lambda x, bits, rng: quantize_with_floor(x, bits, np.random.default_rng(0))
    if x.min() == x.max() else quantizer(lambda scaled, rng: np.round(scaled))(x, bits, rng),
    "the minimum everywhere": lambda x, bits, rng: np.full_like(x, x.min()),
    "a little too often up": quantizer(
        lambda scaled, rng: np.floor(np.round(scaled, 9)) + (rng.random(len(scaled)) < np.sqrt(fraction(scaled).clip(0)))
    ),
    "normal noise": quantizer(lambda scaled, rng: np.round(scaled + rng.normal(size=len(scaled)))),
    "the ends move": quantizer(ends=lambda x: (x.min() - 0.1, x.max() + 0.1)),
}

# 8.2 top_k -------------------------------------------------------------------------------------------------


def top_k_with_argsort(x, k):
    out = np.zeros_like(x)
    keep = np.argsort(np.abs(x))[len(x) - max(k, 1) :]
    out[keep] = x[keep]
    return out


def top_k_with_partition(x, k):
    drop = np.argpartition(-np.abs(x), max(k, 1) - 1)[max(k, 1) :]
    out = x.copy()
    out[drop] = 0
    return out


def top_k_of_a_list(x, k):
    keep = sorted(range(len(x + [])), key=lambda i: -abs(x[i]))[: max(k, 1)]
    return [v if i in keep else 0 for i, v in enumerate(x)]


def top_k_with_tensors(x, k):
    index = x.abs().topk(max(k, 1)).indices
    return torch.zeros_like(x).scatter(0, index, x[index])


def top_k_in_single_precision(x, k):
    return np.float32(top_k_with_argsort(x, k))


def top_k_of_the_library(x, k):
    stages = [TopK(max(k, 1) / len(x))]
    return restore(stages, shrink(stages, torch.from_numpy(x), None), len(x))


TOP_K = [
    top_k_with_argsort, top_k_with_partition, top_k_of_a_list, top_k_with_tensors, top_k_in_single_precision,
    top_k_of_the_library,
]  # fmt: skip


def keep(order, x, count):
    out = np.zeros_like(x)
    out[order[:count]] = x[order[:count]]
    return out


def by_magnitude(x):
    return np.argsort(-np.abs(x), kind="stable")


TOP_K_WRONG = {
    "Top-1 of (2, −5, 1, 3) is −5": lambda x, k: keep(np.argsort(-x), x, max(k, 1)),
    "lost their signs": lambda x, k: np.abs(top_k_with_argsort(x, k)),
    "You keep the smallest": lambda x, k: keep(np.argsort(np.abs(x)), x, max(k, 1)),
    "You keep the first entries": lambda x, k: keep(np.arange(len(x)), x, max(k, 1)),
    "You return what was dropped": lambda x, k: x - top_k_with_argsort(x, k),
    "have moved to the front": lambda x, k: np.r_[x[by_magnitude(x)[: max(k, 1)]], np.zeros(len(x) - max(k, 1))],
    "One entry too many": lambda x, k: keep(by_magnitude(x), x, max(k, 1) + 1),
    "One entry is missing": lambda x, k: np.where(np.abs(x) > np.abs(x)[by_magnitude(x)[max(k, 1) - 1]], x, 0),
    "Your kept entries are ones": lambda x, k: (top_k_with_argsort(x, k) != 0) * 1.0,
    "k = 0 would send nothing": lambda x, k: keep(by_magnitude(x), x, k),
    "k = 0, and everything is kept": lambda x, k: x if k == 0 else keep(by_magnitude(x), x, k),
    "k = d keeps everything": lambda x, k: top_k_with_argsort(x, k) if k < len(x) else 0 * x,
    "With ties you sent more": lambda x, k: np.where(np.abs(x) >= np.sort(np.abs(x))[len(x) - max(k, 1)], x, 0),
    "With ties you keep fewer": lambda x, k: top_k_with_argsort(x, k) if len(set(np.abs(x))) == len(x) else (
        np.where(np.abs(x) > np.sort(np.abs(x))[len(x) - k], x, 0)
    ),
    "something is kept that is not among": lambda x, k: top_k_with_argsort(x, k) if len(set(np.abs(x))) == len(x) else (
        keep(np.argsort(np.abs(x), kind="stable"), x, k)
    ),
    "Keep the length": lambda x, k: x[by_magnitude(x)[: max(k, 1)]],
}  # fmt: skip

TOP_K_ALSO_WRONG = {
    "random": lambda x, k: keep(np.random.default_rng(0).permutation(len(x)), x, max(k, 1)),
    "scaled up": lambda x, k: top_k_with_argsort(x, k) * len(x) / max(k, 1),
    "all": lambda x, k: x,
    "a fixed threshold": lambda x, k: np.where(np.abs(x) > 1, x, 0),
    "signs": lambda x, k: np.sign(top_k_with_argsort(x, k)),
}

# 8.3 error_feedback ----------------------------------------------------------------------------------------


def through(stages, x):
    for stage in stages:
        x = stage(x)
    return x


def feedback_in_a_loop(stages, residual, update):
    wanted = residual + update
    message = wanted
    for stage in stages:
        message = stage(message)
    return message, wanted - message


def feedback_with_lists(stages, residual, update):
    wanted = [r + u for r, u in zip(residual + [], update, strict=True)]
    message = through(stages, wanted)
    return message, [w - s for w, s in zip(wanted, message + [], strict=True)]


def feedback_with_tensors(stages, residual, update):
    wanted = update.add(residual)
    message = through(stages, wanted)
    return message, wanted.sub(message)


def feedback_in_single_precision(stages, residual, update):
    message, left = feedback_in_a_loop(stages, np.float32(residual), np.float32(update))
    return np.float32(message), np.float32(left)


def feedback_with_recursion(stages, residual, update):
    def run(rest, x):
        return run(rest[1:], rest[0](x)) if rest else x

    wanted = np.add(residual, update)
    message = run(stages, wanted)
    return [message, wanted - message]


FEEDBACK = [
    feedback_in_a_loop, feedback_with_lists, feedback_with_tensors, feedback_in_single_precision, feedback_with_recursion,
]  # fmt: skip


def feedback(message=None, left=None):
    """Return an answer in which the message or the residual is made differently."""

    def answer(stages, residual, update):
        wanted = residual + update
        sent = message(stages, residual, update) if message else through(stages, wanted)
        return sent, left(stages, residual, update, sent) if left else wanted - sent

    return answer


FEEDBACK_WRONG = {
    "Your message is what was wanted, uncompressed": feedback(lambda stages, r, u: r + u),
    "The residual is not used": feedback(lambda stages, r, u: through(stages, u)),
    "You add the residual to the compressed message": feedback(lambda stages, r, u: through(stages, u) + r),
    "The residual is subtracted": feedback(lambda stages, r, u: through(stages, u - r)),
    "Only the first stage is run": feedback(lambda stages, r, u: stages[0](u + r)),
    "Only the last stage is run": feedback(lambda stages, r, u: stages[-1](u + r)),
    "the message comes first": lambda stages, residual, update: feedback_in_a_loop(stages, residual, update)[::-1],
    "in the wrong order": feedback(lambda stages, r, u: through(stages[::-1], u + r)),
    "You compress the residual only": feedback(lambda stages, r, u: through(stages, r)),
    "of the updates has disappeared": feedback(left=lambda stages, r, u, sent: r + u - stages[0](r + u)),
    "what was left over from last round is gone": feedback(left=lambda stages, r, u, sent: u - sent),
    "Your residual has the wrong sign": feedback(left=lambda stages, r, u, sent: sent - r - u),
    "The old residual is returned": feedback(left=lambda stages, r, u, sent: r + 0 if r.any() else u - sent),
    "You return zero": feedback(left=lambda stages, r, u, sent: 0 * u),
    "part of it has been sent": feedback(left=lambda stages, r, u, sent: r + u),
    "You add the residual once more": feedback(left=lambda stages, r, u, sent: r + u - sent + r),
    "what is missing from the message without": feedback(left=lambda stages, r, u, sent: u - through(stages, u)),
    "a second time": feedback(left=lambda stages, r, u, sent: sent),
    "to run the stages twice": feedback(left=lambda stages, r, u, sent: r + u - through(stages, r + u)),
    "Return two vectors": lambda stages, residual, update: through(stages, residual + update),
}

FEEDBACK_ALSO_WRONG = {
    "half of the residual": feedback(lambda stages, r, u: through(stages, u + r / 2)),
    "the bucket counts as empty": feedback(left=lambda stages, r, u, sent: np.where(sent != 0, 0, r + u)),
    "a residual that fades": feedback(left=lambda stages, r, u, sent: 0.999 * (r + u - sent)),
    "a residual with a limit": feedback(left=lambda stages, r, u, sent: np.clip(r + u - sent, -1, 1)),
}

# 8.4 message_bytes -----------------------------------------------------------------------------------------


def bytes_with_ceil(d, k, value_bits, index_bits, header):
    size = header + int(np.ceil(k * value_bits / 8)) + int(np.ceil(k * index_bits / 8))
    return size, (size + 4 * d) / (8 * d)


def bytes_with_integers(d, k, value_bits, index_bits, header):
    size = header + (k * value_bits + 7) // 8 + -(-k * index_bits // 8)
    return [size, 0.5 + size / d / 8]


def bytes_as_arrays(d, k, value_bits, index_bits, header):
    blocks = [np.packbits(np.zeros(k * bits, dtype=np.uint8)) for bits in (value_bits, index_bits)]
    size = header + sum(block.nbytes for block in blocks)
    return np.array([size, (size + np.zeros(d, dtype=np.float32).nbytes) / (8 * d)])


def bytes_as_tensors(d, k, value_bits, index_bits, header):
    size, share = bytes_with_ceil(d, k, value_bits, index_bits, header)
    return torch.tensor(size), torch.tensor(share)


BYTES = [bytes_with_ceil, bytes_with_integers, bytes_as_arrays, bytes_as_tensors]


def counted(size=None, share=None):
    """Return an answer in which the bytes or the share are counted differently."""

    def answer(d, k, value_bits, index_bits, header):
        right, part = bytes_with_ceil(d, k, value_bits, index_bits, header)
        return (
            size(d, k, value_bits, index_bits, header) if size else right,
            share(right, d) if share else part,
        )

    return answer


def up(x):
    return int(np.ceil(x))


BYTES_WRONG = {
    "How does the server know where they go?": counted(lambda d, k, v, i, h: h + up(k * v / 8)),
    "You have places, but no values": counted(lambda d, k, v, i, h: h + up(k * i / 8)),
    "You count bits": counted(lambda d, k, v, i, h: h + k * (v + i)),
    "The header is missing": counted(lambda d, k, v, i, h: up(k * v / 8) + up(k * i / 8)),
    "for each of the d parameters": counted(lambda d, k, v, i, h: h + up(k * v / 8) + up(d * i / 8)),
    "You pay for d values": counted(lambda d, k, v, i, h: h + up(d * v / 8) + up(k * i / 8)),
    "round up, not to the nearest": counted(lambda d, k, v, i, h: h + round(k * v / 8) + round(k * i / 8)),
    "Part of a byte cannot be sent": counted(lambda d, k, v, i, h: h + k * v // 8 + k * i // 8),
    "small codes share a byte": counted(lambda d, k, v, i, h: h + k * up(v / 8) + k * up(i / 8)),
    "Values and places are two blocks": counted(lambda d, k, v, i, h: h + up(k * (v + i) / 8)),
    "the message without compression": counted(lambda d, k, v, i, h: h + 4 * d),
    "The values are no float32": counted(lambda d, k, v, i, h: h + 4 * k + up(k * i / 8)),
    "The broadcast did not shrink": counted(share=lambda size, d: size / (4 * d)),
    "Only the message is counted": counted(share=lambda size, d: size / (8 * d)),
    "You compare with one direction": counted(share=lambda size, d: (size + 4 * d) / (4 * d)),
    "That is what was saved": counted(share=lambda size, d: 1 - (size + 4 * d) / (8 * d)),
    "That is a percentage": counted(share=lambda size, d: 100 * (size + 4 * d) / (8 * d)),
    "That is how many times less": counted(share=lambda size, d: 8 * d / (size + 4 * d)),
    "of four bytes each": counted(share=lambda size, d: (size + d) / (2 * d)),
    "Return two numbers": lambda d, k, v, i, h: bytes_with_ceil(d, k, v, i, h)[0],
}

BYTES_ALSO_WRONG = {
    "half a byte more": counted(lambda d, k, v, i, h: h + int(k * v / 8 + 0.5) + int(k * i / 8 + 0.5)),
    "half a byte more in integers": counted(lambda d, k, v, i, h: h + (k * v + 4) // 8 + (k * i + 4) // 8),
    "values to the nearest byte": counted(lambda d, k, v, i, h: h + round(k * v / 8) + up(k * i / 8)),
    "the broadcast shrinks too": counted(share=lambda size, d: size / (4 * d)),
    "always 1.25 %": counted(lambda d, k, v, i, h: 0.0125 * 4 * d),
    "a header for each block": counted(lambda d, k, v, i, h: 2 * h + up(k * v / 8) + up(k * i / 8)),
    "exchanged": lambda *facts: bytes_with_ceil(*facts)[::-1],
    "half": counted(share=lambda size, d: 0.5),
}

# All four --------------------------------------------------------------------------------------------------

EXERCISES = {
    "stochastic_quantize": (QUANTIZE, QUANTIZE_WRONG, QUANTIZE_ALSO_WRONG),
    "top_k": (TOP_K, TOP_K_WRONG, TOP_K_ALSO_WRONG),
    "error_feedback": (FEEDBACK, FEEDBACK_WRONG, FEEDBACK_ALSO_WRONG),
    "message_bytes": (BYTES, BYTES_WRONG, BYTES_ALSO_WRONG),
}


@pytest.mark.parametrize(("name", "i"), [(name, i) for name in EXERCISES for i in range(len(EXERCISES[name][0]))])
def test_a_right_answer_is_accepted_however_it_is_written(name, i):
    assert_accepted(getattr(check, name), EXERCISES[name][0][i])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", EXERCISES)
def test_wrong_answers_get_a_hint_each(name):
    assert_all_rejected_differently(getattr(check, name), EXERCISES[name][1])


@pytest.mark.parametrize(("name", "what"), [(name, w) for name in EXERCISES for w in EXERCISES[name][2]])
def test_other_wrong_answers_are_rejected(name, what):
    result = getattr(check, name)(EXERCISES[name][2][what])
    assert result.status == "failed" and result.hint, result


@pytest.mark.parametrize("name", EXERCISES)
def test_nothing_makes_a_check_raise(name):
    assert_survives_everything(getattr(check, name), EXERCISES[name][0][0])


@pytest.mark.parametrize("name", ["stochastic_quantize", "top_k", "error_feedback"])
def test_changed_inputs_are_noticed(name):
    assert_rejects_changed_inputs(getattr(check, name), EXERCISES[name][0][0])


def test_an_answer_that_moves_the_old_residual_hears_of_rejected_messages():
    def in_place(stages, residual, update):
        residual += update
        message = through(stages, residual)
        residual -= message
        return message, residual

    result = check.error_feedback(in_place)
    assert result.status == "failed" and "rejects this message" in result.hint


def test_an_emptied_bucket_hears_of_what_the_later_stages_lose():
    result = check.error_feedback(FEEDBACK_ALSO_WRONG["the bucket counts as empty"])
    assert "What later stages lose is never put back" in result.hint


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "phrase"), [(name, phrase) for name in EXERCISES for phrase in EXERCISES[name][1]])
def test_no_hint_calls_numbers_rounded_that_are_not(name, phrase):
    assert "look rounded" not in getattr(check, name)(EXERCISES[name][1][phrase]).hint


def test_what_vanishes_is_what_the_hint_says():
    assert 1e-3 < check._vanished([check._sparse(4), check._coarse(3)]) < 10
    assert check._vanished([check._sparse(2)]) < 1e-12


def test_the_million_parameters_of_the_text():
    size, share = bytes_with_ceil(1_070_794, 10_708, 8, 32, 0)
    assert size / (4 * 1_070_794) == pytest.approx(0.0125, abs=1e-6) and share == pytest.approx(0.50625, abs=1e-6)


def test_the_packed_message_of_the_check_is_one_of_the_librarys():
    stages = [TopK(0.01), Quantize(8)]
    arrays = shrink(stages, torch.randn(1_000), None)
    (d, k, value_bits, index_bits), length = check._packed(1_000, 10)
    assert length == len(pack({f"delta.{name}": array for name, array in arrays.items()}))
    assert (d, k, value_bits, index_bits) == (1_000, 10, 8, 32)
