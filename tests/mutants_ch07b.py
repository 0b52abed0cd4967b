"""The planted mistakes of page 7b; ``tests/mutants.py`` lists them with all others."""

from planting import mutants

MUTANTS = [
    *mutants(
        "memory.py",
        "test_memory.py",
        mifa_prefers_the_old_delta=(
            "y = sent[k] if k in sent else ctx.last(k)",
            "y = sent[k] if k in sent and ctx.last(k) is None else ctx.last(k)",
        ),
        mifa_forgets_the_absent=("y = sent[k] if k in sent else ctx.last(k)", "y = sent.get(k)"),
        mifa_counts_the_never_heard=("(total / heard).float()", "total.float()"),
        mifa_weights_of_this_round_only=("p[ctx.clients] / heard", "p[ctx.clients] / p[ctx.clients].sum()"),
        mifa_in_float32=("dtype=torch.float64), 0.0", "dtype=torch.float16), 0.0"),
        fedvarp_without_the_gain=("gain = ctx.num_clients / len(ctx.drawn)", "gain = 1.0"),
        fedvarp_keeps_the_old_delta=("p[k] * (1 - gain * (k in sent))", "p[k]"),
        fedvarp_takes_the_old_delta_off_once=("p[k] * (1 - gain * (k in sent))", "p[k] * (1 - (k in sent))"),
        fedvarp_forgets_the_absent=("p[k] * (1 - gain * (k in sent))", "p[k] * (1 - gain) * (k in sent)"),
        fedvarp_with_equal_weights=("alpha=float(p[k] * gain)", "alpha=gain / ctx.num_clients"),
        fedvarp_weights=("gain * p[ctx.clients]", "p[ctx.clients]"),
    ),
    *mutants(
        "federation.py",
        "test_memory.py",
        the_server_never_remembers=('"aggregate": model.layout.size if _remembers(method) else 0', '"aggregate": 0'),
        the_server_always_remembers=('"aggregate": model.layout.size if _remembers(method) else 0', '"aggregate": model.layout.size'),
        the_old_delta_stays=('rows["aggregate"][report.client] = sent["delta"]', 'rows["aggregate"].setdefault(report.client, None)'),
        the_server_remembers_what_was_computed=(
            'rows["aggregate"][report.client] = sent["delta"]',
            'rows["aggregate"][report.client] = report.result.delta',
        ),
    ),
    *mutants("watch.py", "test_memory.py", the_onlooker_forgets=('getattr(self.aggregate, "remembers", False)', "False")),
    *mutants(
        "server.py",
        "test_server.py",
        the_last_model_is_delivered=('(state["total"] / state["weight"]).float() if', "w if"),
        the_mean_is_not_divided=('(state["total"] / state["weight"]).float()', 'state["total"].float()'),
        old_models_count_alike=('"weight": state["weight"] * self.decay + 1', '"weight": state["weight"] + 1'),
        models_are_not_forgotten=('state["total"] * self.decay + w', 'state["total"] + w'),
        the_mean_is_of_the_models_before=(
            '        w, inner = self.inner.step(inner, w, update)\n        new = {"total": state["total"] * self.decay + w,',
            '        old = w\n        w, inner = self.inner.step(inner, w, update)\n        new = {"total": state["total"] * self.decay + old,',
        ),
        the_inner_step_forgets=("self.inner.step(inner, w, update)", "self.inner.step(self.inner.prepare(w), w, update)"),
        the_mean_in_float32=("torch.zeros_like(w, dtype=torch.float64)\n        inner", "torch.zeros_like(w)\n        inner"),
        a_negative_decay=("if not 0 < self.decay <= 1:", "if not self.decay <= 1:"),
    ),
    *mutants(
        "federation.py",
        "test_server.py",
        the_mean_is_never_delivered=("return deliver(state.step, state.w) if deliver else state.w", "return state.w"),
    ),
    *mutants(
        "experiment.py",
        "test_server.py",
        the_last_model_is_measured=("evaluate(task, model, delivered(method, state), team)", "evaluate(task, model, state.w, team)"),
        the_last_model_is_returned=("    w = delivered(method, state)\n", "    w = state.w\n"),
    ),
]
