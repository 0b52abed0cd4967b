"""What several test modules share: where things are, and how a notebook is read."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "_build" / "quick"
HTML = BUILT / "_build" / "html"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = CONFIG["repository"]["url"]
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def read(notebook):
    return json.loads(Path(notebook).read_text(encoding="utf-8"))


def source(cell):
    return "".join(cell["source"])


def tags(cell):
    return cell["metadata"].get("tags", [])


def tagged(notebook, tag):
    return [cell for cell in notebook["cells"] if tag in tags(cell)]


def prose(notebook):
    """Return all Markdown of a notebook."""
    return "\n\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


def between_chapters(path):
    """Return whether a page stands between two chapters, as 07b does: it only shows records."""
    return re.match(r"\d\d[a-z]", path.stem) is not None


def colab_address(path):
    """Return the only address under which Colab finds this notebook."""
    owner_and_name = REPOSITORY.removeprefix("https://github.com/")
    branch = CONFIG["repository"]["branch"]
    return (
        f"https://colab.research.google.com/github/{owner_and_name}/blob/{branch}/notebooks/{Path(path).name}"
    )


def repository_files():
    """Return every file that is committed or is about to be, as paths relative to the root."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        )
        return sorted(name for name in listed if name and (ROOT / name).is_file())
    hidden = re.compile(
        r"(^|/)(\.git|\.venv|_build|__pycache__|[^/]*\.egg-info|\.[a-z]+_cache|\.hypothesis)(/|$)"
    )
    names = (str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())
    return sorted(name for name in names if not hidden.search(name))


def python(code, *arguments, **options):
    """Run code in a fresh interpreter, where nothing is imported yet."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)
