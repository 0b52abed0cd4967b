"""The planted mistakes of the PyTorch core; ``tests/mutants.py`` lists them with all others."""


def mutant(name, file, old, new, *tests):
    return {
        "name": name,
        "file": f"fedlib/{file}",
        "old": old,
        "new": new,
        "tests": [f"tests/{test}" for test in tests],
    }


MUTANTS = [
    # flat
    mutant("gradients pile up", "flat.py", "        self.grad.zero_()\n", "", "test_flat.py"),
    mutant("load keeps the vector", "flat.py", "self.theta.copy_(w)", "self.theta.set_(w)", "test_flat.py"),
    mutant("buffers accepted", "flat.py", "if buffers:", "if False:", "test_flat.py"),
    mutant(
        "broken views unnoticed",
        "flat.py",
        "return tensor is not None and tensor.data_ptr() == view.data_ptr()",
        "return True or tensor.data_ptr() == view.data_ptr()",
        "test_flat.py",
    ),
    mutant(
        "layout shifted", "flat.py", "        start = stop\n", "        start = stop - 1\n", "test_flat.py"
    ),
    mutant(
        "NaN hides in the largest number",
        "flat.py",
        "in torch.aminmax(vector))",
        "in (vector[vector > 0].sum(),))",
        "test_flat.py",
    ),
    # store
    mutant(
        "one slot a row", "store.py", "self._slots[client][0] ^ 1", "self._slots[client][0]", "test_store.py"
    ),
    mutant(
        "visible before commit",
        "store.py",
        "        self._pending[client] = slot, zlib.crc32(row)",
        "        self._pending[client] = self._slots[client] = slot, zlib.crc32(row)",
        "test_store.py",
    ),
    mutant(
        "slots by client id",
        "store.py",
        "slot = 2 * self._allocated\n",
        "slot = 2 * client\n",
        "test_store.py",
    ),
    mutant(
        "newcomer overwrites",
        "store.py",
        "self._allocated = 1 + max(",
        "self._allocated = max(",
        "test_store.py",
    ),
    mutant("row checksum ignored", "store.py", "or zlib.crc32(row) != checksum", "", "test_store.py"),
    # models
    mutant(
        "global generator consumed",
        "models.py",
        "with torch.random.fork_rng(devices=[]):",
        "if True:",
        "test_models.py",
        "test_experiment.py::test_no_global_generator_is_read_or_changed",
    ),
    mutant(
        "no nonlinearity",
        "models.py",
        "self.pool(self.conv2(x)).relu()",
        "self.pool(self.conv2(x))",
        "test_models.py",
    ),
    # data and download
    mutant(
        "channels mixed up",
        "data.py",
        "reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)",
        "reshape(-1, 32, 32, 3)",
        "test_data.py",
    ),
    mutant(
        "wrong folder passes silently",
        "data.py",
        "    if folder:\n        raise",
        "    if False:\n        raise",
        "test_data.py",
    ),
    mutant(
        "held-out pictures stay in training",
        "data.py",
        "np.sort(order[num:])",
        "np.sort(order)",
        "test_data.py",
    ),
    mutant(
        "test shapes are training shapes",
        "data.py",
        'stream(seed, "toy", 1)',
        'stream(seed, "toy", 0)',
        "test_data.py",
    ),
    mutant(
        "labels beyond the classes",
        "data.py",
        "<= int(y.max()) < self.num_classes",
        "<= int(y.max())",
        "test_data.py",
    ),
    mutant("checksum ignored", "download.py", "if digest != sha256:", "if False:", "test_data.py"),
    mutant(
        "waits for a stalled server", "download.py", "timeout=STALL_SECONDS", "timeout=None", "test_data.py"
    ),
    mutant(
        "waits for a dripping server",
        "download.py",
        "if time.monotonic() > deadline:",
        "if False:",
        "test_data.py",
    ),
    mutant(
        "waits for a name server",
        "download.py",
        "thread.join(CONNECT_SECONDS)",
        "thread.join()",
        "test_data.py",
    ),
    mutant(
        "half a file gets its name",
        "files.py",
        "    finally:\n        with",
        "    finally:\n        os.replace(temporary, path)\n        with",
        "test_experiment.py",
        "test_data.py",
    ),
    # partition
    mutant(
        "empty clients",
        "partition.py",
        "if len(part) < self.min_size",
        "if len(part) < 0",
        "test_partition.py",
    ),
    mutant(
        "retries repeat the draw",
        "partition.py",
        '"partition", attempt)',
        '"partition", 0)',
        "test_partition.py",
    ),
    mutant(
        "repair takes from anyone",
        "cutting.py",
        "donor = np.argmax(sizes)",
        "donor = len(sizes) - 1",
        "test_partition.py",
    ),
    mutant(
        "cuts rounded",
        "cutting.py",
        "* len(indices)).astype(int)",
        "* len(indices)).round().astype(int)",
        "test_partition.py",
    ),
    mutant(
        "shards dealt in order",
        "partition.py",
        "dealt = rng.permutation(len(pieces))",
        "dealt = np.arange(len(pieces))",
        "test_partition.py",
    ),
    mutant(
        "client mixes ignore the number of classes",
        "partition.py",
        "self.alpha * len(pools) * prior",
        "self.alpha * prior",
        "test_partition.py",
    ),
    mutant(
        "exhausted pools stall",
        "cutting.py",
        "want = np.minimum(rng.multinomial(missing, mix / mix.sum()), left)",
        "want = rng.multinomial(missing, mix / mix.sum())",
        "test_partition.py",
    ),
    mutant(
        "alpha NaN accepted",
        "partition.py",
        "if not (np.isfinite(alpha) and alpha > 0):",
        "if alpha <= 0:",
        "test_partition.py",
    ),
    mutant(
        "rest forgotten",
        "partition.py",
        "return gather(cuts)[: self.num_clients]",
        "return gather(cuts)[:-1]",
        "test_partition.py",
    ),
    mutant(
        "absent classes lose their column",
        "heterogeneity.py",
        ", minlength=num_classes",
        "",
        "test_heterogeneity.py",
    ),
    mutant(
        "distance not weighted", "heterogeneity.py", ", weights=table.sum(1)", "", "test_heterogeneity.py"
    ),
    # local
    mutant(
        "momentum survives rounds",
        "local.py",
        "    velocity = torch.zeros_like(theta) if momentum else None",
        '    velocity = model.__dict__.setdefault("v", torch.zeros_like(theta))',
        "test_local.py",
    ),
    mutant(
        "clients train in sequence",
        "local.py",
        "    model.load(start)\n    velocity",
        "    velocity",
        "test_local.py",
        "test_federation.py",
    ),
    mutant(
        "last batch dropped",
        "local.py",
        "batches.extend(order.split(size))",
        "batches.extend(b for b in order.split(size) if len(b) == size)",
        "test_local.py",
    ),
    mutant(
        "same order every epoch",
        "local.py",
        "indices[rng.permutation(len(indices))]",
        "indices",
        "test_local.py",
    ),
    mutant(
        "weights instead of deltas",
        "local.py",
        "LocalResult(theta - start,",
        "LocalResult(theta.clone(),",
        "test_local.py",
    ),
    mutant(
        "correction ignored",
        "local.py",
        "step = correct(grad, theta, carry)",
        "step = grad",
        "test_local.py",
        "test_federation.py",
    ),
    mutant(
        "steps are epochs",
        "local.py",
        "len(batches), samples, lr",
        "settings.epochs, samples, lr",
        "test_local.py",
    ),
    mutant(
        "chunks of a gradient unweighted",
        "local.py",
        "alpha=len(part) / len(indices)",
        "alpha=1.0",
        "test_local.py",
    ),
    # aggregate, server, upload, selection
    mutant(
        "not renormalized",
        "aggregate.py",
        "weights = normalized(ctx.weights[ctx.clients])",
        "weights = ctx.weights[ctx.clients]",
        "test_aggregate.py",
        "test_federation.py",
    ),
    mutant(
        "weights of other clients",
        "aggregate.py",
        "normalized(ctx.weights[ctx.clients])",
        "normalized(ctx.weights[: len(deltas)])",
        "test_aggregate.py",
    ),
    mutant("N/m counts survivors", "aggregate.py", "len(ctx.drawn)", "len(ctx.clients)", "test_aggregate.py"),
    mutant("float32 sums", "aggregate.py", "dtype=torch.float64, ", "", "test_aggregate.py"),
    mutant("server overwrites w", "server.py", "w.add(update", "w.add_(update", "test_parts.py"),
    mutant(
        "bytes count entries",
        "upload.py",
        "array.numel() * array.element_size()",
        "array.numel()",
        "test_parts.py",
    ),
    mutant("drawn with replacement", "selection.py", "replace=False", "replace=True", "test_parts.py"),
    mutant("clients share a stream", "context.py", "(self.t, self.client)", "(self.t,)", "test_parts.py"),
    mutant(
        "rounds share batches", "context.py", "(self.t, self.client)", "(0, self.client)", "test_parts.py"
    ),
    mutant(
        "accuracy divides by classes", "evaluate.py", "r / n if n else None", "r / max(n, 1)", "test_parts.py"
    ),
    # federation
    mutant(
        "empty client trains",
        "client.py",
        "    if not task.sizes[ctx.client]:\n",
        "    if False:\n",
        "test_federation.py",
    ),
    mutant(
        "NaN reaches the mean",
        "client.py",
        "if not is_finite(vector)]",
        "if False]",
        "test_federation.py",
    ),
    mutant(
        "NaN model committed",
        "federation.py",
        "if not is_finite(w):",
        "if False:",
        "test_federation.py",
    ),
    mutant(
        "minimum ignored",
        "federation.py",
        "if len(used) < method.min_clients:",
        "if not used:",
        "test_federation.py",
    ),
    mutant(
        "rows of the wrong client",
        "federation.py",
        "sent = {name: matrix[k]",
        "sent = {name: matrix[-1 - k]",
        "test_federation.py",
    ),
    mutant(
        "rows kept from what was computed",
        "federation.py",
        "correction.keep(report.carry, sent)",
        "correction.keep(report.carry, correction.end(None, report.carry, report.result))",
        "test_federation.py",
    ),
    mutant(
        "server state never committed",
        "federation.py",
        "    server = method.local.correction.commit(ctx, state.server, messages)",
        "    server = state.server",
        "test_federation.py",
    ),
    mutant(
        "warm rows lost",
        "federation.py",
        '    _write_rows(rows.get("correction"), start_rows)\n',
        "",
        "test_federation.py",
    ),
    mutant(
        "client starts from w",
        "client.py",
        "local_sgd(settings, task, model, start, batches, carry,",
        "local_sgd(settings, task, model, w, batches, carry,",
        "test_federation.py",
    ),
    mutant("residuals lost", "federation.py", "= report.upload_row\n", "= None\n", "test_federation.py"),
    mutant(
        "broadcast state is free", "federation.py", " | {f\"server.{name}\": tensor for name, tensor in state.server.items()}", "", "test_federation.py"
    ),
    mutant(
        "momentum with control variates",
        "federation.py",
        "if method.local.momentum and method.local.correction.plain_steps_only:",
        "if False:",
        "test_federation.py",
    ),
    mutant(
        "output size unchecked",
        "federation.py",
        "if width != task.data.num_classes:",
        "if False:",
        "test_federation.py",
    ),
    # experiment and record
    mutant(
        "always from scratch",
        "experiment.py",
        "if records.is_empty(folder):",
        "if True:",
        "test_experiment.py",
    ),
    mutant(
        "torn line kept",
        "record.py",
        "            file.seek(self._size)\n            file.truncate()",
        "            file.seek(0, 2)",
        "test_experiment.py",
    ),
    mutant(
        "line damage unnoticed",
        "record.py",
        "if digest.hexdigest() != expected:",
        "if False:",
        "test_experiment.py",
    ),
    mutant(
        "foreign config accepted",
        "record.py",
        "if stored.get(name) != here[name]:",
        "if False:",
        "test_experiment.py",
    ),
    mutant(
        "checkpoint before its rows",
        "experiment.py",
        "store.index for name, store",
        "store.index[:0] for name, store",
        "test_experiment.py",
    ),
    mutant(
        "checkpoint written in place",
        "record.py",
        "    with atomic_file(path) as file:",
        '    with open(path, "wb") as file:',
        "test_experiment.py",
    ),
    mutant(
        "server state not recorded",
        "experiment.py",
        "for name, tensor in state.server.items()}",
        "for name, tensor in ()}",
        "test_experiment.py",
    ),
    mutant(
        "round counter restarts", "experiment.py", 'State(int(arrays["t"])', "State(0", "test_experiment.py"
    ),
    mutant(
        "fingerprint ignores owners",
        "experiment.py",
        '        digest.update(indices.tobytes() + b"|")\n',
        "        pass\n",
        "test_experiment.py",
    ),
    mutant(
        "evaluation off by one",
        "experiment.py",
        "state.t % evaluate_every == 0",
        "(state.t - 1) % evaluate_every == 0",
        "test_experiment.py",
    ),
]
