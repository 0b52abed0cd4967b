"""The planted mistakes of chapter 5; ``tests/mutants.py`` lists them with all others."""

from mutants_core import mutant


def drift(name, old, new):
    return mutant(f"drift: {name}", "drift.py", old, new, "test_drift.py")


def check(name, old, new):
    return mutant(f"check 5: {name}", "check/chapter05.py", old, new, "test_check05.py")


MUTANTS = [
    drift("steps add up instead of multiplying", "r = (1 - _stable(lr, a) * a) ** H", "r = 1 - _stable(lr, a) * a * H"),
    drift("what is left pulls", "pull = p * (1 - r) /", "pull = p * r /"),
    drift("weights ignored at rest", "pull = p * (1 - r) /", "pull = (1 - r) /"),
    drift("normalization ignored at rest", "(H if normalized else 1)\n    return", "1\n    return"),
    drift("everybody takes the most steps", "np.where(h < H, eta * a * (w_k - b), 0)", "eta * a * (w_k - b)"),
    drift("one step too few", "for h in range(H.max()):", "for h in range(H.max() - 1):"),
    drift("stale gradients", "eta * a * (w_k - b), 0)", "eta * a * (path[-1] - b), 0)"),
    drift("sign of the steps", "w_k -= np.where(", "w_k += np.where("),
    drift("curvature forgotten in the steps", "eta * a * (w_k - b), 0)", "eta * (w_k - b), 0)"),
    drift("first learning rate for ever", "eta = lr(t) if callable(lr)", "eta = lr(0) if callable(lr)"),
    drift("normalized rounds as long as one step", "deltas = deltas / H * np.sum(p * H)", "deltas = deltas / H"),
    drift("normalized by the mean steps", "deltas = deltas / H * np.sum(p * H)", "deltas = deltas / np.mean(H)"),
    drift("clients averaged equally", "float(np.sum(p * deltas))", "float(np.mean(deltas))"),
    drift("every round from the start", "w_k = np.full(len(a), path[-1])", "w_k = np.full(len(a), path[0])"),
    drift("server does not move on", "path.append(path[-1] + float(", "path.append(path[0] + float("),
    drift("starting point ignored", "path = [float(start)]", "path = [0.0]"),
    drift("local paths end a step early", "np.arange(H + 1)[:, None]", "np.arange(H)[:, None]"),
    drift("steps ignored in the weights", "return shares(sizes * steps)", "return shares(sizes)"),
    drift("divided by steps in the weights", "return shares(sizes * steps)", "return shares(sizes / steps)"),
    drift("sizes ignored in the weights", "return shares(sizes * steps)", "return shares(steps)"),
    drift("clients without a step accepted", "and (steps >= 1).all()", "and (steps >= 0).all()"),
    drift("NaN from a client that did not move", "if lengths > 0 else 0.0", ""),
    drift("dot product for cosine", "x @ y / lengths", "x @ y"),
    drift("one length forgotten", "lengths = _norm(x) * _norm(y)", "lengths = _norm(x) ** 2"),
    drift("sign of the cosine lost", "float(torch.clamp(x @ y / lengths, -1, 1))", "abs(float(x @ y / lengths))"),
    drift("cosines summed in single precision", "x, y = x.double(), y.double()", "x, y = x.float(), y.float()"),
    drift("lengths summed in single precision", "dtype=torch.float64)", "dtype=torch.float32)"),
    drift("layers look at the whole vector", "direction[layout[name]])", "direction[: deltas[:, layout[name]].shape[1]])"),
    drift("a layer for all", "cosines(deltas[:, layout[name]],", "cosines(deltas[:, layout[layout.names[0]]],"),
    drift("cosine of the delta for that of the parameters", "_cosine(w.double() + delta, w)", "_cosine(delta, w)"),
    drift("delta subtracted from the parameters", "_cosine(w.double() + delta, w)", "_cosine(w.double() - delta, w)"),
    drift("divergent steps accepted", "if not 0 < lr < 2 / a.max():", "if not 0 < lr:"),
    drift("weights that do not sum to 1 accepted", "or abs(p.sum() - 1) > 1e-6", ""),
    drift("fractions of steps accepted", 'H.dtype.kind not in "iu" or', ""),
    mutant("FedNova without division", "aggregate.py", "weights = p / H * np.sum(p * H)", "weights = p", "test_drift.py"),
    mutant("FedNova multiplies", "aggregate.py", "weights = p / H *", "weights = p * H *", "test_drift.py"),
    mutant("FedNova's round too short", "aggregate.py", "p / H * np.sum(p * H)", "p / H", "test_drift.py"),
    mutant("FedNova ignores sizes", "aggregate.py", "p = normalized(p)", "p = normalized(np.ones(len(p)))", "test_drift.py"),
    mutant("steps of dropped clients counted", "federation.py",
           "steps=np.array([report.result.steps for report in used], dtype=np.int64),",
           "steps=np.array([report.result.steps if report.result else 0 for report in reports], dtype=np.int64),", "test_drift.py"),
    mutant("watch: rounds without state", "watch.py", "state, line = play_round(", "_, line = play_round(", "test_watch.py"),
    mutant("watch: the aggregator behind is another", "watch.py", "self.aggregate.combine(ctx, deltas)",
           "__import__('fedlib.aggregate').aggregate.WeightedMean().combine(ctx, deltas)", "test_watch.py"),
    mutant("watch: the model after for the one before", "watch.py", "yield Seen(w, *onlooker.seen,", "yield Seen(state.w, *onlooker.seen,", "test_watch.py"),
    mutant("watch: skipped rounds shown", "watch.py", 'if "skipped" not in line:', "if True:", "test_watch.py"),
    mutant("watch: another seed", "watch.py", "play_round(task, method, alone, seed, state)", "play_round(task, method, alone, 0, state)", "test_watch.py"),
    mutant("watch: nothing refused", "watch.py", "    validate(method, task)\n", "", "test_watch.py"),
    check("simulation untested", 'answer.expect(answer.close(got, wanted), "agrees with simulation", hint)', "pass"),
    check("schedule's bias unnoticed", "np.max(np.abs(np.array(ends) - 0.8)) <= 5e-3", "True"),
    check("schedule's start unnoticed", 'answer.expect(spread <= 5e-3, "where', 'answer.expect(True, "where'),
    check("one start only", "starts, ends = (20.0, 0.0, -3.0), []", "starts, ends = (0.8, 0.8, 0.8), []"),
    check("shift of w unnoticed", "np.allclose(got, shifted, atol=10 * answer.tolerance)", "True"),
    check("small deltas untested", "np.allclose(small, got, atol=max(1e-4, answer.tolerance))", "True"),
    check("a still client may score anything", "got[3] == 0 and", ""),
    check("opposite clients may score anything", "not got.any(),", "True,"),
    check("proportion untested", 'answer.expect(answer.close(got, wanted), "the weights are in', 'answer.expect(True, "the weights are in'),
]  # fmt: skip
