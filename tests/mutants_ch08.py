"""The planted mistakes of chapter 8; ``tests/mutants.py`` lists them with all others."""


def mutants(file, *tests, **planted):
    return [
        {"name": f"{name.replace('_', ' ')}", "file": f"fedlib/{file}", "old": old, "new": new,
         "tests": [f"tests/{test}" for test in tests]}
        for name, (old, new) in planted.items()
    ]  # fmt: skip


MUTANTS = [
    *mutants(
        "compress.py",
        "test_upload.py",
        top_k_without_abs=("torch.topk(vector.abs(),", "torch.topk(vector,"),
        top_k_keeps_the_smallest=("sorted=False)", "sorted=False, largest=False)"),
        k_may_be_zero=("return max(1, round(self.fraction * size))", "return round(self.fraction * size)"),
        k_rounded_down=("max(1, round(self.fraction * size))", "max(1, int(self.fraction * size))"),
        places_unsorted=(".indices.sort().values", ".indices"),
        places_unchecked=("rising and 0 <= index[0] and index[-1] < size", "True"),
        places_may_repeat=("(index[1:] > index[:-1]).all()", "(index[1:] >= index[:-1]).all()"),
        one_level_too_many=("        levels = 2**self.bits - 1\n", "        levels = 2**self.bits\n"),
        ends_not_exact=(
            "torch.lerp(low, high, rows).flatten()",
            "(low.float() + (high.float() - low.float()) * rows.float()).flatten()",
        ),
        overflow_in_single_precision=("_padded(vector.double(), self.chunk", "_padded(vector, self.chunk"),
        codes_overflow=(".clamp_(max=levels)", ""),
        nearest_is_floor=("codes = scaled.round_()", "codes = scaled.floor_()"),
        stochastic_is_nearest=('if self.rounding == "stochastic":', "if False:"),
        nearest_is_stochastic=('if self.rounding == "stochastic":', "if True:"),
        one_draw_for_all=("rng.random(len(vector))", "rng.random(1).repeat(len(vector))"),
        biased_draws=("torch.from_numpy(rng.random(len(vector)))", "torch.from_numpy(rng.random(len(vector)) * 0.9)"),
        one_range_for_all_chunks=("self.chunk or len(vector))", "len(vector))"),
        padded_with_zeros=("vector[-1:].expand(missing)", "vector.new_zeros(missing)"),
        bits_in_another_order=("torch.arange(0, 8, bits, device=codes.device)", "torch.arange(8 - bits, -1, -bits, device=codes.device)"),
        ranges_unchecked=("torch.isfinite(ranges).all() and (low <= high).all()", "True"),
        numbers_without_range_sent=("_require(torch.isfinite(high - low).all(),", "_require(True,"),
        extra_parts_accepted=("if arrays.keys() != names:", "if False:"),
        stages_decoded_forward=("zip(reversed(stages), reversed(sizes[:-1]))", "zip(stages, sizes[:-1])"),
    ),
    *mutants(
        "upload.py",
        "test_upload.py",
        residual_unused=("vector + residuals.get(name, 0) for", "vector for"),
        residual_after_the_first_stage=(
            "        sent = self.arrived(ctx, payload)\n",
            "        first = self.stages[:1]\n        sent = {name: compress.restore(first, compress.shrink(first, vector, None), "
            "len(vector)) for name, vector in wanted.items()}\n",
        ),
        old_residual_forgotten=("[wanted[name] - sent[name] if name in wanted", "[message[name] - sent[name] if name in wanted"),
        residual_with_the_wrong_sign=("[wanted[name] - sent[name] if", "[sent[name] - wanted[name] if"),
        residual_lost_in_a_round_without=("else residuals[name] for name in names", "else 0 * residuals[name] for name in names"),
        one_residual_for_both=("dict(zip(names, row.split(ctx.layout.size), strict=True))", "{name: row[: ctx.layout.size] for name in names}"),
        too_large_sent=("if not is_finite(vector)]:", "if False]:"),
        tracked_counted_twice=("[name for name in ctx.vectors if name not in ctx.tracked]", "list(ctx.vectors)"),
        quantize_may_come_first=("if compress.Quantize in kinds[:-1]:", "if False:"),
        stages_may_repeat=(" or len(set(kinds)) < len(kinds)", ""),
        everything_compressed=("if name in ctx.vectors else {\"\": vector}", "if True else {\"\": vector}"),
        rows_in_another_order=(
            "[self.arrived(ctx, payload) for payload in payloads]", "[self.arrived(ctx, payload) for payload in payloads[::-1]]"
        ),
        odd_parts_accepted=("if odd := [", "if False and ["),
    ),
    *mutants(
        "client.py",
        "test_upload.py",
        what_cannot_be_sent_stops_the_round=("    except ValueError as error:", "    except KeyError as error:"),
    ),
    *mutants(
        "federation.py",
        "test_upload.py",
        rebuilt_with_feedback=("if method.upload.remembers and method.local.correction.reads_delta:", "if False:"),
        rebuilding_always_refused=("if method.upload.remembers and method.local.correction.reads_delta:", "if method.local.correction.reads_delta:"),
        second_vector_unnamed=("vectors=correction.vectors, tracked", "tracked"),
        tracked_unnamed=(", tracked=correction.tracked,", ","),
    ),
    *mutants(
        "federation.py",
        "test_comm.py",
        headers_are_free=("sum(len(report.payload) for report in used) - bytes_up,", "0,"),
        headers_counted_twice=('"bytes_up": bytes_up,', '"bytes_up": sum(len(report.payload) for report in used),'),
        broadcast_headers_are_free=("len(reports) * len(comm.header(broadcast))", "0"),
        broadcast_to_those_who_answer=('"bytes_down": len(reports) *', '"bytes_down": len(used) *'),
    ),
    *mutants(
        "control.py",
        "test_upload.py",
        control_variates_remembered=('    tracked = ("control",)\n', ""),
        rebuilt_not_declared=("        return self.rebuild\n", "        return False\n"),
    ),
    *mutants(
        "comm.py",
        "test_comm.py",
        big_endian=('struct.pack(f"<{array.ndim}I"', 'struct.pack(f">{array.ndim}I"'),
        kinds_exchanged=('("<f4", "<f8", "|u1"', '("<f8", "<f4", "|u1"'),
        big_endian_numbers=('"<i4", "<i8")', '">i4", "<i8")'),
        magic_ignored=("if read.take(4) != MAGIC:", "if read.take(4) is None:"),
        names_may_repeat=(" or name in described or", " or"),
        unknown_kinds_wrap=("or code >= len(KINDS):", "or code >= 250:"),
        tails_ignored=("if wanted != len(data) - read.position:", "if wanted > len(data) - read.position:"),
        ends_unchecked=("if self.position > len(self.data):", "if False:"),
        views_of_the_message=(".reshape(shape).copy()", ".reshape(shape)"),
        strangers_gathered=('if found != first or "delta" not in found:', 'if "delta" not in found:'),
        messages_without_delta=('if found != first or "delta" not in found:', "if found != first:"),
        nan_gathered=("or not is_finite(array):", "or False:"),
        whole_numbers_gathered=("if not array.is_floating_point() or not", "if not"),
        wrong_length_gathered=("for name in vectors if name in first}", "for name in ()}"),
        kinds_mixed=("{name: (array.dtype, *array.shape)", "{name: (None, *array.shape)"),
        bytes_are_numbers=("return 4 * rounds * m * d", "return rounds * m * d"),
        headers_not_in_the_ledger=(' + line.get(f"header_{way}", 0)', ""),
        ledger_not_cumulative=("np.cumsum(each) / 1e6", "np.array(each) / 1e6"),
        target_passed_only_above=('line["accuracy"] >= target:', 'line["accuracy"] > target:'),
    ),
    *mutants(
        "check/chapter08.py",
        "test_check08.py",
        bias_accepted=("answer.expect(np.all(np.abs(share - parts) <= deviation),", "answer.expect(True,"),
        own_randomness_accepted=(
            "            np.array_equal(got, quantize(x, bits)) or answer.close(got, quantize(x, bits)),\n", "            True,\n"
        ),
        ties_unchecked=("answer.expect(nonzero == kept,", "answer.expect(True,"),
        zero_k_hint_lost=("            if k == 0:\n", "            if False:\n"),
        conservation_unchecked=("answer.expect(gap <= limit,", "answer.expect(True,"),
        residual_unchecked=("answer.expect(answer.close(left, wanted - sent),", "answer.expect(True,"),
        share_unchecked=("answer.expect(abs(share - both) < 2e-6,", "answer.expect(True,"),
        whole_bytes_unchecked=("abs(size - wanted) < 1e-6 * wanted", "abs(size - wanted) < 0.2 * wanted"),
    ),
]
