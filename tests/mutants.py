"""Faults to plant in the library, each with the tests that have to notice: run them with `make mutants`."""

import importlib
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str  # occurs exactly once in the file
    new: str
    tests: tuple  # pytest node ids, at least one of which has to fail


def of(file, tests, **mutants):
    return [Mutant(name.replace("_", " "), file, old, new, (tests,)) for name, (old, new) in mutants.items()]


MUTANTS = [
    *of(
        "fedlib/rng.py",
        "tests/test_rng.py",
        purpose_ignored=(
            "[seed, PURPOSES[purpose], t, client, len(ids) + 1]",
            "[seed, 1, t, client, len(ids) + 1]",
        ),
        client_ignored=(
            "PURPOSES[purpose], t, client, len(ids) + 1]",
            "PURPOSES[purpose], t, 0, len(ids) + 1]",
        ),
        round_ignored=(
            "PURPOSES[purpose], t, client, len(ids) + 1]",
            "PURPOSES[purpose], 0, client, len(ids) + 1]",
        ),
        seed_plus_client=("[seed, PURPOSES[purpose], t, client,", "[seed + client, PURPOSES[purpose], t, 0,"),
        seed_ignored=("SeedSequence([seed, ", "SeedSequence([0, "),
        trailing_zeros_ignored=(", t, client, len(ids) + 1]", ", t, client]"),
        salted_hash=("PURPOSES[purpose], t", "hash(purpose) % 2**32, t"),
        global_generator=(
            "return np.random.default_rng(",
            "np.random.seed(seed); return np.random.default_rng(",
        ),
        numbers_changed=('"batches": 4,', '"batches": 12,'),
        negative_seeds_allowed=("if not 0 <= number < 2**32:", "if not number < 2**32:"),
        fractions_rounded=("number = operator.index(number)", "number = int(number)"),
    ),
    *of(
        "fedlib/objective.py",
        "tests/test_objective.py",
        uniform_weights=("return n / n.sum()", "return 0 * n + 1 / len(n)"),
        sizes_for_shares=("return n / n.sum()", "return n"),
        sum_for_mean=("return p @ _one_for_each(values, p)", "return (0 * p + 1) @ _one_for_each(values, p)"),
        mean_for_weighted_mean=(
            "return p @ _one_for_each(values, p)",
            "return _one_for_each(values, p).mean(axis=0)",
        ),
        curvature_dropped=("np.sum(p * a * b) / np.sum(p * a))", "np.sum(p * b) / np.sum(p))"),
        weight_dropped=("np.sum(p * a * b) / np.sum(p * a))", "np.sum(a * b) / np.sum(a))"),
        pull_not_divided=("np.sum(p * a * b) / np.sum(p * a))", "np.sum(p * a * b))"),
        not_renormalized=("p[drawn] / _positive(p[drawn].sum(), drawn)", "p[drawn] / _positive(1.0, drawn)"),
        renormalized_uniformly=(
            "weights[drawn] = p[drawn] / _positive(p[drawn].sum(), drawn)",
            "weights[drawn] = 1 / len(drawn)",
        ),
        factor_N_over_m_missing=("weights[drawn] = N / m * p[drawn]", "weights[drawn] = p[drawn]"),
        factor_N=("weights[drawn] = N / m * p[drawn]", "weights[drawn] = N * p[drawn]"),
        factor_upside_down=("weights[drawn] = N / m * p[drawn]", "weights[drawn] = m / N * p[drawn]"),
        unbiased_renormalized=(
            "weights[drawn] = N / m * p[drawn]",
            "weights[drawn] = p[drawn] / p[drawn].sum()",
        ),
        weights_in_place=(
            "weights = np.zeros_like(p)\n    weights[drawn] = N",
            "weights = p\n    weights[drawn] = N",
        ),
        one_draw_missing=(
            "return list(combinations(range(num_clients), m))",
            "return list(combinations(range(num_clients), m))[1:] or [tuple(range(m))]",
        ),
        expected_with_unbiased=("np.mean([renormalized(p, drawn)", "np.mean([unbiased(p, drawn)"),
        expected_sums=("return np.mean([renormalized(p, drawn)", "return np.sum([renormalized(p, drawn)"),
        bad_weights_accepted=("if (p < 0).any() or abs(p.sum() - 1) > 1e-6:", "if (p < 0).any():"),
        empty_round_divides_by_zero=("    if total == 0:\n", "    if False:\n"),
        clients_drawn_twice=("if len(set(drawn.tolist())) < len(drawn) or ", "if "),
        booleans_for_numbers=('drawn.dtype.kind not in "iu"', 'drawn.dtype.kind not in "iub"'),
    ),
    *of(
        "fedlib/logreg.py",
        "tests/test_logreg.py",
        in_place_w=("w_k = w.copy()", "w_k = w"),
        penalized_intercept_in_the_gradient=(
            "+ l2 * w[:-1], np.mean(error))",
            "+ l2 * w[:-1], np.mean(error) + l2 * w[-1])",
        ),
        penalized_intercept_in_the_loss=("l2 / 2 * np.sum(w[:-1] ** 2)", "l2 / 2 * np.sum(w**2)"),
        penalty_without_half=("l2 / 2 * np.sum(w[:-1] ** 2)", "l2 * np.sum(w[:-1] ** 2)"),
        penalty_missing_in_training=(
            "w_k -= lr * gradient(w_k, X, y, l2)",
            "w_k -= lr * gradient(w_k, X, y)",
        ),
        sign_of_the_step=("w_k -= lr * gradient(w_k, X, y, l2)", "w_k += lr * gradient(w_k, X, y, l2)"),
        stale_gradient=("w_k -= lr * gradient(w_k, X, y, l2)", "w_k -= lr * gradient(w, X, y, l2)"),
        summed_gradient=("X.T @ error / len(y)", "X.T @ error"),
        summed_intercept=("np.mean(error))", "np.sum(error))"),
        intercept_not_trained=("np.mean(error))", "0.0)"),
        labels_flipped=("error = predict(w, X) - y", "error = predict(w, X) - (1 - y)"),
        overflowing_loss=("np.logaddexp(0, z)", "np.log(1 + np.exp(z))"),
        epochs_ignored=("for _ in range(epochs):", "for _ in range(1):"),
        uniform_weights_in_a_round=(
            "p = shares([len(y) for _, y in clients])",
            "p = shares([1 for _, y in clients])",
        ),
        features_for_samples=(
            "p = shares([len(y) for _, y in clients])",
            "p = shares([X.shape[1] for X, _ in clients])",
        ),
        sequential_training=(
            "results = [local_train(w, X, y, lr, epochs, l2) for X, y in clients]",
            "results = [w := local_train(w, X, y, lr, epochs, l2) for X, y in clients]",
        ),
        last_client_only=("return weighted_mean(results, p)", "return results[-1]"),
        epochs_not_passed_on=(
            "path.append(fedavg_round(path[-1], clients, lr, epochs, l2))",
            "path.append(fedavg_round(path[-1], clients, lr, 1, l2))",
        ),
        every_round_from_the_start=(
            "path.append(fedavg_round(path[-1],",
            "path.append(fedavg_round(path[0],",
        ),
        overflow_unnoticed=("if not np.isfinite(w_k).all():", "if False:"),
        labels_not_checked=("if not ((y == 0) | (y == 1)).all():", "if False:"),
        squared_mean_not_subtracted=("for _, _, q in stats) / n - mean**2", "for _, _, q in stats) / n"),
        mean_of_means=(
            "mean = sum(s for _, s, _ in stats) / n",
            "mean = sum(s / n_k for n_k, s, _ in stats) / len(stats)",
        ),
        local_sd_averaged=(
            "variance = sum(q for _, _, q in stats) / n - mean**2",
            "variance = sum(q - s**2 / n_k for n_k, s, q in stats) / n",
        ),
        sample_variance=(
            "variance = sum(q for _, _, q in stats) / n - mean**2",
            "variance = (sum(q for _, _, q in stats) / n - mean**2) * n / max(n - 1, 1)",
        ),
        variance_for_sd=("np.sqrt(np.where(constant, 1.0, variance))", "np.where(constant, 1.0, variance)"),
        constant_features_divide_by_noise=("variance <= 100 * np.finfo(float).eps * mean**2", "variance < 0"),
        sum_of_squares_squared=("(X**2).sum(axis=0)", "X.sum(axis=0) ** 2"),
        optimum_of_another_problem=("C=1 / (len(y) * l2)", "C=1 / l2"),
    ),
    *of(
        "fedlib/hospitals.py",
        "tests/test_hospitals.py",
        test_set_overlaps_training=("rest = ids[num_test:]", "rest = ids"),
        some_biopsies_lost=("rest = ids[num_test:]", "rest = ids[num_test + 5 :]"),
        labels_flipped_in_load=("(data.target == 0).astype(float)", "(data.target == 1).astype(float)"),
        not_shuffled=(
            "ids = rng.permutation(np.flatnonzero(y == label))",
            "ids = np.flatnonzero(y == label)",
        ),
        global_shuffle=('rng = stream(seed, "split")', "rng = np.random; rng.seed(seed)"),
        seed_ignored_in_split=('rng = stream(seed, "split")', 'rng = stream(0, "split")'),
        same_case_mix=("BENIGN = (0.75, 0.20, 0.05)", "BENIGN = (0.40, 0.40, 0.20)"),
        test_set_of_one_class=(
            "num_test = round(test_fraction * len(ids))",
            "num_test = round(test_fraction * len(ids)) if label else 0",
        ),
    ),
    *of(
        "fedlib/metrics.py",
        "tests/test_metrics.py",
        labels_inferred=("y, probability, labels=[0, 1]", "y, probability"),
        absent_classes_zeroed=("scores[present].mean() if absent", "scores.mean() if absent"),
        predicted_classes_called_absent=(
            "np.isin(labels, y) | np.isin(labels, predicted)",
            "np.isin(labels, y)",
        ),
        micro_for_macro=(
            'absent == "skip" else scores.mean())',
            'absent == "skip" else accuracy(y, predicted))',
        ),
        population_sd=("values.std(ddof=1))", "values.std())"),
        unpaired_difference=(
            "half = stats.t.ppf((1 + level) / 2, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))",
            "half = stats.t.ppf((1 + level) / 2, len(d) - 1) * np.hypot(a.std(ddof=1), b.std(ddof=1))"
            " / np.sqrt(len(d))",
        ),
        normal_for_student=("stats.t.ppf((1 + level) / 2, len(d) - 1)", "stats.norm.ppf((1 + level) / 2)"),
        one_sided_interval=("stats.t.ppf((1 + level) / 2,", "stats.t.ppf(level,"),
        sd_for_standard_error=(" * d.std(ddof=1) / np.sqrt(len(d))", " * d.std(ddof=1)"),
        sign_of_the_difference=("d = a - b", "d = b - a"),
        verdict_by_the_mean=("if difference.low >= minimum_effect:", "if difference.mean >= minimum_effect:"),
        undecided_called_failed=(
            '"fails" if difference.high < minimum_effect',
            '"fails" if difference.low < minimum_effect',
        ),
    ),
    *of(
        "fedlib/plots.py",
        "tests/test_plots.py",
        ids_shared_between_figures=('rf"\\g<1>{prefix}"', 'r"\\g<1>"'),
        no_description=('role="img" aria-label="{escape(alt, quote=True)}"', 'role="img"'),
        description_not_escaped=("escape(alt, quote=True)", "alt"),
        figures_left_open=("plt.close(figure)", "pass"),
        random_ids=('"svg.hashsalt": "fedlib",', ""),
        fixed_width=("max-width:100%;height:auto", "height:auto"),
        text_as_outlines=('"svg.fonttype": "none",', '"svg.fonttype": "path",'),
        white_background=('"savefig.transparent": True,', '"savefig.transparent": False,'),
        ink_stays_black=('svg = svg.replace(INK, "currentColor")', "pass"),
        all_frames_visible=('{"" if now else " hidden"}', '{""}'),
        first_frame_shown=("[(setting == start, _frame", "[(setting == settings[0], _frame"),
        values_zipped_not_combined=(
            "list(itertools.product(*values.values()))",
            "list(zip(*values.values()))",
        ),
        start_ignored=("| (start or {})", ""),
        slider_one_short=('max="{len(options) - 1}"', 'max="{len(options)}"'),
        heavy_pages_allowed=("if len(combinations) > 200:", "if False:"),
        population_band=("runs.std(axis=0, ddof=1)", "runs.std(axis=0)"),
        label_at_the_start=(
            "label_end(ax, x[-1], y[-1], label, color)",
            "label_end(ax, x[0], y[0], label, color)",
        ),
    ),
    *of(
        "fedlib/show.py",
        "tests/test_show.py",
        any_code_shown=('if not getattr(function, "__module__", "").startswith("fedlib."):', "if False:"),
        docstring_kept=("del lines[body[0].lineno - 1 : body[0].end_lineno]", "pass"),
        a_line_lost=(
            "del lines[body[0].lineno - 1 : body[0].end_lineno]",
            "del lines[body[0].lineno - 1 : body[0].end_lineno + 1]",
        ),
        whole_numbers_as_decimals=(
            "*(_cell(value, digits) for value in row)] for index, *row in frame.itertuples()]",
            "*(_cell(value, digits) for value in frame.loc[index])] for index in frame.index]",
        ),
    ),
    *of(
        "fedlib/notebook.py",
        "tests/test_notebook.py",
        line_repeated=("    _described = True\n", ""),
        scales_exchanged=(
            'return quick if name == "quick" else full',
            'return full if name == "quick" else quick',
        ),
        scales_not_compared=("if quick.keys() != full.keys():", "if False:"),
        unknown_scale_is_full=("if name not in SCALES:", "if False:"),
        colab_everywhere=('return "google.colab" in sys.modules', "return True"),
        gpu_named_without_torch=("    if use_torch:\n", "    if True:\n"),
    ),
    *of(
        "fedlib/progress.py",
        "tests/test_progress.py",
        bars_in_the_book=('os.environ.get("FEDLIB_PROGRESS") == "0" or ', ""),
        bars_in_log_files=('not (sys.stderr.isatty() or "ipykernel" in sys.modules)', "False"),
        no_bars_at_all=('os.environ.get("FEDLIB_PROGRESS") == "0" or not', "True or not"),
    ),
    *of(
        "fedlib/check/core.py",
        "tests/test_check01.py",
        lists_not_tried=("return [_numpy, _lists] +", "return [_numpy] +"),
        tensors_not_tried=('([_tensors, _single_tensors] if "torch" in sys.modules else [])', "[]"),
        single_tensors_not_tried=("[_tensors, _single_tensors]", "[_tensors]"),
        single_precision_rejected=("self.tolerance = 2e-4", "self.tolerance = 1e-8"),
        hidden_single_precision_rejected=("max(self.tolerance, 1e-5)", "1e-9"),
        everything_is_close=("self.tolerance * scale", "1.0"),
        rounded_is_close=("self.tolerance = 1e-6", "self.tolerance = 1e-5"),
        changed_inputs_unnoticed=("all(map(_equal, _held(arg), parts))", "True"),
        digits_read_as_numbers=('not in "biufO"', 'not in "biufOU"'),
        forgotten_return_is_a_stub=("value is None and self._is_stub()", "value is None"),
        stub_raises=('            except _NotDone:\n                return Result(title, "not done")\n', ""),
        errors_escape=("except (Exception, SystemExit) as error:", "except ZeroDivisionError as error:"),
        nan_accepted=("if not np.isfinite(value).all():", "if False:"),
        answers_share_our_arrays=("return copy.deepcopy(value)", "return value"),
        failures_ignored=("        if not holds:\n", "        if False:\n"),
        shapes_ignored=(
            "        if value.shape != shape:\n            hint",
            "        if False:\n            hint",
        ),
    ),
    *of(
        "fedlib/check/chapter02.py",
        "tests/test_check02.py",
        in_place_hint_lost=("answer.in_place[0] = (", "_ = ("),
        sign_unnoticed=("not np.allclose(step, -lr * gradient, atol=1e-5),", "True,"),
        penalized_intercept_unnoticed=("answer.close(penalized[-1], step[-1]),", "True,"),
        order_of_clients_unnoticed=(
            "answer.close(go([clients[0]] * 3, lr, 4), go([clients[0]], lr, 4)),",
            "True,",
        ),
        average_every_step_unnoticed=("not np.allclose(go(clients, lr, 5), full, atol=1e-4),", "True,"),
        several_epochs_untested=('answer.close(got, wanted), "several', 'True, "several'),
        many_epochs_untested=("for epochs in (3, 8):", "for epochs in (3,):"),
        local_sd_hint_lost=("(local.mean(axis=0), p @ local, np.sqrt(p @ local**2))", "()"),
    ),
    *(
        Mutant(**{**planted, "tests": tuple(planted["tests"])})
        for path in sorted(Path(__file__).parent.glob("mutants_*.py"))
        for planted in importlib.import_module(path.stem).MUTANTS
    ),
]
