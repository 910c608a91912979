"""Several processes in one file: merged traces of ranks, split where the file tells their ranks, else refused."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from traceq.errors import UnreadableInput
from traceq.facts.events.select_events import select_events
from traceq.intervals import sorted_unique
from traceq.locations import Place
from traceq.model import Category, Trace

__all__ = ["num_processes", "one_process", "split_by_rank"]

_RANK = re.compile(r"\brank\s{0,4}[:#_-]?\s{0,4}(\d{1,9})(?!\d)", re.IGNORECASE)
_EXPECTED = "a file per rank, or processes whose `process_name` tells the rank, as in `RANK 0 - CPU`"


def num_processes(trace: Trace) -> int:
    """Return how many processes run ops of PyTorch in a trace; device rows, whose process is a device, do not count."""
    return len(sorted_unique(trace.events.pid[trace.events.rows(Category.CPU_OP)]))


def one_process(trace: Trace) -> Trace:
    """Return the same trace. Raises UnreadableInput for the merged traces of several processes."""
    if (num := num_processes(trace)) > 1:
        raise UnreadableInput(trace.path, f"events of {num} processes in one file", "a file per rank in a folder")
    return trace


def split_by_rank(trace: Trace, path: Place) -> tuple[Trace, ...]:
    """Return a trace for each rank whose processes the file names, the same trace if it has only one process.

    Raises UnreadableInput where events of several processes do not tell their rank.
    """
    if num_processes(trace) < 2:
        return (trace,)
    events, rank_of = trace.events, _ranks_of_processes(trace)
    processes = sorted_unique(events.pid).tolist()
    ranks = {process: rank_of.get(events.strings[process], -1) for process in processes}
    unknown = sorted(events.strings[process] for process, rank in ranks.items() if rank < 0)
    if unknown:
        listed = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        content = f"events of {num_processes(trace)} processes in one file; {listed} do not tell their rank"
        raise UnreadableInput(str(path), content, _EXPECTED)
    distinct = sorted(set(ranks.values()))
    size = max(trace.world_size, len(distinct), distinct[-1] + 1)
    return tuple(_of_rank(trace, rank, [n for n, other in ranks.items() if other == rank], size) for rank in distinct)


def _of_rank(trace: Trace, rank: int, processes: list[int], world_size: int) -> Trace:
    events, names = trace.events, {trace.events.strings[number] for number in processes}
    selected = select_events(events, np.isin(events.pid, processes), np.isin(events.allocations.pid, processes))
    threads = tuple(thread for thread in trace.threads if thread.pid in names)
    return replace(trace, events=selected, threads=threads, rank=rank, world_size=world_size)


def _ranks_of_processes(trace: Trace) -> dict[str, int]:
    """Return process -> rank by the names and labels of processes."""
    ranks: dict[str, int] = {}
    for process, name in trace.process_names:
        if match := _RANK.search(name):
            ranks.setdefault(process, int(match[1]))
    return ranks
