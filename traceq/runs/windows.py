"""Several windows of one rank in a folder: which one is read, and what is said about the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from traceq.model import Caveat, Trace
from traceq.runs.captured_graphs import with_captured_graphs
from traceq.units import format_ranks

__all__ = ["latest_windows"]

_PROCESS = re.compile(r"^(?P<process>.+[._]\d+)\.\d{6,}\.pt\.trace\.json")


def latest_windows(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], list[Caveat]]:
    """Return the latest window of each rank, by rank, and what that leaves out: one caveat for all ranks alike.

    A window that replays CUDA graphs knows those that earlier windows of its process captured.
    """
    by_rank: dict[int, list[Trace]] = {}
    for trace in traces:
        by_rank.setdefault(trace.rank, []).append(trace)
    for windows in by_rank.values():
        windows.sort(key=lambda trace: trace.base_time_ns + int(trace.events.ts.min()))
    caveats = [_processes(rank, windows) for rank, windows in sorted(by_rank.items()) if len(_names(windows)) > 1]
    with_number: dict[int, list[int]] = {}
    for rank, windows in sorted(by_rank.items()):
        if len(windows) > 1 and len(_names(windows)) <= 1:
            with_number.setdefault(len(windows), []).append(rank)
    for num, ranks in with_number.items():
        latest = by_rank[ranks[0]][-1].path
        noun, verb = ("rank", "has") if len(ranks) == 1 else ("ranks", "have")
        each, use = ("", "is used") if len(ranks) == 1 else (" each", "are used, of the first")
        text = f"{noun} {format_ranks(ranks)} {verb} {num} windows{each}; the latest {use}: {latest}"
        caveats.append(Caveat("several_windows", text))
    selected = [_latest(windows) for _, windows in sorted(by_rank.items())]
    return tuple(selected), caveats + [_captures(trace) for trace in selected if trace.captured is not None]


def _latest(windows: Sequence[Trace]) -> Trace:
    """Return the last one, with the graphs that the others captured if all are of one process."""
    is_one = len(_names(windows)) <= 1
    return with_captured_graphs(windows[-1], windows[:-1]) if is_one else windows[-1]


def _captures(trace: Trace) -> Caveat:
    assert trace.captured is not None
    files = ", ".join(trace.captured.paths)
    text = f"rank {trace.rank} replays CUDA graphs: where it fits, what they captured is read from {files}"
    return Caveat("captured_before", text)


def _names(windows: Sequence[Trace]) -> set[str]:
    """Return the processes in the names of files, which are different ones if no file tells its rank."""
    if any(trace.backend or trace.world_size > 1 for trace in windows):
        return set()
    matches = [_PROCESS.match(PurePath(trace.path).name) for trace in windows]
    return {match["process"] for match in matches if match is not None}


def _processes(rank: int, windows: Sequence[Trace]) -> Caveat:
    names = sorted(_names(windows))
    listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    text = (
        f"{len(windows)} files of {len(names)} processes ({listed}) do not tell their rank: the latest is used as rank "
        f"{rank}, {windows[-1].path}; name them rank0.json, rank1.json, ... to read all"
    )
    return Caveat("several_windows", text)
