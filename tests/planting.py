"""How a chapter's list of planted mistakes is written."""


def mutants(file, *tests, **planted):
    """Return the mistakes ``name=(old, new)`` in ``fedlib/file``, each of which one of ``tests`` has to notice."""
    return [
        {"name": name.replace("_", " "), "file": f"fedlib/{file}", "old": old, "new": new,
         "tests": [f"tests/{test}" for test in tests]}
        for name, (old, new) in planted.items()
    ]  # fmt: skip
