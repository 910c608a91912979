"""Measure the time to export a trace for the Perfetto UI, and the size of the result.

    python benchmarks/export.py                 a generated trace of 500 MB, a million events
    python benchmarks/export.py TRACE           your trace

Times are wall time of the whole command, including start-up and reading, and of its parts in one process; events are
those of the trace.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from read import make
from rich.console import Console
from rich.table import Table

import traceq
from traceq.analysis.registry import sheet
from traceq.commands._output import open_replacing
from traceq.renderers.perfetto.exports import write_perfetto
from traceq.renderers.perfetto.worst_place import worst_place


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--size", type=int, default=500, help="MB of the generated trace")
    options = parser.parse_args()
    path = options.trace or make(Path(gettempdir()), options.size, "decimal")
    times: dict[str, float] = {}
    with TemporaryDirectory(prefix="traceq-") as folder:
        command = ["-m", "traceq", "export", str(path), "--to", "perfetto", "-o", f"{folder}/whole.pftrace.gz"]
        with timed(times, "traceq export, the whole command"):
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
        with timed(times, "of which: read"):
            run = traceq.read(path)
        with timed(times, "analyse"):
            findings = sheet(run).findings
        for suffix in ("", ".gz"):
            target = Path(folder) / f"part.pftrace{suffix}"
            with timed(times, f"write{' and pack' if suffix else ''}"), open_replacing(target) as file:
                write_perfetto(run, findings, file)
        with timed(times, "the worst place"):
            worst_place(run, findings)
        num = sum(len(trace.events) for trace in run.traces)
        plain, packed = ((Path(folder) / f"part.pftrace{suffix}").stat().st_size / num for suffix in ("", ".gz"))
    table = Table(title=f"{num:,} events, {plain:.1f} bytes each, packed {packed:.1f}", title_justify="left")
    table.add_column("part")
    table.add_column("s", justify="right")
    for part, seconds in times.items():
        table.add_row(part, f"{seconds:.2f}")
    Console(width=100).print(table)


@contextmanager
def timed(times: dict[str, float], part: str) -> Iterator[None]:
    """Store the wall time of the block in seconds under `part`."""
    start = time.perf_counter()
    yield
    times[part] = time.perf_counter() - start


if __name__ == "__main__":
    main()
