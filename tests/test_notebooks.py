"""The form of every chapter, and what its execution left behind."""

import ast
import contextlib
import io
import json
import os
import re
import sys

import pytest
from project import (
    BADGE,
    BUILT,
    NOTEBOOKS,
    PROJECT,
    REPOSITORY,
    ROOT,
    between_chapters,
    colab_address,
    prose,
    read,
    source,
    tagged,
    tags,
)

SOLUTION_TAGS = {"solution", "hide-cell"}
# What a tag promises about the built page, and so which tag of the book it needs.
BOOK_TAG = {"setup": "hide-input", "sentence": "remove-input", "solution": "hide-cell"}
HEADINGS = ["Where people go wrong", "What you now know", "Further reading"]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return read(path)


@pytest.fixture
def executed(path):
    output = BUILT / "src" / "notebooks" / path.name
    assert output.exists(), f"{path.name} was not executed: run `make book` first"
    return read(output)


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def exercises(notebook):
    """Return (stub, check, solution) for each exercise, in order."""
    return list(zip(*(tagged(notebook, tag) for tag in ("exercise", "check", "solution")), strict=True))


def names_defined(code):
    """Return the names a cell binds at its top level."""
    names = set()
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {
                n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return names


def names_used(code):
    return {
        n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


# Source notebooks ------------------------------------------------------------------------------------------


def test_there_are_notebooks_and_they_are_numbered():
    assert NOTEBOOKS
    assert all(re.fullmatch(r"\d\d[a-z]?_[a-z0-9_]+", path.stem) for path in NOTEBOOKS)


def test_no_outputs_are_committed(notebook):
    for cell in code_cells(notebook):
        assert cell["outputs"] == [] and cell["execution_count"] is None
    assert "papermill" not in notebook["metadata"] and "widgets" not in notebook["metadata"]


def test_cells_have_unique_ids_and_valid_form(path, notebook):
    import nbformat

    nbformat.validate(nbformat.read(path, as_version=4))
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


def test_the_first_cell_has_the_title_and_the_badge_of_this_very_file(path, notebook):
    first = source(notebook["cells"][0])
    number = path.stem.split("_")[0].lstrip("0")
    assert re.match(rf"# {number} · \S", first)
    assert re.findall(r"\[!\[([^\]]+)\]\(([^)]+)\)\]\(([^)]+)\)", first) == [
        ("Open in Colab", BADGE, colab_address(path))
    ]
    assert prose(notebook).count("colab-badge") == 1
    assert len(re.findall(r"^# ", prose(notebook), flags=re.M)) == 1, "one title a page"


def test_the_setup_cell_is_the_second_and_the_same_everywhere(path, notebook):
    (setup,) = tagged(notebook, "setup")
    assert notebook["cells"][1] is setup
    one_call = re.compile(r'^notebook\.setup\(("[\w-]+"(, "[\w-]+")*)?\)$', flags=re.M)
    assert len(one_call.findall(source(setup))) == 1 and source(setup).rstrip().endswith(")")
    others = [source(cell) for other in NOTEBOOKS for cell in tagged(read(other), "setup")]
    assert {one_call.sub("", other) for other in others} == {one_call.sub("", source(setup))}
    assert f'"{REPOSITORY}"' in source(setup) and f"@v{PROJECT['version']}" in source(setup)


def test_the_parameters_cell_sets_the_quick_scale(notebook):
    (parameters,) = tagged(notebook, "parameters")
    assert names_defined(source(parameters)) == {"SCALE"}
    assert re.match(r'SCALE = "quick"', source(parameters))
    assert notebook["cells"][2] is parameters


def test_every_number_that_depends_on_the_scale_is_in_one_place(path, notebook):
    code = [source(cell) for cell in code_cells(notebook) if "parameters" not in tags(cell)]
    assert sum("SCALE" in names_used(cell) for cell in code) == (not between_chapters(path))
    assert sum(cell.count("notebook.scale(") for cell in code) == (not between_chapters(path))


def test_the_cost_of_the_page_is_stated_from_its_own_record(path, notebook):
    assert re.findall(r'notebook\.cost\("(.*?)"\)', "\n".join(map(source, code_cells(notebook)))) == [
        path.stem
    ]


def test_markdown_is_plain(notebook):
    text = prose(notebook)
    assert not re.search(r"^\s*(`{3,}|~{3,}|:{3,})\s*\{", text, flags=re.M), (
        "a directive, which Colab shows raw"
    )
    assert not re.search(r"^\s*:{3,}", text, flags=re.M)
    assert not re.search(r"(?<!\$)\{[a-z:]+\}`", text), "a role, which Colab shows raw"
    assert not re.search(r"^\(\w[\w-]*\)=$", text, flags=re.M), "a target, which Colab shows raw"
    # Raw HTML would look different in each of the three places where a notebook is read.
    assert not re.search(r"</?(div|span|img|a|p|br|details|table|center|font)\b", text)


def test_formulas_are_closed(notebook):
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = re.sub(r"`[^`]*`|```.*?```", "", source(cell), flags=re.S).replace(r"\$", "")
            assert text.count("$$") % 2 == 0
            assert text.replace("$$", "").count("$") % 2 == 0


def test_headings_are_there_and_in_order(notebook):
    headings = re.findall(r"^(#+) (.+)$", prose(notebook), flags=re.M)
    levels = [len(marks) for marks, _ in headings]
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False)), (
        "a level is skipped"
    )
    second = [title for marks, title in headings if marks == "##"]
    assert [title for title in second if title in HEADINGS] == HEADINGS
    assert second[-1] == HEADINGS[-1]
    assert len({title for _, title in headings}) == len(headings), "two headings with the same anchor"


def test_a_page_says_what_it_is_for_and_what_it_needs(notebook):
    first = source(notebook["cells"][0])
    assert "After this chapter you can" in first
    assert re.search(r"^You need ", first, flags=re.M)


def test_links_are_well_formed(notebook):
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]*)\)", prose(notebook))
    for link in links:
        if link.startswith("http"):
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(/[^\s<>]*)?", link), link
        else:
            target, _, anchor = link.partition("#")
            assert link and (not target or (ROOT / "notebooks" / target).exists()), link
    assert not re.search(r"\]\s+\(http|\]\(\s|\(\)", prose(notebook))
    further = prose(notebook).partition("## Further reading")[2]
    items = re.findall(r"^- (.*)$", further, flags=re.M)
    assert items and all("](https://" in item for item in items), "a reference without a link"


def test_tags_are_known_and_have_what_the_book_needs(notebook):
    known = {
        "setup",
        "parameters",
        "exercise",
        "check",
        "solution",
        "sentence",
        "hide-input",
        "hide-cell",
        "remove-input",
        "hide-output",
    }
    for cell in notebook["cells"]:
        assert set(tags(cell)) <= known, tags(cell)
        for tag, needed in BOOK_TAG.items():
            assert tag not in tags(cell) or needed in tags(cell), f"{tag} without {needed}"
        if {"hide-input", "hide-cell", "remove-input"} & set(tags(cell)):
            # The same is folded away in JupyterLab and in Colab, where it needs a title to be opened by.
            assert cell["metadata"].get("jupyter", {}).get("source_hidden") is True, source(cell)[:60]
            assert cell["metadata"].get("cellView") == "form"
            assert re.match(r"#@title \S", source(cell))


def test_cells_are_short_and_lines_fit(notebook):
    for cell in code_cells(notebook):
        shown = not {"hide-input", "hide-cell", "remove-input"} & set(tags(cell))
        lines = [line for line in source(cell).splitlines() if line.strip()]
        assert not shown or len(lines) <= 30, f"one idea a cell: {lines[0]}"
        assert not shown or max(map(len, lines), default=0) <= 88, max(lines, key=len)
        assert not re.search(r"^\s*[!%]", source(cell), flags=re.M), (
            "shell and magic lines do not run everywhere"
        )
        if not tags(cell) or "exercise" not in tags(cell):
            ast.parse(source(cell))


def test_figures_have_alternative_text(notebook):
    for cell in code_cells(notebook):
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("plots.show", "plots.slider"):
                keywords = {keyword.arg: keyword.value for keyword in node.keywords}
                assert len(ast.unparse(keywords["alt"])) > 40, "say what the picture shows"
        assert "plt.show" not in source(cell)


def test_results_come_from_the_code(notebook):
    """Each sentence that a cell computes holds a computed number, and the others have one to compute."""
    for cell in tagged(notebook, "sentence"):
        calls = [n for n in ast.walk(ast.parse(source(cell))) if isinstance(n, ast.Call)]
        texts = [n for n in calls if ast.unparse(n.func) in ("show.text", "show.table")]
        assert texts, source(cell)
        for call in texts:
            assert any(not isinstance(n, (ast.Constant, ast.JoinedStr)) for n in ast.walk(call.args[0])), (
                source(cell)
            )


# Exercises -------------------------------------------------------------------------------------------------


def test_there_are_three_to_five_exercises(path, notebook):
    found = exercises(notebook)
    if between_chapters(path):
        assert not found
        return
    assert 3 <= len(found) <= 5
    number = path.stem.split("_")[0].lstrip("0")
    titles = re.findall(r"^### Exercise (\S+): \S", prose(notebook), flags=re.M)
    assert titles == [f"{number}.{i}" for i in range(1, len(found) + 1)]
    assert prose(notebook).count("*Task.*") == prose(notebook).count("*Question.*") == len(found)


def test_stub_check_and_solution_stand_together(notebook):
    cells = notebook["cells"]
    for i, (stub, check, solution) in enumerate(exercises(notebook), 1):
        at = cells.index(stub)
        assert cells[at + 1] is check and cells[at + 2] is solution
        assert re.search(rf"^### Exercise \d+[a-z]?\.{i}: ", source(cells[at - 1]), flags=re.M)
        assert set(tags(solution)) >= SOLUTION_TAGS
        assert solution["metadata"]["jupyter"]["source_hidden"] is True
        assert solution["metadata"]["cellView"] == "form"
        assert re.match(rf"#@title Solution \d+[a-z]?\.{i}\n", source(solution))
        # A cell's last line shows the verdict; the solution's is that of the reader's own function.
        (name,) = re.findall(r"^check\.(\w+)\((\w+)\)$", source(check), flags=re.M)
        assert name[0] == name[1] and f"def {name[1]}(" in source(stub)
        assert source(solution).rstrip().endswith(f"check.{name[0]}({name[1]}_solution)")
        assert re.search(r"^ +\.\.\.$", source(stub), flags=re.M), "a stub holds ... and nothing more"
        assert re.search(r"^# The question: ", source(solution), flags=re.M), "the question is answered too"


def test_no_later_cell_needs_an_exercise(notebook):
    leaves, before = {"exercise", "check", "solution"}, set()
    given = set().union(
        *(names_defined(source(c)) for c in code_cells(notebook) if not leaves & set(tags(c)))
    )
    for cell in code_cells(notebook):
        if leaves & set(tags(cell)):
            replaced = names_defined(source(cell)) & given - imported(source(cell))
            assert not replaced, f"{replaced} means one thing in the chapter and another in an exercise"
            before |= names_defined(source(cell))
        else:
            leaked = before & names_used(source(cell)) - given
            assert not leaked, f"{leaked} comes from an exercise and is used in:\n{source(cell)[:200]}"


def imported(code):
    nodes = [node for node in ast.parse(code).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {(alias.asname or alias.name).split(".")[0] for node in nodes for alias in node.names}


def verdicts(notebook):
    """Run the exercises with only the chapter's imports and functions, and return each cell's last value.

    Nothing that the chapter computes is there, so this is quick, and an exercise that needs it fails.
    """
    leaves, scope = {"exercise", "check", "solution"}, {}
    cheap = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    for cell in code_cells(notebook):
        if not leaves & set(tags(cell)):
            body = [node for node in ast.parse(source(cell)).body if isinstance(node, cheap)]
            exec(compile(ast.Module(body, []), "chapter", "exec"), scope)
    for trio in exercises(notebook):
        for cell in trio:
            code = ast.parse(source(cell))
            last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
            exec(compile(code, "exercise", "exec"), scope)
            yield cell, last and eval(compile(ast.Expression(last.value), "exercise", "eval"), scope)


def test_solutions_pass_and_stubs_are_not_done_and_neither_prints(notebook):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        results = list(verdicts(notebook))
    assert printed.getvalue() == ""
    for cell, result in results:
        if "check" in tags(cell):
            assert result.status == "not done", result
        if "solution" in tags(cell):
            assert result.status == "passed", result


# Executed notebooks ----------------------------------------------------------------------------------------


def outputs(notebook):
    return [(cell, output) for cell in code_cells(notebook) for output in cell["outputs"]]


def text_of(output):
    parts = [output.get("text", ""), *output.get("data", {}).values(), *output.get("traceback", [])]
    return "\n".join("".join(part) if isinstance(part, list) else str(part) for part in parts if part)


def test_the_execution_is_of_this_source(path, notebook, executed):
    """`make book` runs before the tests; what it left must belong to what is there now."""
    sys.path.insert(0, str(ROOT / "tools"))
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        import execute

        assert (BUILT / "stamps" / path.stem).read_text() == execute.fingerprint(
            path.relative_to(ROOT), "quick"
        ), "something changed since `make book`: run it again"
    finally:
        os.chdir(here)
        sys.path.remove(str(ROOT / "tools"))
    ran = [source(cell) for cell in code_cells(executed) if "injected-parameters" not in tags(cell)]
    assert ran == [source(cell) for cell in code_cells(notebook)]


def test_every_cell_was_run_in_order(executed):
    counts = [cell["execution_count"] for cell in code_cells(executed)]
    assert counts == list(range(1, len(counts) + 1))


def test_the_scale_was_injected_and_stays_out_of_the_page(executed):
    (injected,) = tagged(executed, "injected-parameters")
    assert 'SCALE = "quick"' in source(injected) and "remove-cell" in tags(injected)


def test_there_are_no_errors_warnings_or_progress_bars_in_a_page(executed):
    for _, output in outputs(executed):
        assert output["output_type"] != "error", text_of(output)
        assert output.get("name") != "stderr", text_of(output)
        text = text_of(output)
        assert not re.search(r"\w*Warning\b", text), text[:300]
        assert not re.search(r"\d+%\|| it/s|it/s\]|\r", text), text[:300]
        assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
        if output["output_type"] == "execute_result" and "text/html" not in output["data"]:
            assert not re.search(r"<\S+ at 0x[0-9a-f]+>|\[<matplotlib", text), (
                f"a leftover value: {text[:100]}"
            )


def test_the_setup_cell_printed_one_line(executed):
    (setup,) = tagged(executed, "setup")
    (output,) = setup["outputs"]
    assert output["name"] == "stdout" and text_of(output).count("\n") == 1
    assert text_of(output).startswith(f"fedlib {PROJECT['version']} · Python ")
    assert "missing" not in text_of(output)


def test_the_verdict_of_every_exercise_is_in_the_page(executed):
    for stub, check, solution in exercises(executed):
        assert stub["outputs"] == []
        (verdict,) = check["outputs"]
        assert text_of(verdict).startswith("○") and "not done yet" in text_of(verdict)
        (verdict,) = solution["outputs"]
        assert text_of(verdict).startswith("✓")
        assert "text/markdown" in verdict["data"]


def test_sentences_are_prose(executed):
    for cell in tagged(executed, "sentence"):
        assert cell["outputs"]
        for output in cell["outputs"]:
            text = "".join(output["data"]["text/markdown"])
            assert not re.search(r"\bnan\b|\binf\b|np\.float|\{[a-z_]+\}|[+-]0\.0+\b(?!\d)e", text), text


def test_figures_are_described_and_scale_with_the_page(executed):
    for _, output in outputs(executed):
        html = "".join(output.get("data", {}).get("text/html", ""))
        if "fed-figure" in html:
            descriptions = re.findall(r'role="img" aria-label="([^"]*)"', html)
            assert descriptions and all(len(text) > 40 and "{" not in text for text in descriptions)
            assert re.search(r"<svg[^>]*aria-hidden", html)
        assert "image/png" not in output.get("data", {}), "figures are inline SVG: use plots.show"


def test_a_page_is_not_heavy(executed):
    assert len(json.dumps(executed)) < 3_000_000
