"""The planted mistakes of similarity weighting; ``tests/mutants.py`` lists them with all others."""

from mutants_core import mutant

LIBRARY, CHECK = ("similarity.py", "test_similarity.py"), ("check/chapter07.py", "test_check07.py")


def similarity(name, old, new):
    return mutant(name, LIBRARY[0], old, new, LIBRARY[1])


def check(name, old, new):
    return mutant(name, CHECK[0], old, new, CHECK[1])


MUTANTS = [
    # cosines
    similarity("dot product for cosine", "lengths = np.sqrt(own) * np.sqrt(other)", "lengths = np.ones_like(own)"),
    similarity("length of the mean ignored", "np.sqrt(own) * np.sqrt(other)", "np.sqrt(own) * np.sqrt(own)"),
    similarity("zero delta is NaN", "out=np.zeros_like(dots), where=lengths > 0", "out=np.zeros_like(dots)"),
    similarity("mean in float32", "mean = torch.zeros(rows.shape[1], dtype=torch.float64,", "mean = torch.zeros(rows.shape[1],"),
    similarity("dots in float32", "row = row.double()", "row, mean = row.float(), mean.float()"),
    similarity("not clipped", ", -1, 1)", ", -np.inf, np.inf)"),
    similarity("mean ignores sizes", "mean.add_(row, alpha=float(weight))", "mean.add_(row, alpha=1 / len(rows))"),
    similarity("others contain the client", 'if against == "others" else mean', 'if against == "nobody" else mean'),
    similarity("others lose the whole delta", "mean - float(weights[k]) * row", "mean - row"),
    similarity("delta forgotten beside the parameters", "mean.add_(w[part])", "mean.copy_(w[part])"),
    similarity("only the last part is compared", "dots[k] += float(row @ reference)", "dots[k] = float(row @ reference)"),
    similarity("lengths of the last part only", "own[k] += float(row @ row)", "own[k] = float(row @ row)"),
    # softmax
    similarity("overflow at small tau", "np.exp(np.minimum(scores - scores[base > 0].max(), 0) / tau)", "np.exp(scores / tau)"),
    similarity("divided before subtracting", "np.minimum(scores - scores[base > 0].max(), 0) / tau", "(scores / tau) - (scores / tau)[base > 0].max()"),
    similarity("the largest score of a skipped client", "scores[base > 0].max()", "scores.max()"),
    similarity("times tau", ".max(), 0) / tau)", ".max(), 0) * tau)"),
    similarity("disagreement rewarded", "scores - scores[base > 0].max()", "scores[base > 0].min() - scores"),
    similarity("weights vanish like those of skipped clients", "base * np.maximum(factor, np.finfo(float).tiny)", "base * factor"),
    similarity("sizes forgotten in the softmax", "base * np.maximum(factor", "(base > 0) * np.maximum(factor"),
    similarity("infinite tau", "if not 0 < tau < math.inf:", "if not tau > 0:"),
    similarity("scores not checked", "or not np.isfinite(scores).all():", "or False:"),
    # the aggregator
    similarity("sizes always count", "if self.sizes else np.ones(len(deltas))", "if True else np.ones(len(deltas))"),
    similarity("sizes of the first clients", "ctx.weights[ctx.clients] if", "ctx.weights[: len(deltas)] if"),
    similarity("silent clients are never skipped", 'if self.silent == "skip" and', 'if self.silent == "drop" and'),
    similarity("silent clients are always skipped", 'if self.silent == "skip" and not quiet.all():', "if not quiet.all():"),
    similarity("nobody is left when all are silent", 'if self.silent == "skip" and not quiet.all():', 'if self.silent == "skip":'),
    similarity("a hair's direction counts", "np.where(quiet, 0.0, cosines(", "np.where(False, 0.0, cosines("),
    similarity("absolute floor", "limit = floor * float(w.double().norm())", "limit = floor"),
    similarity("floor below equality", "<= limit", "< limit"),
    similarity("only exact zeros are silent", "limit = floor * float(w.double().norm())", "limit = 0.0"),
    similarity("layers ignored", "if self.layers is None else", "if True else"),
    similarity("a layer by the start of its name", 'name.startswith(f"{layer}.")', "name.startswith(layer)"),
    similarity("bias forgotten", 'name == layer or name.startswith(f"{layer}.")', 'name == layer or name == f"{layer}.weight"'),
    similarity("unknown layer is nobody's", "        if not names:\n", "        if False:\n"),
    similarity("one layer's name as letters", "not isinstance(self.layers, (tuple, list)) or not self.layers", "not self.layers"),
    similarity("any choice accepted", "if getattr(self, name) not in choices:", "if False:"),
    mutant(
        "the aggregator sees the model of another round", "federation.py", "seed, state.t, drawn, state.w)",
        "seed, state.t, drawn, model.theta.clone())", "test_similarity.py",
    ),
    # counting
    similarity("effective number is inverted", "float(1 / np.sum(normalized(p) ** 2))", "float(np.sum(normalized(p) ** 2))"),
    similarity("effective number of raw weights", "np.sum(normalized(p) ** 2)", "np.sum(np.asarray(p) ** 2)"),
    similarity("marginalized by the weight itself", "return len(p) * normalized(p) < threshold", "return normalized(p) < threshold"),
    # checks
    similarity("NaN has cosine zero", "if broken := np.flatnonzero(~np.isfinite(own + other + dots)).tolist():", "if broken := []:"),
    similarity("any reference accepted", "    if against not in AGAINST:", "    if False:"),
    similarity("parameters without a model", 'if against == "parameters" and w is None:', "if False:"),
    check("cancelling deltas untested", "answer.close(opposite, 0.5),", "True,"),
    check("orthogonal deltas untested", "answer.close(orthogonal, 1 / 30),", "True,"),
    check("cancelling others untested", "answer.close(cancel[0], 0),", "True,"),
    check("the floor's norm untested", "answer.close(close_by, np.array([0, 20, 70]) / 90),", "True,"),
    check("no large temperature", "for tau in (1.0, 0.7, 2.0, 0.2, 5.0):", "for tau in (1.0, 0.7, 2.0, 0.2):"),
    check("weights in order only", ", (np.array([0.51, 0.11, 0.38]), 0.7))", ")"),
    check("scale unnoticed", "answer.close(scaled, got),", "True,"),
    check("overflow hint lost", '"Overflow at τ = 0.001: exp(1000)', '"Look again: exp(1000)'),
    check("ties unnoticed", "np.allclose(tied, [0.25, 0, 0.75], atol=1e-3)", "True"),
    check("NaN of a silent client unexplained", '"A client that did not move has no direction: 0/0', '"Something is not finite: 0/0'),
    check("agreement with oneself unnoticed", "answer.close(eye, 0)", "answer.close(eye, 0) or True"),
    check("identical rows untested", "answer.close(alike, 1)", "True"),
    check("sizes of the others untested", "answer.close(got, right),\n        \"it is the cosine", "True,\n        \"it is the cosine"),
    check("one threshold only", "(p, 0.3), (p, 0.7),", "(p, 0.3), (p, 0.3),"),
    check("hidden skip accepted", 'answer.close(weights, [0, 1]), "a skipped client', 'True, "a skipped client'),
    check("units untested", "for scale in (1.0, 1e4, 1e-4):", "for scale in (1.0,):"),
    check("short deltas may be skipped", 'answer.close(ask(small, sizes, w, "skip")[1], share)', "True"),
    check("one temperature only", "for tau in (1.0, 0.7, 2.0, 0.2, 5.0):", "for tau in (1.0,):"),
    check("points of rest accepted", "answer.close(got, right),\n            \"the two points", "True,\n            \"the two points"),
]
