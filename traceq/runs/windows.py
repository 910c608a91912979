"""Several windows of one rank in a folder: which one is read, and what is said about the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.graph_replays import captured_nodes, captures, graph_replays
from traceq.facts.events.nesting import tracks
from traceq.facts.roofline.owning_ops import op_of_calls
from traceq.facts.timeline.modules import modules, modules_at
from traceq.model import SHOWN_WINDOW, CapturedGraphs, CapturedOp, Caveat, Trace, Window
from traceq.units import format_ranks

_PROCESS = re.compile(r"^(?P<process>.+[._]\d+)\.\d{6,}\.pt\.trace\.json")


def latest_windows(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], Window | None, list[Caveat]]:
    """Return the latest window of each rank, by rank, which one it is where all have as many, and what is left out.

    A window that replays CUDA graphs knows those that earlier windows of its process captured.
    """
    by_rank: dict[int, list[Trace]] = {}
    for trace in traces:
        by_rank.setdefault(trace.rank, []).append(trace)
    for windows in by_rank.values():
        windows.sort(key=lambda trace: trace.base_time_ns + int(trace.events.ts.min()))
    caveats = [_processes(rank, windows) for rank, windows in sorted(by_rank.items()) if len(_names(windows)) > 1]
    window, with_number = None, dict[int, list[int]]()
    for rank, windows in sorted(by_rank.items()):
        if len(windows) > 1 and len(_names(windows)) <= 1:
            with_number.setdefault(len(windows), []).append(rank)
    for num, ranks in with_number.items():
        latest = by_rank[ranks[0]][-1].path
        noun, verb = ("rank", "has") if len(ranks) == 1 else ("ranks", "have")
        each, use = ("", "is used") if len(ranks) == 1 else (" each", "are used, of the first")
        text = f"{noun} {format_ranks(ranks)} {verb} {num} windows{each}; the latest {use}: {latest}"
        if len(ranks) == len(by_rank):
            window = Window(num, latest)
        caveats.append(Caveat("several_windows" if window is None else SHOWN_WINDOW, text))
    selected = [_latest(windows) for _, windows in sorted(by_rank.items())]
    return tuple(selected), window, caveats + [caveat for trace in selected for caveat in _captures(trace)]


def _latest(windows: Sequence[Trace]) -> Trace:
    """Return the last one, with the graphs that the others captured if all are of one process."""
    is_one = len(_names(windows)) <= 1
    return with_captured_graphs(windows[-1], windows[:-1]) if is_one else windows[-1]


def with_captures(trace: Trace, others: Iterable[Callable[[], Trace]]) -> tuple[Trace, list[Caveat]]:
    """Return the trace with the graphs that others captured, those that replay none, and a caveat that names them.

    They are read only if the trace replays graphs that it did not capture. What fits none of its replays is left out.
    """
    if not _replays_unknown(trace):
        return trace, []
    windows = (read() for read in others)
    labelled = with_captured_graphs(trace, [each for each in windows if not graph_replays(each).replayed.any()])
    return (labelled, _captures(labelled)) if (captured_nodes(labelled) >= 0).any() else (trace, [])


def _replays_unknown(trace: Trace) -> bool:
    """Return whether the trace replays graphs that it did not capture."""
    replays = graph_replays(trace)
    return bool((replays.replayed & (replays.captured < 0)).any())


def _captures(trace: Trace) -> list[Caveat]:
    """Return from where it is known what a trace replays, if it is from elsewhere."""
    if trace.captured is None:
        return []
    files = ", ".join(trace.captured.paths)
    text = f"rank {trace.rank} replays CUDA graphs: where it fits, what they captured is read from {files}"
    return [Caveat("captured_before", text)]


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


def with_captured_graphs(trace: Trace, earlier: Sequence[Trace]) -> Trace:
    """Return the trace with the graphs that earlier windows captured, if it replays graphs that it did not capture.

    Windows that are not in memory, as those of large folders, are left out.
    """
    earlier = [window for window in earlier if window.events.strings]
    if not earlier or not trace.events.strings:
        return trace
    if not _replays_unknown(trace):
        return trace
    parts = [part for part in map(_captured, earlier) if len(part.size)]
    if not parts:
        return trace
    graphs = CapturedGraphs(
        size=np.concatenate([part.size for part in parts]),
        module=_renumbered([(part.module, len(part.names)) for part in parts]),
        op=_renumbered([(part.op, len(part.ops)) for part in parts]),
        call=_renumbered([(part.call, int(part.call.max(initial=-1)) + 1) for part in parts]),
        names=tuple(name for part in parts for name in part.names),
        ops=tuple(op for part in parts for op in part.ops),
        in_turn=all(part.in_turn for part in parts),
        paths=tuple(path for part in parts for path in part.paths),
    )
    return replace(trace, captured=graphs)


def _renumbered(parts: Sequence[tuple[NDArray[np.int64], int]]) -> NDArray[np.int64]:
    """Return the numbers of all parts, each with as many of its own, -1 for none: those of a part follow the others."""
    first = np.cumsum([0, *(num for _, num in parts)])
    return np.concatenate(
        [np.where(number >= 0, number + offset, -1) for (number, _), offset in zip(parts, first.tolist(), strict=False)]
    )


def _captured(window: Trace) -> CapturedGraphs:
    """Return the graphs that a window captured, each node with the module that launched it and the op of its work."""
    recorded = captures(window)
    module = modules_at(window, tracks(window)[recorded.rows], window.events.ts[recorded.rows])
    rows, call = np.unique(op_of_calls(window, recorded.rows), return_inverse=True)
    ops: dict[CapturedOp, int] = {}
    number = [ops.setdefault(_op(window, row), len(ops)) if row >= 0 else -1 for row in rows.tolist()]
    return CapturedGraphs(
        size=recorded.size,
        module=module,
        op=np.array(number, np.int64)[call],
        call=call.astype(np.int64),
        names=modules(window).paths,
        ops=tuple(ops),
        in_turn=recorded.in_turn,
        paths=(window.path,),
    )


def _op(window: Trace, row: int) -> CapturedOp:
    """Return an op as its row of Events describes it."""
    events, strings = window.events, (*window.events.strings, "")
    columns = (events.name, events.shapes, events.types, events.strides, events.inputs)
    return CapturedOp(*(strings[int(column[row])] for column in columns))
