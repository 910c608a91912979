"""Measure the pages of `--html`: their size, and the time that it takes to write them.

python benchmarks/page.py                  a generated trace of 500 MB, a million complete events
python benchmarks/page.py TRACE [TRACE]    `show` of your traces, and `diff` of the first two
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from read import make
from rich.console import Console
from rich.table import Table


def main() -> None:
    """Print a table of pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--size", type=int, default=500, help="MB of the generated trace")
    options = parser.parse_args()
    traces = options.traces or [make(Path(gettempdir()), options.size, "decimal")]
    commands = [["show", str(trace)] for trace in traces]
    if len(traces) > 1:
        commands.append(["diff", *map(str, traces[:2])])
    table = Table(title="Pages of --html", title_justify="left", box=None)
    table.add_column("command")
    for heading in ("page MB", "CPU s", "peak MB"):
        table.add_column(heading, justify="right")
    with TemporaryDirectory(prefix="traceq-") as folder:
        for words in commands:
            table.add_row(" ".join(Path(word).name for word in words), *_measured(words, Path(folder) / "page.html"))
    Console(width=120, highlight=False).print(table)


def _measured(words: list[str], page: Path) -> tuple[str, str, str]:
    command = [sys.executable, "-m", "traceq", *words, "--html", str(page)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return f"{page.stat().st_size / 1e6:.2f}", f"{used.ru_utime + used.ru_stime:.1f}", f"{used.ru_maxrss / 1e3:.0f}"


if __name__ == "__main__":
    main()
