"""Measure time and memory of every notebook, alone on the machine, and commit them as a record: timings.py SCALE."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from common import parse_scale
from execute import execute

RECORD = Path("fedlib/records/timings.json")


def measure(path, scale):
    """Execute one notebook in a process of its own; return seconds and the peak memory of its kernel in MB."""
    import resource

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        execute(path, Path(folder) / path.name, scale)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB, but bytes on macOS
    return {"seconds": round(seconds, 1), "peak_mb": round(peak / (2**20 if sys.platform == "darwin" else 2**10))}


def main(scale):
    record = json.loads(RECORD.read_text())
    for path in sorted(Path("notebooks").glob("*.ipynb")):
        command = [sys.executable, __file__, "--one", str(path), scale]
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        record["notebooks"].setdefault(path.stem, {})[scale] = result
        print(path, scale, result, flush=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    record |= {
        "command": f"make timings SCALE={scale}",
        "machine": f"{cores} cores of {processor()}",
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(json.dumps(measure(Path(sys.argv[2]), sys.argv[3])))
    else:
        main(parse_scale(sys.argv[1]))
