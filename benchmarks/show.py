"""Measure where the time of `traceq show` goes: start-up, the scan, every fact and every analysis.

    python benchmarks/show.py                          a generated trace of 500 MB, a million complete events
    python benchmarks/show.py TRACE [--events 1000000] your trace, repeated to that many events

Times of facts and analyses are CPU time of one process. `self`: without the facts that it uses, in one run of all;
`alone`: of this analysis and all facts that it needs, as with `--only`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import numpy as np
from read import make, peak_bytes
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from traceq.model import Events, Trace

_CAUSES = "diff: common graph and integral"
CHILD = "import sys; sys.path.insert(0, {here!r}); import show; show.child({path!r}, {events!r})"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import rich.console, rich.table'": ["-c", "import rich.console, rich.table"],
    "traceq --help": ["-m", "traceq", "--help"],
    "traceq show, 1 MB": ["-m", "traceq", "show", "SMALL"],
    "traceq show, {name}": ["-m", "traceq", "show", "LARGE"],
}


def main() -> None:
    """Print three tables."""
    options, console = _options(), Console(width=120, highlight=False)
    large = options.trace or make(options.folder, options.size, "decimal")
    small = make(options.folder, 1, "decimal")
    name = large.name if options.trace else f"{options.size} MB"
    console.print(_start_up(small, large, name, options.repeat))
    code = CHILD.format(here=str(Path(__file__).parent), path=str(large), events=options.events if options.trace else 0)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    for table in _where_it_goes(json.loads(done.stdout), large.stat().st_size, packed=large.suffix != ".json"):
        console.print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--events", type=int, default=1_000_000, help="complete events that TRACE is repeated to")
    parser.add_argument("--size", type=int, default=500, help="MB of the generated trace")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    return parser.parse_args()


# ---- start-up -----------------------------------------------------------------------------------------------------


def _start_up(small: Path, large: Path, name: str, repeat: int) -> Table:
    table = _table(f"Commands, medians of {repeat}", "wall s", "CPU s", "peak MB")
    for title, arguments in COMMANDS.items():
        paths = {"SMALL": str(small), "LARGE": str(large)}
        command = [sys.executable, *(paths.get(word, word) for word in arguments)]
        costs = [_cost(command) for _ in range(repeat + 1)][1:]
        wall, cpu, peak = (statistics.median(column) for column in zip(*costs, strict=True))
        table.add_row(title.format(name=name), f"{wall:.2f}", f"{cpu:.3f}", f"{peak / 1e6:.0f}")
    return table


def _cost(command: list[str]) -> tuple[float, float, int]:
    """(wall s, CPU s, peak bytes) of a command; its modules are compiled once, as an installed traceq's are."""
    start, environment = time.perf_counter(), dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, peak_bytes(usage)


# ---- facts and analyses -------------------------------------------------------------------------------------------


class Stopwatch:
    """Self time of nested calls: CPU time of each without the calls inside it."""

    def __init__(self) -> None:
        self.self_s: dict[str, float] = {}
        self._inside: list[float] = []

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Add the self time of the block to `name`."""
        start = time.process_time()
        self._inside.append(0)
        try:
            yield
        finally:
            spent = time.process_time() - start
            self.self_s[name] = self.self_s.get(name, 0) + spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent


def child(path: str, events: int) -> None:
    """Print the times of all parts of `traceq show` as JSON; runs in a fresh process."""
    watch = Stopwatch()
    _watch_facts(watch)
    from traceq.analysis.registry import analyze, describe, names
    from traceq.engines.process_tuning import keep_freed_memory
    from traceq.renderers.text import open_console, print_sheet
    from traceq.report import Sheet
    from traceq.runs.read import read

    gc.set_threshold(100_000)  # as the command does
    keep_freed_memory()
    with watch.measured("scan"):
        run = read(path)
    if events:
        run = replace(run, traces=tuple(repeated(trace, events) for trace in run.traces))
    reports = []
    for name in names():
        with watch.measured(f"analysis {name}"):
            reports.append(analyze(run, name))
    with watch.measured("text"), open(os.devnull, "w") as nowhere:
        print_sheet(Sheet(describe(run), tuple(reports), run.caveats), open_console(nowhere, 140))
    peak, self_s = peak_bytes(), dict(watch.self_s)
    alone_s = {}
    for name in names():
        start = time.process_time()
        analyze(replace(run, traces=tuple(replace(trace) for trace in run.traces)), name)
        alone_s[f"analysis {name}"] = time.process_time() - start
    alone_s[_CAUSES] = _causes_s(run.traces[0])
    num_events = sum(len(trace.events) for trace in run.traces)
    json.dump({"self_s": self_s, "alone_s": alone_s, "peak": peak, "num_events": num_events}, sys.stdout)


def _causes_s(trace: Trace) -> float:
    """Return the CPU seconds of the common graph of a trace and a copy and of the integral, their facts computed."""
    from traceq.causes.common_steps import common_steps
    from traceq.compare.attribution import step_time

    copy = replace(trace)
    for side in (trace, copy):
        step_time(side)  # as `traceq diff` does before
    start = time.process_time()
    common_steps([trace], [copy])
    return time.process_time() - start


def _watch_facts(watch: Stopwatch) -> None:
    """Measure every function that is memoized per trace; call it before any of them is imported."""
    from traceq.facts import memo

    once = memo.once_per_trace

    def watched(function: Callable[[Trace], Any]) -> Callable[[Trace], Any]:
        module = function.__module__.rpartition(".")[2]
        name = f"fact {module}" if function.__name__ == module else f"fact {module}.{function.__name__}"

        @wraps(function)
        def measured(trace: Trace) -> Any:
            with watch.measured(name):
                return function(trace)

        return once(measured)

    memo.once_per_trace = watched


def repeated(trace: Trace, events: int) -> Trace:
    """Return the trace repeated, one copy after the other, until it has at least `events` events."""
    one = trace.events
    times = -(-events // len(one))
    span = int(one.end.max() - one.ts.min()) + 1000
    copy = np.repeat(np.arange(times), len(one))
    columns: dict[str, Any] = {}
    for column in fields(one):
        values = getattr(one, column.name)
        if isinstance(values, np.ndarray):
            columns[column.name] = np.tile(values, times)
    columns["ts"] += copy * span
    for name in ("correlation", "external_id", "sequence"):
        columns[name] += np.where(columns[name] >= 0, copy * (int(getattr(one, name).max()) + 1), 0)
    return replace(trace, events=replace(one, **columns, **_side_tables(one, times, span)))


def _side_tables(one: Events, times: int, span: int) -> dict[str, Any]:
    tables = {}
    steps = (("messages", "row", len(one)), ("stacks", "row", len(one)), ("allocations", "ts", span))
    for name, key, step in (*steps, ("waits", "row", len(one))):
        table = getattr(one, name)
        tiled = {column.name: np.tile(getattr(table, column.name), times) for column in fields(table)}
        tiled[key] += np.repeat(np.arange(times), len(getattr(table, key))) * step
        tables[name] = replace(table, **tiled)
    return tables


def _where_it_goes(costs: dict[str, Any], size: int, *, packed: bool) -> Iterator[Table]:
    self_s, alone_s = costs["self_s"], costs["alone_s"]
    scan_s, all_s = self_s["scan"], sum(self_s.values())
    memory = "" if packed else f", {costs['peak'] / size:.2f} of the file in memory"
    title = f"{costs['num_events']:,} events: {all_s:.2f} s, {all_s / scan_s:.1f} times the scan{memory}"
    table = _table(title, "self ms", "share", "alone ms")
    for name, spent in sorted(self_s.items(), key=lambda item: -item[1]):
        alone = f"{1000 * alone_s[name]:.0f}" if name in alone_s else ""
        table.add_row(name, f"{1000 * spent:.0f}", f"{100 * spent / all_s:.0f} %", alone)
    yield table
    table = _table("two such traces compared", "ms")
    table.add_row(_CAUSES, f"{1000 * alone_s[_CAUSES]:.0f}")
    yield table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


if __name__ == "__main__":
    main()
