"""Quantizing, top-k, and error feedback around both."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from two_clients import Scaffold, laboratory, linear_loss, local, task_from

from fedlib import models, partition
from fedlib.comm import pack
from fedlib.compress import Quantize, TopK, restore, shrink
from fedlib.context import Context
from fedlib.control import Scaffold as LibraryScaffold
from fedlib.correction import Correction
from fedlib.data import Dataset
from fedlib.executor import Workers
from fedlib.experiment import run
from fedlib.federation import Federation, begin, play_round, validate
from fedlib.flat import Layout, Segment
from fedlib.local import LocalSGD
from fedlib.selection import Uniform
from fedlib.task import Task
from fedlib.upload import Compress, Dense, ErrorFeedback, num_bytes


def rng(seed=0):
    return np.random.default_rng(seed)


def vector(d, seed=0, dtype=torch.float32):
    return torch.from_numpy(rng(seed).normal(size=d)).to(dtype)


def through(stages, x, seed=0):
    """What arrives of ``x`` at the other end of the chain."""
    return restore(stages, shrink(stages, x, rng(seed)), len(x))


# Quantizing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_nearest_is_the_nearest_point_of_the_grid(bits):
    x = vector(501, dtype=torch.float64)
    grid = np.linspace(float(x.min()), float(x.max()), 2**bits)
    nearest = grid[np.abs(x.numpy()[:, None] - grid).argmin(axis=1)]
    assert np.abs(through([Quantize(bits)], x).numpy() - nearest).max() < 1e-14


@given(st.integers(1, 60), st.floats(-1e30, 1e30), st.floats(0, 1e30), st.integers(0, 99))
def test_the_error_is_at_most_half_a_step_and_the_ends_are_exact(d, center, width, seed):
    x = torch.from_numpy(center + width * rng(seed).uniform(-1, 1, d)).float()
    back = through([Quantize(8)], x)
    span = float(x.double().max() - x.double().min())
    rounding = float(x.abs().max()) * 1e-6
    assert float((back.double() - x.double()).abs().max()) <= span / 510 + rounding
    assert back.max() == x.max() and back.min() == x.min() and back.dtype == x.dtype


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_constant_vectors_and_extreme_ranges_are_exact(bits, rounding):
    stages = [Quantize(bits, rounding)]
    for x in ([0.0], [3.7] * 5, [-1e-40] * 3, [-3e38, 3e38], [0.0, 1e-45], [-1e-45, 1e-45]):
        assert through(stages, torch.tensor(x)).tolist() == torch.tensor(x).tolist()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_stochastic_rounding_is_unbiased_with_a_bounded_variance(bits):
    values, n = torch.tensor([0.0, 0.13, 0.5, 0.731, 1.0], dtype=torch.float64), 4000
    back = through([Quantize(bits, "stochastic")], values.repeat(n)).view(n, -1)
    step = 1 / (2**bits - 1)
    up = values.numpy() / step % 1
    up[[0, -1]] = 0
    deviation = step * np.sqrt(up * (1 - up))  # of a coin between the two neighbors
    assert np.all(np.abs(back.mean(dim=0).numpy() - values.numpy()) <= 5 * deviation / np.sqrt(n) + 1e-12)
    assert np.allclose(back.std(dim=0), deviation, rtol=0.1, atol=1e-12)
    assert float(back.var(dim=0).max()) <= 1.1 * step**2 / 4
    assert float((back - values).abs().max()) < step


def test_entries_are_rounded_independently_and_by_the_given_generator():
    x = torch.tensor([0.0, 1.0] + [0.5] * 50)
    stage = [Quantize(1, "stochastic")]
    once = through(stage, x, seed=1)
    assert 10 < once[2:].sum() < 40
    assert torch.equal(once, through(stage, x, seed=1)) and not torch.equal(once, through(stage, x, seed=2))


def test_a_draw_close_to_one_does_not_leave_the_codes():
    class High:
        def random(self, count):
            return np.full(count, np.nextafter(1.0, 0.0))

    arrays = Quantize(8, "stochastic").shrink(torch.tensor([0.0, 1.0]), High())
    assert arrays[0].tolist() == [0, 255]


@pytest.mark.parametrize("bits", [2, 8])
def test_chunks_are_quantized_one_by_one(bits):
    x = vector(23) * torch.linspace(0.01, 10, 23) + 50  # far from zero, so that filling up with zeros would show
    back = through([Quantize(bits, chunk=5)], x)
    alone = torch.cat([through([Quantize(bits)], part) for part in x.split(5)])
    assert torch.equal(back, alone)


def test_codes_share_bytes_from_the_lowest_bit_on():
    x = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    codes, _ = Quantize(1).shrink(x, rng())
    assert codes.tolist() == np.packbits(x.numpy().astype(int), bitorder="little").tolist()
    codes, _ = Quantize(4).shrink(torch.arange(16.0), rng())
    assert codes.tolist() == [16 * (i + 1) + i for i in range(0, 16, 2)]
    codes, _ = Quantize(2).shrink(torch.tensor([0.0, 1, 2, 3, 3]), rng())
    assert codes.tolist() == [0b11100100, 0b11]


@pytest.mark.parametrize(("bits", "length"), [(8, 11), (4, 6), (2, 3), (1, 2)])
def test_eleven_codes_take_so_many_bytes(bits, length):
    codes, side = Quantize(bits).shrink(vector(11), rng())
    assert codes.dtype == torch.uint8 and len(codes) == length == Quantize(bits).length(11)
    assert side["range"].shape == (1, 2)


def test_numbers_without_a_range_are_refused():
    for broken in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected finite numbers"):
            Quantize(8).shrink(torch.tensor([1.0, broken]), rng())
    wide = torch.tensor([[-1.7e308, 1.7e308]], dtype=torch.float64)  # finite, but not their difference
    with pytest.raises(ValueError, match="expected numbers whose range"):
        Quantize(8).shrink(wide[0], rng())
    with pytest.raises(ValueError, match="finite and in order"):
        Quantize(8).restore(torch.tensor([0, 3, 255], dtype=torch.uint8), {"range": wide}, 3)


def test_a_chunk_longer_than_the_vector_is_one_range():
    arrays = shrink([Quantize(8, chunk=2**60)], vector(5), rng())
    assert all(torch.equal(array, arrays[name]) for name, array in shrink([Quantize(8)], vector(5), rng()).items())
    assert torch.equal(through([Quantize(8, chunk=2**60)], vector(5)), through([Quantize(8)], vector(5)))


@pytest.mark.parametrize("number", [8.0, True, "8", None])
def test_bits_are_whole_numbers(number):
    with pytest.raises(TypeError, match="bits must be an integer, got "):
        Quantize(number)


def test_chunks_are_whole_numbers_of_whichever_kind():
    assert Quantize(np.int64(4), chunk=np.int64(16)) == Quantize(4, chunk=16)
    assert type(Quantize(4, chunk=np.int64(16)).chunk) is int
    for number in (16.0, True, "16"):
        with pytest.raises(TypeError, match="chunk must be an integer, got "):
            Quantize(4, chunk=number)


@pytest.mark.parametrize("stages", [[TopK(0.1)], [Quantize(8)], [TopK(0.1), Quantize(8)]], ids=repr)
def test_only_vectors_of_numbers_with_a_point_are_compressed(stages):
    with pytest.raises(TypeError, match=r"got torch.int64: convert with vector.float\(\)"):
        shrink(stages, torch.arange(20), rng())
    for empty in (torch.zeros(0), torch.zeros(2, 3)):
        with pytest.raises(ValueError, match="a vector of at least one entry"):
            shrink(stages, empty, rng())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quantize(3), "bits must be one of .*got 3"),
        (lambda: Quantize(8, "up"), "rounding must be one of"),
        (lambda: Quantize(8, chunk=0), "chunk must be at least 1"),
        (lambda: TopK(0), "fraction must lie in .*got 0"),
        (lambda: TopK(1.5), "fraction"),
        (lambda: Compress(), "at most one TopK"),
        (lambda: Compress(0.01), "at most one TopK"),
        (lambda: Compress(TopK(0.1), TopK(0.1)), "at most one TopK"),
        (lambda: ErrorFeedback(Quantize(8), TopK(0.1)), "Quantize must come last"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Top-k -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 80), st.floats(0.001, 1), st.integers(0, 99))
def test_the_largest_magnitudes_are_kept_and_the_rest_is_bounded(d, fraction, seed):
    x = vector(d, seed, torch.float64)
    k = max(1, round(fraction * d))
    back = through([TopK(fraction)], x)
    kept = np.argsort(-np.abs(x.numpy()))[:k]
    expected = np.zeros(d)
    expected[kept] = x.numpy()[kept]
    assert np.array_equal(back.numpy(), expected)
    assert float((x - back).square().sum()) <= (1 - k / d) * float(x.square().sum()) + 1e-12


def test_the_largest_of_one_and_minus_five_is_minus_five():
    assert through([TopK(0.5)], torch.tensor([1.0, -5.0])).tolist() == [0, -5]


def test_ties_do_not_cost_more_and_no_share_is_too_small():
    values, side = TopK(0.25).shrink(torch.ones(8), rng())
    assert len(values) == len(side["index"]) == 2 and side["index"].dtype == torch.int32
    assert len(TopK(1e-9).shrink(vector(10), rng())[0]) == 1


def test_places_are_in_increasing_order():
    index = TopK(0.5).shrink(vector(100), rng())[1]["index"]
    assert (index[1:] > index[:-1]).all()


@pytest.mark.parametrize("index", [[1, 1], [2, 1], [-1, 2], [0, 10], [0, 2**31 - 1]])
def test_places_that_cannot_be_are_refused(index):
    with pytest.raises(ValueError, match="rising places below 10"):
        TopK(0.2).restore(torch.ones(2), {"index": torch.tensor(index, dtype=torch.int32)}, 10)


def test_ranges_that_cannot_be_are_refused():
    codes = torch.zeros(4, dtype=torch.uint8)
    for bounds in ([1.0, 0.0], [float("nan"), 1.0], [0.0, float("inf")]):
        with pytest.raises(ValueError, match="finite and in order"):
            Quantize(8).restore(codes, {"range": torch.tensor([bounds])}, 4)


# Messages --------------------------------------------------------------------------------------------------

D = 30
CTX = Context(0, 0, np.arange(2), np.arange(2), np.ones(2) / 2, Layout([Segment("w", 0, D, (D,), False)]), None, client=0)
BOTH = replace(CTX, vectors=("delta", "control"))


def test_the_uplink_of_a_million_parameters():
    d = 1_070_794
    ctx = replace(CTX, layout=Layout([Segment("w", 0, d, (d,), False)]))
    payload, _ = Compress(TopK(0.01), Quantize(8)).encode(ctx, {"delta": vector(d)}, None)
    k, length = 10_708, len(pack(payload))
    assert num_bytes(payload) == k * (1 + 4) + 8
    assert length / (4 * d) == pytest.approx(0.0125, abs=5e-5)
    assert (length + 4 * d) / (8 * d) == pytest.approx(0.506, abs=5e-4)


def test_only_the_vectors_that_the_round_names_are_compressed():
    upload = Compress(TopK(0.1), Quantize(8))
    message = {"delta": vector(D), "control": vector(D, 1), "length": torch.tensor([0.25])}
    payload, _ = upload.encode(CTX, message, None)
    assert payload["control"] is message["control"] and payload["length"] is message["length"]
    assert set(payload) == {"delta.values", "delta.index", "delta.range", "control", "length"}
    arrived = upload.decode(replace(CTX, vectors=("delta", "control")), [upload.encode(BOTH, message, None)[0]] * 2)
    assert arrived["control"].shape == (2, D) and (arrived["control"] != 0).sum() <= 2 * 3
    assert arrived["length"].tolist() == [[0.25], [0.25]]


def test_the_server_reads_row_k_from_payload_k():
    upload = Compress(TopK(0.2), Quantize(8))
    messages = [{"delta": vector(D, k)} for k in range(3)]
    matrix = upload.decode(CTX, [upload.encode(CTX, message, None)[0] for message in messages])["delta"]
    for k, message in enumerate(messages):
        assert torch.equal(matrix[k], through(upload.stages, message["delta"]))


def test_parts_of_what_is_not_sent_in_parts_are_refused():
    upload = Compress(Quantize(8))
    payload, _ = upload.encode(CTX, {"delta": vector(D), "length": torch.ones(1)}, None)
    payload["length.range"] = payload.pop("length")
    with pytest.raises(ValueError, match="parts of .*length"):
        upload.decode(CTX, [payload])


@pytest.mark.parametrize("change", [lambda parts: parts.pop("delta.index"), lambda parts: parts.update({"delta.more": vector(3)})])
def test_a_part_too_few_or_too_many_is_refused(change):
    upload = Compress(TopK(0.2), Quantize(8))
    payload, _ = upload.encode(CTX, {"delta": vector(D)}, None)
    change(payload)
    with pytest.raises(ValueError, match=r"consists of \['index', 'range', 'values'\], got"):
        upload.decode(CTX, [payload])


@pytest.mark.parametrize("upload", [Compress(TopK(0.4)), ErrorFeedback(TopK(0.4))], ids=repr)
def test_a_delta_of_another_length_is_not_sent(upload):
    # Two of four entries are kept, and of five as well, so that the server could not tell.
    ctx = replace(CTX, layout=Layout([Segment("w", 0, 5, (5,), False)]))
    with pytest.raises(ValueError, match=r"'delta' must have shape \[5\], got \[4\]"):
        upload.encode(ctx, {"delta": vector(4)}, None)


@pytest.mark.parametrize("upload", [Dense(), Compress(TopK(0.4)), ErrorFeedback(TopK(0.4))], ids=repr)
def test_no_payloads_cannot_be_decoded(upload):
    with pytest.raises(ValueError, match="without payloads"):
        upload.decode(CTX, [])


# Error feedback --------------------------------------------------------------------------------------------


def test_a_broken_message_is_not_blamed_on_the_residual():
    upload, x = ErrorFeedback(TopK(0.1)), vector(D)
    x[3] = float("nan")
    with pytest.raises(ValueError, match="only finite numbers can be sent, got NaN or infinity in delta"):
        upload.encode(CTX, {"delta": x}, None)
    with pytest.raises(ValueError, match="earlier messages left out delta would not be finite"):
        upload.encode(CTX, {"delta": torch.full((D,), 2e38)}, torch.full((D,), 2e38))


@pytest.mark.parametrize("length", [D - 1, 2 * D])
def test_a_row_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match=rf"row of residuals must have shape \[{D}\], got \[{length}\]"):
        ErrorFeedback(TopK(0.1)).encode(CTX, {"delta": vector(D)}, torch.zeros(length))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_what_arrived_and_what_is_left_are_what_was_wanted(rounding):
    upload = ErrorFeedback(TopK(0.1), Quantize(8, rounding))
    total, arrived, row = torch.zeros(D).double(), torch.zeros(D).double(), torch.zeros(D).double()
    for t in range(100):
        update = vector(D, t, torch.float64)
        payload, row = upload.encode(replace(CTX, t=t), {"delta": update}, row)
        arrived += upload.decode(CTX, [payload])["delta"][0]
        total += update
    assert float((arrived + row - total).abs().max()) < 1e-12
    assert float(row.abs().max()) > 0.1  # and it is not conserved because nothing is left


def test_the_residual_is_that_of_the_whole_chain():
    upload = ErrorFeedback(TopK(0.2), Quantize(2))
    x = vector(D)
    _, row = upload.encode(CTX, {"delta": x}, None)
    assert torch.equal(row, x - through(upload.stages, x))
    assert float((row - (x - through([TopK(0.2)], x))).abs().max()) > 0.01


def test_the_residual_is_added_before_compressing():
    upload = ErrorFeedback(TopK(0.01))
    x, row = torch.zeros(D), torch.zeros(D)
    x[3], row[7] = 1.0, 2.0
    payload, row = upload.encode(CTX, {"delta": x}, row)
    assert payload["delta.index"].tolist() == [7] and payload["delta.values"].tolist() == [2.0]
    assert row.tolist() == x.tolist()


def test_every_named_vector_has_a_residual_of_its_own():
    upload = ErrorFeedback(TopK(0.1), Quantize(8))
    assert upload.row_size(BOTH) == 2 * D and upload.row_size(CTX) == D
    first = {"delta": vector(D), "control": vector(D, 1)}
    _, row = upload.encode(BOTH, first, None)
    for name, part in zip(first, row.split(D), strict=True):
        assert torch.equal(part, first[name] - through(upload.stages, first[name]))
    # A round without the second vector leaves its residual alone.
    _, after = upload.encode(BOTH, {"delta": vector(D, 2)}, row)
    assert torch.equal(after[D:], row[D:]) and not torch.equal(after[:D], row[:D])


def test_tracked_vectors_bring_what_was_left_out_themselves():
    upload, ctx = ErrorFeedback(TopK(0.1)), replace(BOTH, tracked=("control",))
    assert upload.row_size(ctx) == D
    goal, holds, row = vector(D, 3), torch.zeros(D), None
    for _ in range(10):  # 3 of 30 entries a round
        payload, row = upload.encode(ctx, {"delta": torch.zeros(D), "control": goal - holds}, row)
        holds = holds + upload.decode(ctx, [payload])["control"][0]
    assert torch.allclose(holds, goal, atol=1e-6)


@dataclass(frozen=True)
class Constant(Correction):
    """Every client sends the same two vectors in each round, the second in every other round only."""

    vectors = ("delta", "extra")

    def end(self, ctx, carry, result):
        fixed = torch.arange(len(result.delta)) + 1.0 + ctx.client
        return {"delta": fixed} | ({"extra": 10 * fixed} if ctx.t % 2 == 0 else {})

    def prepare(self, ctx, w):
        return {"sum": torch.zeros(ctx.num_clients, len(w))}, {}

    def commit(self, ctx, server, messages):
        total = server["sum"].clone()
        if "extra" in messages:
            total[ctx.clients] += messages["extra"]
        return {"sum": total}


def six_dimensions(x=(1.0, 2.0), loss=linear_loss):
    return task_from(np.outer(x, np.ones(6)), np.outer(x, np.arange(6.0)), [1] * len(x), loss)


def play(task, method, rounds, workers=1, seed=0):
    models_ = [task.new_model(seed) for _ in range(workers)]
    state, lines = begin(task, method, models_[0], seed), []
    with Workers(models_) as team:
        for _ in range(rounds):
            state, line = play_round(task, method, team, seed, state)
            lines.append(line)
    return state, lines


@pytest.mark.parametrize("m", [1, 2])
def test_in_the_federation_every_client_keeps_its_own_account(m):
    task, feedback = six_dimensions(), ErrorFeedback(TopK(0.34), Quantize(4))
    method = Federation(local(Constant(), steps=1), upload=feedback, select=Uniform(m))
    state, lines = play(task, method, 21)
    for k in (0, 1):
        took_part = [line["t"] for line in lines if k in line["clients"]]
        wanted = (np.arange(6) + 1.0 + k) * 10 * sum(t % 2 == 0 for t in took_part)
        row = state.rows["upload"].read(k)
        assert np.allclose(state.server["sum"][k].numpy() + row[6:], wanted, rtol=1e-5)
        assert np.abs(row[6:]).max() > 0


def test_nothing_changes_for_a_client_whose_message_was_rejected():
    # Client 1's gradient overflows float32 when the model is far away; until then it takes part.
    @dataclass(frozen=True)
    class Breaks(Correction):
        def end(self, ctx, carry, result):
            broken = ctx.client == 1 and ctx.t >= 2
            return {"delta": result.delta * (float("nan") if broken else 1)}

    method = Federation(local(Breaks()), upload=ErrorFeedback(TopK(0.34), Quantize(8)))
    task = six_dimensions()
    before, _ = play(task, method, 2)
    after, lines = play(task, method, 4)
    assert [line["clients"] for line in lines] == [[0, 1], [0, 1], [0], [0]]
    assert np.array_equal(before.rows["upload"].read(1), after.rows["upload"].read(1))
    assert not np.array_equal(before.rows["upload"].read(0), after.rows["upload"].read(0))


@pytest.mark.parametrize("batched", [False, True], ids=["in sequence", "batched"])
@pytest.mark.parametrize("stages", [[TopK(0.1)], [TopK(0.1), Quantize(8)]], ids=["sparse", "both"])
def test_a_residual_that_grows_beyond_all_numbers_drops_its_client(stages, batched):
    @dataclass(frozen=True)
    class Huge(Correction):
        def end(self, ctx, carry, result):
            return {"delta": torch.full_like(result.delta, 2e38 if ctx.client == 1 and ctx.t else 0.0)}

    class Nothing:
        def combine(self, ctx, deltas):
            return torch.zeros_like(deltas[0]), np.ones(len(deltas)) / len(deltas)

    settings = LocalSGD(lr=0.1, correction=Huge(), batched=batched)
    method = Federation(settings, Nothing(), ErrorFeedback(*stages))
    _, lines = play(small_task(), method, 4)
    assert [1 in line["clients"] for line in lines] == [True, True, False, False]
    assert all(0 in line["clients"] for line in lines)
    assert "left out delta would not be finite" in lines[2]["dropped"]["1"]


@pytest.mark.parametrize("correction", [Scaffold(), LibraryScaffold()], ids=["of the tests", "of the library"])
def test_control_variates_stay_consistent_and_reach_the_optimum_through_a_lossy_upload(correction):
    a, b = np.array([1.0, 4.0]), np.array([[0.0] * 6, np.arange(1.0, 7.0)])
    root = np.outer(np.sqrt(a), np.ones(6))
    task = task_from(root, root * b, [1, 1])
    method = Federation(local(correction), upload=ErrorFeedback(TopK(0.34), Quantize(8)))
    state, _ = play(task, method, 400)
    rows = np.stack([state.rows["correction"].read(k) for k in (0, 1)])
    assert np.allclose(state.server["c"].numpy(), rows.mean(axis=0), atol=1e-5)
    assert np.allclose(state.w.numpy(), 0.8 * b[1], atol=1e-4)
    assert state.rows["upload"].d == 6


def test_without_feedback_top_k_leaves_small_entries_alone_for_ever():
    task = six_dimensions(x=(1.0, 1.0))  # each entry's gradient is its own place: 0, 1, …, 5
    start = task.new_model(0).theta
    plain, _ = play(task, Federation(local(steps=1), upload=Compress(TopK(0.17))), 30)
    memory, _ = play(task, Federation(local(steps=1), upload=ErrorFeedback(TopK(0.17))), 30)
    assert (plain.w != start).sum() == 1
    assert (memory.w != start).sum() == 5  # the gradient of entry 0 is zero


@pytest.mark.parametrize("upload", [Compress(Quantize(2, "stochastic")), ErrorFeedback(TopK(0.2), Quantize(4))], ids=repr)
def test_a_rebuilt_control_variate_does_not_go_with_error_feedback(upload):
    method = Federation(local(LibraryScaffold(rebuild=True)), upload=upload)
    if upload.remembers:
        with pytest.raises(ValueError, match=r"ErrorFeedback\(.* does not go with Scaffold\(.*rebuild=True"):
            validate(method, laboratory())
    else:
        validate(method, laboratory())
    validate(replace(method, local=local(LibraryScaffold())), laboratory())


# Runs ------------------------------------------------------------------------------------------------------


def small_task():
    x, y = vector(200 * 4).view(200, 4), torch.from_numpy(rng(1).integers(0, 3, 200))
    data = Dataset("noise", x[:150], y[:150], x[150:], y[150:], 3)
    return Task(models.mlp, data, partition.dirichlet(alpha=0.5, num_clients=6, seed=0))


UPLOAD = ErrorFeedback(TopK(0.1), Quantize(4, "stochastic"))


@pytest.mark.parametrize("upload", [UPLOAD, ErrorFeedback(Quantize(8))], ids=["sparse", "8 bits"])
@pytest.mark.parametrize("correction", [Correction(), LibraryScaffold()], ids=["plain", "scaffold"])
def test_resumed_runs_and_any_number_of_workers_give_the_same_bits(tmp_path, correction, upload):
    task = small_task()
    method = Federation(LocalSGD(lr=0.1, correction=correction), upload=upload, select=Uniform(4))
    whole = run(task, method, 6, workers=1)
    assert run(task, method, 6, workers=3).sha256 == whole.sha256
    run(task, method, 3, record=tmp_path / "run", workers=2)
    assert run(task, method, 6, record=tmp_path / "run", workers=1).sha256 == whole.sha256
    without = run(task, replace(method, upload=Compress(*upload.stages)), 6, workers=1)
    assert without.sha256 != whole.sha256


def test_a_record_says_how_uploads_were_compressed():
    history = run(small_task(), Federation(LocalSGD(lr=0.1), upload=UPLOAD), 1)
    assert history.config["method"]["upload"] == {
        "is": "ErrorFeedback",
        "stages": [
            {"is": "TopK", "fraction": 0.1},
            {"is": "Quantize", "bits": 4, "rounding": "stochastic", "chunk": None},
        ],
    }


def test_keeping_everything_in_a_chunk_each_changes_next_to_nothing():
    # One number a chunk is its own range, so nothing is lost: the chain around it must then be without effect.
    task = small_task()
    exact = run(task, Federation(LocalSGD(lr=0.1), upload=Compress(TopK(1.0), Quantize(8, chunk=1))), 4)
    assert exact.sha256 == run(task, Federation(LocalSGD(lr=0.1), upload=Dense()), 4).sha256
