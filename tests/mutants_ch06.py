"""The planted mistakes of chapter 6; ``tests/mutants.py`` lists them with all others."""


def mutants(file, *tests, **planted):
    return [
        {"name": f"{name.replace('_', ' ')}", "file": f"fedlib/{file}", "old": old, "new": new,
         "tests": [f"tests/{test}" for test in tests]}
        for name, (old, new) in planted.items()
    ]  # fmt: skip


MUTANTS = [
    *mutants(
        "control.py",
        "test_control.py",
        scaffold_sign_flipped=('"bias": server["c"] - own}', '"bias": own - server["c"]}'),
        scaffold_without_c=('"bias": server["c"] - own}', '"bias": -own}'),
        control_starts_from_the_weights=(
            "own = torch.zeros_like(w) if row is None else row",
            "own = w.clone() if row is None else row",
        ),
        uniform_c=(
            "c.add_(change, alpha=float(p))",
            "c.add_(change, alpha=1 / len(ctx.weights))",
        ),
        c_divided_by_those_drawn=(
            "c.add_(change, alpha=float(p))",
            "c.add_(change, alpha=1 / len(ctx.clients))",
        ),
        c_renormalized=(
            "c.add_(change, alpha=float(p))",
            "c.add_(change, alpha=float(p / ctx.weights[ctx.clients].sum()))",
        ),
        c_replaced=('c = server["c"].clone()', 'c = torch.zeros_like(server["c"])'),
        c_overwritten_in_place=('c = server["c"].clone()', 'c = server["c"]'),
        new_control_in_place_of_its_change=(
            'change = change_sent(carry["c"], sent)\n        if change is None:\n            return None\n'
            '        carry["own"] = carry["own"] + change',
            'change = change_sent(carry["c"], sent)\n        if change is None:\n            return None\n'
            '        carry["own"] = change',
        ),
        steps_not_counted=("[result.steps * result.lr]", "[result.lr]"),
        lr_forgotten=("[result.steps * result.lr]", "[1.0 * result.steps]"),
        c_kept_in_the_renewal=("return -c - delta / length", "return -delta / length"),
        renewal_sign=("return -c - delta / length", "return -c + delta / length"),
        option_I_is_option_II=("if self.option == 1:\n            return message", "if False:\n            return message"),
        option_I_forgets_the_old=('carry["w"]) - carry["own"]}', 'carry["w"])}'),
        rows_from_what_was_computed=(
            'change = change_sent(carry["c"], sent)',
            'change = carry.setdefault("computed", change_sent(carry["c"], sent)).mul(1.001)',
        ),
        momentum_allowed=("plain_steps_only = True", "plain_steps_only = False"),
        renews_always=("if ctx.t % self.refresh_every:", "if False:"),
        rebuilds_nothing=("if self.rebuild:", "if False:"),
        rebuilt_full_gradient_allowed=("if self.rebuild and self.option == 1:", "if False:"),
        warm_start_ignored=("warm_start(self.start, ctx, w)", 'warm_start("zero", ctx, w)'),
        old_norms_reported=('_norm(carry["own"]) for', '_norm(carry["bias"]) for'),
    ),
    *mutants(
        "warmstart.py",
        "test_control.py",
        mean_start_unweighted=("alpha=float(ctx.weights[k])", "alpha=1 / len(clients)"),
        own_start_is_the_mean=('gradient if start == "own" else c', "c"),
        empty_clients_asked=("np.flatnonzero(ctx.weights)", "np.arange(len(ctx.weights))"),
    ),
    *mutants(
        "ema.py",
        "test_ema.py",
        readings_exchanged=('grad if self.reading == "raw" else corrected', 'corrected if self.reading == "raw" else grad'),
        ema_sign_flipped=('corrected = grad - carry["c"]', 'corrected = grad + carry["c"]'),
        ema_at_the_wrong_steps=('carry["step"] % self.refresh_every == 0', '(carry["step"] + 1) % self.refresh_every == 0'),
        ema_never_kept=("layout.size if self.kept else 0", "0"),
        ema_always_kept=("return layout.size if self.kept else 0", "return layout.size"),
        global_sign=("-messages", "messages"),
        global_uniform=("alpha=self.beta * float(p))", "alpha=self.beta / len(weights))"),
        global_length_ignored=('/ messages["length"]', "/ 1.0"),
        global_momentum_allowed=('return self.reading == "global"\n', "return False\n"),
        control_arm_too_slow=('carry["rate"] *= 1 - 2 * self.beta', 'carry["rate"] *= 1 - self.beta'),
        control_arm_goes_to_zero=('factor = (1 + carry["rate"]) / 2', 'factor = carry["rate"]'),
    ),
    *mutants(
        "prox.py",
        "test_ema.py",
        prox_follows_the_live_parameters=('theta - carry["w"]', "theta - theta"),
        prox_pushes=('theta - carry["w"]', 'carry["w"] - theta'),
        hopeless_pull_accepted=("local.lr * self.mu >= 2:", "local.lr * self.mu > 1e9:"),
        strong_pull_refused=("local.lr * self.mu >= 2:", "local.lr * self.mu >= 1:"),
    ),
    *mutants(
        "federation.py",
        "test_ema.py",
        "test_control.py",
        settings_not_checked=("    method.local.correction.check(method.local.at(0))\n", ""),
        norms_not_recorded=("line |= method.local.correction.describe", "method.local.correction.describe"),
    ),
    *mutants(
        "server.py",
        "test_server.py",
        momentum_against_the_update=("v = update.add(state", "v = (-update).add(state"),
        momentum_forgets=("alpha=self.momentum)", "alpha=0.0)"),
        adam_corrects_its_bias=("m = update.lerp(state", "m = update.mul(1 / (1 - self.beta1)).lerp(state"),
        adam_steps_backward=("value=self.lr)", "value=-self.lr)"),
        adam_starts_at_zero=("torch.full_like(w, self.epsilon**2)", "torch.zeros_like(w)"),
        adam_betas_exchanged=("square.lerp(v, self.beta2)", "square.lerp(v, self.beta1)"),
        yogi_sign=("torch.sign(v - square)", "torch.sign(square - v)"),
        yogi_is_adam=("square * torch.sign(v - square)", "(v - square)"),
    ),
    *mutants(
        "check/chapter06.py",
        "test_check06.py",
        renewal_hint_lost=("own - c - wanted / (num_batches * lr)", "np.zeros(4) + 77"),
        uniform_c_accepted=("wanted = p @ own", "wanted = c"),
        raw_recursion_accepted=("c = c + beta * (g - c - c)", "c = c + beta * (g - c)"),
        mu_unchecked=("gap <= limit,", "True,"),
        broadcast_is_free=("wanted = 4 * m * (sum(down) + sum(up))", "wanted = 4 * m * sum(up)"),
        second_vector_is_free=('("scaffold", [d, d], [d, d])', '("scaffold", [d, d], [d])'),
    ),
]
