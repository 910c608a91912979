"""Measure how fast HTA's TraceAnalysis is loaded by traceq and by HTA itself, alternately, each in a fresh process.

    python benchmarks/load_hta.py                     a generated trace of 100 MB with four profiler steps
    python benchmarks/load_hta.py TRACE...            other traces, one rank each
    python benchmarks/load_hta.py --parts TRACE...    also where the time goes, by the profiler of Python

Times are of CPU, all threads and child processes added up, after the imports; medians of `--repeat` readings. HTA tries
each step for each event, so that it takes four times as long where a trace has hundreds of them; the generated one has
four.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import pstats
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import gettempdir

from read import HEAD, NUMBERS, row, step

STEPS, STEP_US, START_US = 4, 40_000, 4458677009853.422


def make(folder: Path, size_mb: int) -> Path:
    """Return a trace of about that size with a few profiler steps, created if it does not exist."""
    path, number = folder / f"traceq-bench-hta-{size_mb}.json", NUMBERS["decimal"]
    if not path.exists():
        parts: list[str] = []
        size = 0
        while size < size_mb * 1e6:
            parts.append(",\n".join(step(len(parts), number)).replace("ProfilerStep#", "iteration "))
            size += len(parts[-1])
        length = len(parts) / STEPS * STEP_US
        marks = (
            row(
                "user_annotation", f"ProfilerStep#{index}", 7, number(START_US + index * length), number(length - 1), ""
            )
            for index in range(STEPS)
        )
        path.write_text(HEAD.format(kind="hta") + ",\n".join([*marks, *parts]) + '\n  ],\n  "traceName": "hta"\n}\n')
    return path


def load(loader: str, path: str) -> None:
    """Load a trace as a user of HTA does."""
    if loader == "traceq":
        from traceq.interop.hta import analysis

        analysis({0: path})
    else:
        from hta.trace_analysis import TraceAnalysis

        TraceAnalysis(trace_files={0: path}, trace_dir="")


def child(loader: str, warm: str, path: str, *, parts: bool) -> None:
    """Load a trace after a small one, for the imports, and print the CPU time in seconds."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    load(loader, warm)
    profiler = cProfile.Profile(time.process_time)
    begin = cpu_s()
    if parts:
        profiler.runcall(load, loader, path)
        sys.stdout.write(f"\n{loader}:")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(8)
    else:
        load(loader, path)
        sys.stdout.write(f"\n{json.dumps(cpu_s() - begin)}\n")


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run(loader: str, warm: Path, path: Path, *, parts: bool = False) -> str:
    """Return what a fresh process prints."""
    words = [
        sys.executable,
        __file__,
        "--child",
        loader,
        "--warm",
        str(warm),
        str(path),
        *(["--parts"] if parts else []),
    ]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print a row per trace."""
    options = _options()
    if options.child:
        child(options.child, options.warm, str(options.traces[0]), parts=options.parts)
        return
    warm = make(options.folder, 1)
    print(f"{'trace':40} {'HTA s':>8} {'traceq s':>9} {'ratio':>6}   medians of {options.repeat}, CPU time")  # noqa: T201
    for path in options.traces or [make(options.folder, 100)]:
        seconds: dict[str, list[float]] = {"HTA": [], "traceq": []}
        for _ in range(options.repeat):
            for loader, readings in seconds.items():
                readings.append(float(run(loader, warm, path).splitlines()[-1]))
        theirs, ours = (statistics.median(readings) for readings in seconds.values())
        print(f"{path.name[-40:]:40} {theirs:8.2f} {ours:9.3f} {theirs / ours:6.1f}", flush=True)  # noqa: T201
        for loader in seconds if options.parts else ():
            print(run(loader, warm, path, parts=True))  # noqa: T201


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--parts", action="store_true", help="also print the functions that take longest")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()), help="folder of the generated trace")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
