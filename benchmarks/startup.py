"""Measure what a command costs before it reads anything: CPU time beside that of bare Python, and what is imported.

    python benchmarks/startup.py [--runs 15]

Each round runs every command once, bare Python (`python -c pass`) among them, with modules compiled before. CPU is user
and system time of the process; medians of all rounds. A machine's speed changes from minute to minute: compare within
one run. `imports`: sum of `-X importtime`, the fastest of three for each module, without those of bare Python. `x bare`
holds on any machine; the bars in ms are those of one on which bare Python takes 25 ms, and scale with it.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
from read import make
from rich.console import Console
from rich.table import Table

from traceq.commands import SUMMARIES
from traceq.frozen import frozen

PROGRAM = "from traceq.__main__ import console; console()"
PACKAGES = ("click", "typer", "pydantic.type_adapter", "numpy", "msgspec", "rich.console")
"""What `show` imports, and what it did before; those that are installed."""
BARE_MS = 25.0
HELP_MS, SHOW_MS = 40.0, 300.0
"""Bars: help over bare Python, `show` of a small trace in all."""
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)")


def main() -> None:
    """Print a table: a row per command, the bar and whether it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--size", type=int, default=4, help="MB of the generated trace")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    options = parser.parse_args()
    trace = make(options.folder, options.size, "decimal")
    helps = {f"traceq {name} --help".replace("  ", " "): [*name.split(), "--help"] for name in ("", *SUMMARIES)}
    shows = {f"traceq show, {options.size} MB": ["show", str(trace)]}
    commands = {title: ["-c", PROGRAM, *words] for title, words in {**helps, **shows}.items()}
    commands |= {f"import {name}": ["-c", f"import {name}"] for name in PACKAGES if find_spec(name.partition(".")[0])}
    costs = measured({"python -c pass": ["-c", "pass"], **commands}, options.runs)
    bare = costs.pop("python -c pass")
    table = Table(title=f"medians of {options.runs}; python -c pass: {bare:.1f} ms", title_justify="left", box=None)
    for title in ("", "CPU ms", "over bare", "x bare", "imports ms", "modules", "bar", "holds"):
        table.add_column(title, justify="left" if title in ("", "bar") else "right")
    for title, cost in costs.items():
        speed = bare / BARE_MS
        value, bar = (cost, SHOW_MS) if title in shows else (cost - bare, HELP_MS)
        words = f"{'' if title in shows else 'over bare '}< {bar * speed:.0f} ms"
        is_command = title in shows or title in helps
        imports = imported(commands[title])
        table.add_row(
            title,
            f"{cost:.0f}",
            f"{cost - bare:.0f}",
            f"{cost / bare:.1f}",
            f"{sum(imports.values()) / 1000:.0f}",
            str(len(imports)),
            words if is_command else "",
            ("yes" if value < bar * speed else "NO") if is_command else "",
        )
    console = Console(width=120, highlight=False)
    console.print(table)
    console.print(f"CPU us to make a class of six fields: {', '.join(class_costs())}")


def class_costs(num: int = 300) -> Iterator[str]:
    """Yield what it takes to make a class in each way, its first instance included where that compiles something."""
    fields = dict.fromkeys(("a", "b", "c", "d", "e", "f"), "int")
    body = {"__annotations__": fields, "__doc__": "A class.", "__module__": __name__}
    ways: dict[str, Callable[[type[Any]], Any]] = {
        "dataclass(frozen, slots)": dataclass(frozen=True, slots=True),
        "frozen": frozen,
        "frozen, used": lambda cls: frozen(cls)(1, 2, 3, 4, 5, 6),
        "msgspec.Struct": lambda cls: msgspec.defstruct(cls.__name__, [(name, int) for name in fields], frozen=True),
    }
    for name, make_class in ways.items():
        start = time.process_time()
        for number in range(num):
            make_class(type(f"C{number}", (), dict(body)))
        yield f"{name} {1e6 * (time.process_time() - start) / num:.0f}"


def measured(commands: dict[str, list[str]], runs: int) -> dict[str, float]:
    """Return the median CPU ms of each command over as many rounds; a first round compiles the modules."""
    costs: dict[str, list[float]] = {title: [] for title in commands}
    for _ in range(runs + 1):
        for title, words in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True, env=environment())
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            costs[title].append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return {title: statistics.median(values[1:]) for title, values in costs.items()}


def imported(words: list[str], runs: int = 3) -> dict[str, int]:
    """Return the µs of each module that a command imports and bare Python does not, without those that it imports."""
    fastest: dict[str, int] = {}
    for _ in range(runs):
        for name, spent in _import_times(words):
            fastest[name] = min(spent, fastest.get(name, spent))
    for name, _ in _import_times(["-c", "pass"]):
        fastest.pop(name, None)
    return fastest


def _import_times(words: list[str]) -> list[tuple[str, int]]:
    command = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return [(match[2], int(match[1])) for match in map(LINE.match, done.stderr.splitlines()) if match]


def environment() -> dict[str, str]:
    """Return the environment, in which modules are compiled once, as those of an installed traceq are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    main()
