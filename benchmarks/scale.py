"""Measure a job of a thousand ranks: ranks per second and memory, by number of cores and of a cluster's workers.

    PYTHONPATH=tests/support python benchmarks/scale.py                   about ten minutes; 1,024 ranks of about 1 MB
    PYTHONPATH=tests/support python benchmarks/scale.py --ranks 128

The job is that of tests/support/fleet.py: FSDP on hosts of eight ranks, one host late by 41 ms in forward, one rank
with a desync. Each row is `traceq show JOB --json --full` without a cache, except for the rows that name cached ranks.
`merge s` is CPU time of the process that starts and merges; `CPU s` of all processes except a cluster's workers; memory
is the peak of all together (proportional set size). `x` is wall time over (time of one rank x ranks / cores or
workers), where the time of one rank is the median of reading and summarising one in a warm process on one core. On a
loaded machine use `x idle` instead, an estimate without load: merge + (CPU - merge) / cores, over the same by CPU time.
Workers are those of a dask cluster on this machine (`pip install 'traceq-torch[cluster]'`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from fleet import Fleet, play
from rich.console import Console
from rich.table import Table

LATE_HOST, EVERY_S, SAMPLE = 3, 0.1, 33
LONGER = (1, 10, 100)
"""Factors on the number of steps, for single ranks with longer windows."""
ONE_RANK = """
import re, sys, time
from pathlib import Path
from traceq.analysis.registry import names
from traceq.engines.rank_summary import pack
from traceq.engines.rank_summary import summarize
for file in sys.argv[1:]:
    start, cpu = time.perf_counter(), time.process_time()
    summary = summarize(Path(file), names(), False, None)
    print(time.perf_counter() - start, time.process_time() - cpu, end=" ")
    status = Path("/proc/self/status").read_text()
    print(len(pack(summary)), 1024 * int(re.search("VmHWM:\\s+([0-9]+)", status)[1]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a command: wall time, CPU time of all its processes and of the first, peak memory, and its output."""

    wall_s: float
    cpu_s: float
    merge_s: float
    peak_bytes: int
    digest: str
    output: dict[str, Any]


def main() -> None:
    """Print one rank's cost, a table of the whole job, and the findings."""
    options, console = _options(), Console(width=110, highlight=False)
    with TemporaryDirectory(prefix="traceq-scale-", dir=options.folder) as made:
        folder = Path(made) / "job"
        fleet = Fleet(options.ranks, late_ranks=Fleet().on_host(LATE_HOST), desync_rank=options.ranks // 2)
        written_s = _timed(lambda: play(fleet).write(folder))
        each = one_by_one(sorted(folder.iterdir())[: options.sample])[1:]
        each_s, cpu_s = (statistics.median(getattr(one, name) for one in each) for name in ("wall_s", "cpu_s"))
        size = sum(file.stat().st_size for file in folder.iterdir())
        console.print(f"{options.ranks:,} ranks, {size / 1e6:,.0f} MB packed, written in {written_s:.1f} s")
        console.print(f"one rank: {1000 * each_s:.1f} ms, {1000 * cpu_s:.1f} ms of CPU (median of {len(each)})", "")
        console.print(_longer(Path(made)), "")
        costs = dict(_runs(folder, options.ranks))
        console.print(_table(costs, each_s, cpu_s))
        _print_findings(costs, console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument(
        "--sample", type=int, default=SAMPLE, help="ranks that are timed one by one, including one to warm up"
    )
    parser.add_argument("--folder", type=Path, help="folder to write the job to, instead of a temporary one")
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank, read and summarised: seconds, bytes of its summary, and peak memory of the process so far."""

    wall_s: float
    cpu_s: float
    summary_bytes: int
    peak_bytes: int


def one_by_one(files: list[Path]) -> list[Rank]:
    """Return the cost of each rank, in one process on one core."""
    with _cores(1):
        done = subprocess.run([sys.executable, "-c", ONE_RANK, *files], stdout=subprocess.PIPE, check=True, text=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return [Rank(float(wall_s), float(cpu_s), int(size), int(peak)) for wall_s, cpu_s, size, peak in lines]


def _longer(made: Path) -> Table:
    """Return the cost of single ranks with longer windows."""
    table = _columns("one rank of", "collectives", "s", "MB/s", "MB in memory", "KB of summary")
    short = one_by_one([made / "job" / "rank0.json.gz"])[0]
    for times in LONGER:
        fleet = Fleet(2, 1, steps=times * Fleet().steps)
        text = play(fleet).text(0)
        file = made / f"longer-{times}.json"
        file.write_text(text)
        rank, size_mb = one_by_one([made / "job" / "rank0.json.gz", file])[1], len(text) / 1e6
        numbers = (text.count('"record_param_comms"'), rank.wall_s, size_mb / rank.wall_s)
        memory = f"{(rank.peak_bytes - short.peak_bytes) / 1e6:.0f}"
        table.add_row(f"{size_mb:.1f} MB", *_texts(numbers), memory, f"{rank.summary_bytes / 1e3:.0f}")
    return table


Key = tuple[str, int, int]
"""(what ran, number of cores or workers, number of ranks)."""


def _runs(folder: Path, num_ranks: int) -> Iterator[tuple[Key, Cost]]:
    """Yield costs of parts of the job on all cores, then of all of it on one core, on all, cached, and on workers."""
    most = len(os.sched_getaffinity(0))
    for part in (num_ranks // 4, num_ranks // 2):
        yield ("cores", most, part), show(folder, "--ranks", f"0-{part - 1}")
    for cores in sorted({1, most}):
        with _cores(cores):
            yield ("cores", cores, num_ranks), show(folder)
    with _cache_removed(folder):
        show(folder, keep=True)
        yield ("all cached", most, num_ranks), show(folder, keep=True)
        os.utime(folder / "rank1.json.gz")
        yield ("all but one cached", most, num_ranks), show(folder, keep=True)
    for workers in sorted({1, most}):
        if (cluster := _cluster(workers)) is not None:
            with cluster:
                address = cluster.scheduler_address
                yield ("workers", workers, num_ranks), show(folder, "--cluster", address)


def show(folder: Path, *words: str, keep: bool = False) -> Cost:
    """Return the cost of `traceq show --json`; `keep` caches summaries beside the traces."""
    return cost_of("show", str(folder), "--json", "--full", *words, keep=keep)


def cost_of(*words: str, keep: bool = False) -> Cost:
    """Return the cost of a command of traceq that prints JSON."""
    command = [sys.executable, "-m", "traceq", *words]
    environment = os.environ | {"TRACEQ_CACHE": "1" if keep else "0"}
    start, cpu_s = time.perf_counter(), _cpu_s()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    with _watched(process.pid) as seen:
        printed, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{errors.decode()}")
    wall_s, cpu_s = time.perf_counter() - start, _cpu_s() - cpu_s
    return Cost(
        wall_s, cpu_s, max(seen.cpu_s), max(seen.bytes), hashlib.sha256(printed).hexdigest(), json.loads(printed)
    )


def _cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _cores(num: int) -> Iterator[None]:
    """Limit processes started in the block to `num` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:num])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _cache_removed(folder: Path) -> Iterator[None]:
    """Keep traceq's cache in a folder that is removed at the end of the block."""
    with TemporaryDirectory() as cache, patch.dict(os.environ, XDG_CACHE_HOME=cache):
        yield


def _cluster(num_workers: int) -> Any:
    """Return a dask cluster of single-threaded workers; None without dask."""
    try:
        from distributed import LocalCluster
    except ImportError:
        return None
    return LocalCluster(
        n_workers=num_workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
    )


# ---- processes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """Samples every tenth of a second: CPU seconds of a process, and bytes of all descendants of this one."""

    cpu_s: list[float]
    bytes: list[int]


@contextmanager
def _watched(pid: int) -> Iterator[Seen]:
    seen, ended = Seen([0.0], [0]), threading.Event()

    def watch() -> None:
        while not ended.wait(EVERY_S):
            seen.bytes.append(sum(map(_bytes_of, _below(os.getpid()))))
            seen.cpu_s.append(_cpu_of(pid))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        ended.set()
        watching.join()


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    descendants, pending = [], [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        descendants += children
        pending += children
    return descendants


def _bytes_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


# ---- output ----------------------------------------------------------------------------------------------------------


def _table(costs: dict[Key, Cost], each_s: float, cpu_s: float) -> Table:
    table = _columns("", "ranks", "wall s", "ranks/s", "x", "CPU s", "merge s", "x idle", "peak MB")
    for (what, num, ranks), cost in costs.items():
        is_new = what in ("cores", "workers")
        name = f"{num} {what if num > 1 else what[:-1]}" if is_new else what
        ratio = f"{cost.wall_s / (each_s * ranks / num):.2f}" if is_new else ""
        idle_s = cost.merge_s + (cost.cpu_s - cost.merge_s) / num
        idle = f"{idle_s / (cpu_s * ranks / num):.2f}" if what == "cores" else ""
        times, work = _texts((cost.wall_s, ranks / cost.wall_s)), _texts((cost.cpu_s, cost.merge_s))
        table.add_row(name, f"{ranks:,}", *times, ratio, *work, idle, f"{cost.peak_bytes / 1e6:.0f}")
    return table


def _columns(first: str, *rest: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first)
    for heading in rest:
        table.add_column(heading, justify="right")
    return table


def _texts(numbers: tuple[float, ...]) -> Iterator[str]:
    return (f"{one:,}" if isinstance(one, int) else f"{one:.2f}" if one < 10 else f"{one:.1f}" for one in numbers)


def _print_findings(costs: dict[Key, Cost], console: Console) -> None:
    most = max(ranks for _, _, ranks in costs)
    whole = [cost for (_, _, ranks), cost in costs.items() if ranks == most]
    same = len({cost.digest for cost in whole}) == 1
    console.print(
        f"{len(whole)} runs of all ranks, {'the same to the byte' if same else 'NOT the same'} in --json --full:"
    )
    for finding in whole[0].output["findings"]:
        if finding["code"] in ("late_ranks", "desync"):
            console.print(f"* {finding['text']}")


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
