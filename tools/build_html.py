"""Mirror the prose beside the executed notebooks and build the strict HTML: build_html.py SCALE."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml
from common import build_folder, digest, files_below, parse_scale, up_to_date, write_stamp


def mirror(src):
    """Make ``src`` hold exactly what Jupyter Book reads: config, contents, prose, executed notebooks, statics."""
    sources = [Path("_config.yml"), Path("_toc.yml"), *files_below("book")]
    for path in sources:
        copy_if_changed(path, src / path)
    wanted = {src / path for path in sources} | {src / path for path in Path("notebooks").glob("*.ipynb")}
    for path in [*files_below(src / "book"), *files_below(src / "notebooks")]:
        if path not in wanted and not {"_generated", "mathjax"} & set(path.parts):
            path.unlink()
    first_figure(src / "notebooks" / "01_weighted_objective.ipynb", src / "book" / "_generated" / "first_figure.html")
    mathjax = Path(find_spec("mathjax").submodule_search_locations[0]) / "static" / "mathjax" / "es5"
    # Not in src/_static: Jupyter Book would load every script it finds there on every page.
    if not (src / "book" / "_static" / "mathjax").exists():
        shutil.copytree(mathjax, src / "book" / "_static" / "mathjax")


def copy_if_changed(source, target):
    write_if_changed(source.read_bytes(), target)


def write_if_changed(content, target):
    if not (target.exists() and target.read_bytes() == content):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def first_figure(chapter, target):
    """Put the first slider figure of a chapter on the book's first page, where it is the same figure."""
    if not chapter.exists():
        return
    outputs = [output for cell in json.loads(chapter.read_text())["cells"] for output in cell.get("outputs", [])]
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    write_if_changed(next(html for html in pages if "fed-slider" in html).encode(), target)


# The address of the whole book leads to its first page. Jupyter Book's own page for that names no icon, so a browser
# asks the server for one that is not there.
FIRST_ADDRESS = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<link rel="icon" href="_static/favicon.svg">
<meta http-equiv="refresh" content="0; url=book/index.html">
<a href="book/index.html">{title}</a>
</html>
"""


def build(src, out):
    """Build the pages with every warning an error, and leave nothing that looks finished if one occurred."""
    # From nothing each time, in a few seconds: an incremental build overlooks style sheets and keeps removed pages.
    shutil.rmtree(out / "_build", ignore_errors=True)
    program = Path(sys.executable).with_name("jupyter-book")
    options = ["--path-output", out, "-W", "-n", "--keep-going", "-q"]
    result = subprocess.run([program, "build", src, *options], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{result.stdout}{result.stderr}\nThe book was not built: mend the warnings above.")


def main(scale):
    folder = build_folder(parse_scale(scale))
    src, page = folder / "src", folder / "_build" / "html" / "index.html"
    mirror(src)
    stamp = folder / "stamps" / "html"
    wanted = digest([path for path in files_below(src) if "mathjax" not in path.parts] + [Path("requirements.txt")])
    if not up_to_date(stamp, wanted, page):
        # A failed build leaves pages behind, and the stamp of an earlier one must not vouch for them.
        stamp.unlink(missing_ok=True)
        build(src, folder)
        page.write_text(FIRST_ADDRESS.format(title=yaml.safe_load(Path("_config.yml").read_text())["title"]))
        write_stamp(stamp, wanted)
    print(f"The book is in {page}: open it in a browser, or serve it with\n"
          f"  {sys.executable} -m http.server --bind 127.0.0.1 --directory {page.parent}")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
