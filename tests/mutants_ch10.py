"""The planted mistakes of chapter 10; ``tests/mutants.py`` lists them with all others."""


def mutants(file, *tests, **planted):
    return [
        {"name": f"{name.replace('_', ' ')}", "file": f"fedlib/{file}", "old": old, "new": new,
         "tests": [f"tests/{test}" for test in tests]}
        for name, (old, new) in planted.items()
    ]  # fmt: skip


MUTANTS = [
    *mutants(
        "privacy.py",
        "test_privacy.py",
        every_row_brought_to_the_clip_norm=("norm / lengths.clamp(min=norm)", "norm / lengths.clamp(min=1e-12)"),
        rows_clipped_by_absolute_values=("deltas, dim=-1, keepdim=True", "deltas, ord=1, dim=-1, keepdim=True"),
        clipped_by_the_largest_row=("lengths.clamp(min=norm)", "lengths.max().clamp(min=norm)"),
        control_clipped_like_the_delta=('"control": self.control}', '"control": self.norm}'),
        noise_without_the_clip_norm=(
            "std = self.noise_multiplier * self.clip /",
            "std = self.noise_multiplier /",
        ),
        noise_not_divided=(
            "self.clip / (self.mean.rate * ctx.num_clients)",
            "self.clip",
        ),
        noise_over_the_root_of_clients=(
            "self.clip / (self.mean.rate * ctx.num_clients)",
            "self.clip / (self.mean.rate * ctx.num_clients) ** 1.5",
        ),
        noise_over_those_drawn=(
            "self.clip / (self.mean.rate * ctx.num_clients)",
            "self.clip / max(len(deltas), 1)",
        ),
        noise_over_all_registered=("(self.mean.rate * ctx.num_clients)", "ctx.num_clients"),
        noise_from_the_draw_s_stream=('gaussian(ctx.stream("noise"), std', 'gaussian(ctx.stream("select"), std'),
        one_noise_for_both_releases=('ctx.stream("control_noise")', 'ctx.stream("noise")'),
        one_number_for_all_entries=("stream.normal(0, std, len(like))", "stream.normal(0, std) + 0 * stream.normal(0, std, len(like))"),
        control_noise_without_its_clip_norm=(
            "self.noise_multiplier * self.clip, total)",
            "self.noise_multiplier, total)",
        ),
        control_over_those_drawn=(
            "((total + noise) / ctx.num_clients)",
            "((total + noise) / max(len(ctx.clients), 1))",
        ),
        control_noise_not_divided=("((total + noise) / ctx.num_clients)", "(total / ctx.num_clients + noise)"),
        any_mean_is_private=("if type(mean) is not FixedMean:", "if False:"),
        subclasses_of_the_mean_are_private=("if type(mean) is not FixedMean:", "if not isinstance(mean, FixedMean):"),
        any_draw_is_private=("if type(select) is not Poisson:", "if False:"),
        subclasses_of_the_draw_are_private=("if type(select) is not Poisson:", "if not isinstance(select, Poisson):"),
        two_rates=("if select.rate != mean.rate:", "if False:"),
        any_upload_is_private=("if type(upload) is not Clip:", "if not isinstance(upload, Clip):"),
        two_clip_norms=("if upload.norm != noisy.clip:", "if False:"),
        small_rounds_skipped=("if method.min_clients:", "if False:"),
        anything_may_be_sent=('if own and not getattr(correction, "private", False):', "if False:"),
        commits_unnoticed=('("prepare", "end", "commit")', '("prepare", "end")'),
        two_clip_norms_for_control=("if correction.clip != upload.control:", "if False:"),
        subclasses_of_the_correction_are_private=("if type(correction) is PrivateScaffold:", "if isinstance(correction, PrivateScaffold):"),
        unclipped_vectors_sent=("if unbounded := [name for name in message if norms.get(name) is None]:", "if False:"),
        warm_starts_released=("if (self.start, self.refresh_every, self.rebuild) !=", "if False and () !="),
        joint_multiplier_without_squares=("math.hypot(*(1 / multiplier for multiplier in multipliers))", "sum(1 / multiplier for multiplier in multipliers)"),
        refusals_not_raised=("        if reason:\n", "        if False:\n"),
    ),
    *mutants(
        "aggregate.py",
        "test_privacy.py",
        fixed_mean_divides_by_those_who_came=(
            "np.full(len(deltas), 1 / (self.rate * ctx.num_clients))",
            "np.full(len(deltas), 1 / max(len(deltas), 1))",
        ),
    ),
    *mutants(
        "selection.py",
        "test_privacy.py",
        poisson_draws_a_fixed_number=(
            "np.flatnonzero(rng.random(num_clients) < self.rate)",
            "np.sort(rng.choice(num_clients, max(1, round(self.rate * num_clients)), replace=False))",
        ),
        poisson_draws_the_others=("rng.random(num_clients) < self.rate", "rng.random(num_clients) > self.rate"),
    ),
    *mutants(
        "federation.py",
        "test_privacy.py",
        parts_not_checked_by_the_aggregator=("        method.aggregate.check(method)\n", "        pass\n"),
        empty_rounds_for_every_mean=('getattr(method.aggregate, "takes_nobody", False)', "True"),
        no_empty_rounds_at_all=("least = 0 if getattr", "least = 1 if getattr"),
    ),
    *mutants(
        "accounting.py",
        "test_accounting.py",
        exponent_with_squares=("j * (j - 1) / (2 * z**2)", "j * j / (2 * z**2)"),
        noise_as_variance=("j * (j - 1) / (2 * z**2)", "j * (j - 1) / (2 * z)"),
        divided_by_the_order=("return logsumexp(terms) / (nu - 1)", "return logsumexp(terms) / nu"),
        classic_instead_of_improved=('if conversion == "improved" else 0.0', 'if conversion == "none" else 0.0'),
        few_orders=("range(2, 257)", "range(2, 8)"),
        rounds_not_composed=("self_compose(int(rounds)).get_epsilon_for_delta(delta))\n    return", "self_compose(1).get_epsilon_for_delta(delta))\n    return"),
        neighbors_ignored=('"replace": "REPLACE_ONE"', '"replace": "ADD_OR_REMOVE_ONE"'),
        rate_ignored=("sampling_prob=rate,", "sampling_prob=1.0,"),
        fixed_size_without_sampling=(
            "SampledWithoutReplacementDpEvent(num_clients, m,",
            "SampledWithoutReplacementDpEvent(num_clients, m + 1,",
        ),
        replaced_clients_move_by_one_norm=("z = noise_multiplier / 2", "z = noise_multiplier"),
        lower_number_from_above=("from_above=False", "from_above=True"),
        grid_alone=('return min(found, epsilon_by_hand(rate, noise_multiplier, rounds, delta)) if neighbors == "add or remove" else found', "return found"),
        last_round_left_out=("np.unique(np.append(np.arange(every, played + 1, every), played)).astype(int)", "np.arange(every, played + 1, every)"),
        noise_rounded_up_twice=("math.floor(low * scale) + 1", "math.floor(low * scale) + 2"),
        noise_not_tried=("found += 1", "break"),
        noise_rounded_to_two_digits=("10 ** (2 - math.floor", "10 ** (1 - math.floor"),
        half_the_first_bound_is_too_little=("while epsilon(rate, low, rounds, delta) <= target:", "while False:"),
        empty_rounds_not_counted=(
            "played = len(history.rounds)",
            'played = sum(bool(line["clients"]) for line in history.rounds)',
        ),
        skipped_rounds_not_counted=(
            "played = len(history.rounds)",
            'played = sum("skipped" not in line for line in history.rounds)',
        ),
        one_round_for_all=("int(t), delta) for t in rounds", "1, delta) for t in rounds"),
        second_release_ignored=('if correction["is"] == "PrivateScaffold":', "if False:"),
        everything_is_private=('if aggregate["is"] != "Noisy" or', "if False and"),
    ),
    *mutants(
        "audit.py",
        "test_audit.py",
        threshold_chosen_where_it_is_measured=(
            "chosen.append((promising[best], yes_again, no_again,",
            "chosen.append((promising[best], yes, no,",
        ),
        only_present_is_said=("attacks = [(first, second, third, fourth), ", "attacks = [(first, second, third, fourth)] or ["),
        delta_not_taken_off=("np.log((tpr - delta) / fpr)", "np.log(tpr / fpr)"),
        shares_without_intervals=(
            "tpr, fpr = share_bounds(hits, len(yes), level)[0], share_bounds(alarms, len(no), level)[1]",
            "tpr, fpr = hits / len(yes), np.maximum(alarms, 0.5) / len(no)",
        ),
        intervals_one_sided=("(1 - level) / 2", "(1 - level) * 2"),
        always_drawn=("drawn = np.log(rate) +", "drawn = 0.0 +"),
        noise_not_measured=("return evidence(moves.T, rate, noise)", "return evidence(moves.T, rate, 1.0)"),
        noise_measured_with_the_canary=("across = own - own.mean(axis=-1, keepdims=True)", "across = own - 0.0"),
        canaries_always_there=("if self.present[ctx.client]:", "if True:"),
        canary_too_long=("self.length / len(places) ** 0.5", "self.length"),
        second_corner_forgotten=("np.minimum(steep, 1 - np.exp(-epsilon) * (1 - fpr - delta))", "steep"),
    ),
    *mutants(
        "check/chapter10.py",
        "test_check10.py",
        coordinate_clipping_unnoticed=("longest <= S * (1 + 10 * answer.tolerance)", "True"),
        short_rows_may_change=("answer.close(got[short], rows[short])", "True"),
        direction_not_checked=('answer.close(got, wanted), "long rows', 'True, "long rows'),
        any_denominator=("answer.close(got, 1e2 * total / (q * N))", "True"),
        any_noise=("abs(sd - right) <= 0.06 * right and", "True and"),
        any_generator=("np.array_equal(noise, again) and", "True or"),
        any_epsilon=("right = abs(got - wanted) <= 2e-4 * max(1, wanted)", "right = True"),
        any_joint_multiplier=('answer.close(value, wanted), "1/z²', 'True, "1/z²'),
        any_reader=("if names != readers:", "if False:"),
        any_design_is_private=("if bool(kept) != private:", "if False:"),
    ),
]
