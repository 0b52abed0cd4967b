"""Run one notebook with papermill, if anything it depends on changed: execute.py NOTEBOOK SCALE."""

import os
import sys
import time
from pathlib import Path

from common import build_folder, digest, files_below, parse_scale, up_to_date, write_stamp

from fedlib import notebook as course

BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
LOCAL_BADGE = "../book/_static/colab-badge.svg"


def fingerprint(path, scale):
    """Hash everything a page's outputs depend on: its source, the library, the pins, the scale, the data source."""
    return digest([path, Path("requirements.txt"), *files_below("fedlib")], scale, course.data_source())


def execute(path, output, scale):
    """Execute ``path`` at ``scale`` and write the result to ``output``, whole or not at all."""
    import nbformat
    import papermill

    # Two kernels side by side take one core each; a kernel alone keeps the machine.
    if "-j" in os.environ.get("MAKEFLAGS", ""):
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    # The book's own kernel, whatever other kernels the user has registered; and no progress bars in its pages.
    os.environ.update(JUPYTER_PREFER_ENV_PATH="1", FEDLIB_PROGRESS="0")
    os.environ["IPYTHONDIR"] = str(ipython_folder(Path("_build") / "ipython"))
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_suffix(".running.ipynb")
    papermill.execute_notebook(
        str(path), str(unfinished), parameters={"SCALE": scale}, kernel_name="python3",
        cwd=str(path.parent), progress_bar=sys.stderr.isatty(), stdout_file=None,
    )  # fmt: skip
    nbformat.write(for_the_book(nbformat.read(unfinished, as_version=4)), unfinished)
    unfinished.replace(output)


def ipython_folder(folder):
    """Return a folder of settings of its own: a user's start-up files must not reach the pages, nor notices the log."""
    profile = folder.resolve() / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40  # errors only\n")
    return folder.resolve()


def for_the_book(notebook):
    """Hide the cell papermill injected, and take the badge from the book's own folder."""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            cell.metadata["tags"] = [*tags, "remove-cell"]
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(BADGE, LOCAL_BADGE)
    return notebook


def main(path, scale):
    path, scale = Path(path), parse_scale(scale)
    output = build_folder(scale) / "src" / "notebooks" / path.name
    stamp = build_folder(scale) / "stamps" / path.stem
    wanted = fingerprint(path, scale)
    if up_to_date(stamp, wanted, output):
        return
    print(f"executing {path} (SCALE={scale}, data: {course.data_source()})", flush=True)
    start = time.perf_counter()
    execute(path, output, scale)
    write_stamp(stamp, wanted)
    print(f"executed {path} in {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
