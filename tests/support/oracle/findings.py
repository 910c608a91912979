"""The times of findings, computed from the events of one file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from .loading import around_iterations, iterations
from .nested import nested
from .partition import Piece, pieces
from .phases import Phases
from .reader import Event, Trace, read
from .spans import Span, clip, inside, measure, union
from .steps import windows
from .syncs import Sync, find_syncs
from .unrecorded import gaps, opening

__all__ = ["finding_times"]

CATEGORIES = ("host_bound", "exposed_comm", "exposed_memcpy", "sync_wait", "alloc_wait", "dataload_wait")
BOUND = {"device_bound": "compute", "cpu_bound": "cpu_compute", "python_bound": "python"}
BOUND |= dict.fromkeys(("recompiles", "compiling"), "compiling")
IDLE = ("host_bound", "compiling", "sync_wait", "alloc_wait", "tail")
LOADS = re.compile(r"^enumerate\(DataLoader\)|^(## )?data_?load", re.IGNORECASE)
SENDS = re.compile(
    r"(c10d::|nccl:|gloo:|record_param_comms$|aten::(un)?flatten_dense_tensors$"
    r"|aten::(cat|view|reshape|_reshape_alias|narrow|slice|as_strided|copy_|detach|to|_to_copy|select)$"
    r"|aten::(empty|empty_like|empty_strided)$)"
)
CHECKS = {"isnan", "_is_any_true", "any", "item", "is_nonzero"}
LONGEST_GAP_NS = 1_000_000
TO_HOST = re.compile("DtoH|DeviceToHost|DEVICE_TO_HOST")


def finding_times(path: Path | str) -> dict[str, float]:
    """Code of a finding -> its time in a counted step, ns, whether or not it is one.

    `starved` is the time in which nothing runs while the loader does; `unfused_optimizer` that of each optimizer, under
    `unfused_optimizer AdamW`, and `host_op` that of each op or call without what is inside it.
    """
    trace = read(path)
    phases, syncs = Phases(trace), find_syncs(trace)
    hidden = gaps(trace)
    steps = windows(trace, phases, opening(trace, hidden))
    counted = counted_windows(steps)
    every = list(pieces(trace, phases, syncs, hidden, steps[0]["start_ns"], steps[-1]["end_ns"]))
    parts = [piece for piece in every if any(start <= piece.start < end for start, end in counted)]
    times = {name: total(piece for piece in parts if piece.category == name) for name in CATEGORIES}
    of_host = ("cpu_compute", "python")  # whatever a main thread without a device does in the loader's phase
    times["dataload_wait"] += total(
        piece for piece in parts if piece.phase in ("dataload", "dataload_wait") and piece.category in of_host
    )
    for code, category in BOUND.items():
        times[code] = total(piece for piece in parts if piece.category == category)
    times |= {f"host_op {name}": ns for name, ns in self_times(trace, counted).items()}
    times["starved"] = starved(
        trace, parts if trace.host_steps[0][0] != "whole trace" else between_batches(trace, parts)
    )
    times["buffer_broadcasts"] = buffer_broadcasts(trace, parts)
    times["worker_restarts"] = worker_restarts(trace, parts, counted)
    short = short_gaps(every, syncs, counted)
    times["launch_bound"] = sum(end - start for start, end in short)
    times["host_round_trips"] = host_round_trips(trace, short)
    times["metric_gathers"] = carrying_metrics(trace, parts)
    times["unused_search"] = unused_search(trace, parts)
    times["repeated_reductions"] = repeated_reductions(trace, parts)
    times["anomaly_detection"] = checks_of_gradients(trace, counted)
    times |= {f"unfused_optimizer {name}": ns for name, ns in optimizers(trace, parts).items()}
    return {name: ns / len(counted) for name, ns in times.items()}


def total(parts: Iterable[Piece]) -> int:
    return sum(piece.end - piece.start for piece in parts)


def self_times(trace: Trace, counted: list[Span]) -> dict[str, int]:
    """By name, the times of ops and calls that begin in counted windows without what is inside them."""
    times: dict[str, int] = {}
    for rows in nested(event for event in trace.events if event.cat in ("cpu_op", "runtime")).values():
        self_ns = {row.row: row.end - row.start for row in rows.rows}
        for row in rows.rows:
            if outer := rows.parent(row):
                self_ns[outer.row] -= row.end - row.start
        for row in rows.rows:
            if any(start <= row.start < end for start, end in counted):
                times[row.name] = times.get(row.name, 0) + self_ns[row.row]
    return times


def counted_windows(steps: list[dict[str, Any]]) -> list[Span]:
    """The windows of the whole steps, of all if none is whole."""
    whole = [step for step in steps if not step["partial"]] or steps
    return [(step["start_ns"], step["end_ns"]) for step in whole]


def common(piece: Piece, spans: list[Span]) -> int:
    """The time of a piece within disjoint spans."""
    return sum(end - start for start, end in clip(spans, piece.start, piece.end))


def buffer_broadcasts(trace: Trace, parts: list[Piece]) -> int:
    """From each forward pass of DDP with a broadcast to the first op after it that sends nothing, without computing."""
    main = sorted((e for e in trace.events if e.thread == trace.main), key=lambda e: e.start)
    spans = []
    for forward in (e for e in main if e.cat == "annotation" and e.name == "DistributedDataParallel.forward"):
        inside_it = [e for e in main if e.cat == "cpu_op" and forward.start <= e.start < forward.end]
        sent = [e.start for e in inside_it if "broadcast" in e.name]
        if sent:
            others = [e.start for e in inside_it if e.start >= sent[-1] and not SENDS.match(e.name)]
            spans.append((forward.start, min([*others, forward.end])))
    return sum(common(piece, union(spans)) for piece in parts if piece.category != "compute")


def checks_of_gradients(trace: Trace, counted: list[Span]) -> int:
    """Time of the ops right inside nodes of the backward pass with which these look for NaN, where they do."""
    checks = []
    for rows in nested(event for event in trace.events if event.cat == "cpu_op").values():
        inner: dict[Any, list[Event]] = {}
        for row in rows.rows:
            outer = rows.parent(row)
            if outer and re.match("autograd::engine::evaluate_function: (?!torch::autograd::Acc)", outer.name):
                inner.setdefault(outer.row, []).append(row)
        for ops in inner.values():
            if any(each.name == "aten::isnan" for each in ops):
                checks += [each for each in ops if each.name.removeprefix("aten::") in CHECKS]
    times = [(each.start, each.end) for each in checks]
    return sum(measure(clip(times, *span)) for span in counted)


def repeated_reductions(trace: Trace, parts: list[Piece]) -> int:
    """Exposed time of gloo's sums between a forward pass and the next one, if no optimizer steps between these."""
    marks = [e for e in trace.events if e.cat == "annotation"]
    forwards = sorted(e.start for e in marks if e.name == "DistributedDataParallel.forward")
    updates = [e.start for e in marks if e.name.startswith("Optimizer.step#")]
    passes = [(a, b) for a, b in pairwise(forwards) if not any(a < update < b for update in updates)]
    sums = [e for e in trace.events if e.name.startswith("gloo:all_reduce")]
    repeated = union([(e.start, e.end) for e in sums if any(a < e.start < b for a, b in passes)])
    return sum(common(piece, repeated) for piece in parts if piece.category == "exposed_comm")


def unused_search(trace: Trace, parts: list[Piece]) -> int:
    """Searches and marks on the main thread while nothing computes, and exposed sums of integers beside no others."""
    ops = [e for e in trace.events if e.cat == "cpu_op" and e.thread == trace.main]
    nodes = union([(e.start, e.end) for e in ops if "AccumulateGrad" in e.name])
    marks = [e for e in ops if e.name in ("aten::select", "aten::fill_") and clip(nodes, e.start, e.end)]
    searched = union([(e.start, e.end) for e in ops if "search_unused" in e.name] + [(e.start, e.end) for e in marks])
    sums = [e for e in ops if e.args.get("collective name") == "all_reduce"]
    whole = union([(e.start, e.end) for e in sums])
    others = union([(e.start, e.end) for e in sums if e.args["dtype"] != "Int"])
    exposed = [piece for piece in parts if piece.category == "exposed_comm"]
    sent = sum(common(piece, whole) - common(piece, others) for piece in exposed)
    return sent + sum(common(piece, searched) for piece in parts if piece.category != "compute")


def starved(trace: Trace, parts: list[Piece]) -> int:
    """The main thread is in the loader, and the device idles; without a device, whatever else there is."""
    rows = [e for e in trace.events if e.cat in ("annotation", "cpu_op") and e.thread == trace.main]
    ranges = [(e.start, e.end) for e in rows if LOADS.match(e.name)]
    loading = union([*ranges, *around_iterations(trace)])
    idle = [piece for piece in parts if not trace.device_ops or piece.category in IDLE]
    return sum(common(piece, loading) for piece in idle)


def between_batches(trace: Trace, parts: list[Piece]) -> list[Piece]:
    """The parts of pieces from the end of the first batch that the main thread fetches to that of the last."""
    rows = [e for e in trace.events if e.cat in ("annotation", "cpu_op") and e.thread == trace.main]
    ends = [end for _, end in union([(e.start, e.end) for e in rows if LOADS.match(e.name)])]
    loop = [(ends[0], ends[-1])] if ends else []
    clips = ((piece, span) for piece in parts for span in clip(loop, piece.start, piece.end))
    return [replace(piece, start=start, end=end) for piece, (start, end) in clips]


def worker_restarts(trace: Trace, parts: list[Piece], counted: list[Span]) -> int:
    """The part of that in which workers end and others start, until these have a batch; not of the first ones."""
    again = [each.whole for each in iterations(trace) if each.is_again and each.starts_workers]
    within = union([whole for whole in again if any(clip([whole], *window) for window in counted)])
    clipped = [
        replace(piece, start=start, end=end) for piece in parts for start, end in clip(within, piece.start, piece.end)
    ]
    return starved(trace, clipped)


def short_gaps(every: list[Piece], syncs: list[Sync], counted: list[Span]) -> list[Span]:
    """Gaps of at most 1 ms in which the device waits for a launch, but for those in which a sync returns.

    What of them is in the data loader is not for a launch.
    """
    waits = [piece for piece in every if piece.category == "host_bound"]
    launching = union([(piece.start, piece.end) for piece in waits if piece.phase not in ("dataload", "dataload_wait")])
    chosen = []
    for start, end in union([(piece.start, piece.end) for piece in waits]):
        if end - start <= LONGEST_GAP_NS and not any(start <= sync.end < end for sync in syncs):
            parts = clip(launching, start, end)
            chosen += [clipped for left, right in counted for clipped in clip(parts, left, right)]
    return chosen


def host_round_trips(trace: Trace, gaps: list[Span]) -> int:
    """The part of these gaps in which an op that copies to the host runs, on a thread that launches."""
    ops = nested(event for event in trace.events if event.cat == "cpu_op")
    launching = {call.thread for call in trace.launches.values()}
    around = []
    for copy in trace.device_ops:
        if copy.cat != "memcpy" or not TO_HOST.search(" ".join([copy.name, *map(str, copy.args.values())])):
            continue
        call = trace.launches.get(copy.row)
        begins = [(call.thread, call.start)] if call else [(thread, copy.start) for thread in launching]
        around += [ops[thread].innermost(instant) for thread, instant in begins if thread in ops]
    copying = union([(op.start, op.end) for op in around if op])
    return sum(measure(clip(copying, start, end)) for start, end in gaps)


def optimizers(trace: Trace, parts: list[Piece]) -> dict[str, int]:
    """By name: the work that each update launches, and the time in it in which nothing runs but what is underway."""
    updates: dict[str, list[Event]] = {}
    for event in trace.events:
        match = re.match(r"Optimizer\.step#(\w+)\.step", event.name)
        if match and event.cat in ("annotation", "cpu_op"):
            updates.setdefault(match[1], []).append(event)
    return {name: of_optimizer(trace, parts, rows) for name, rows in updates.items()}


def of_optimizer(trace: Trace, parts: list[Piece], rows: list[Event]) -> int:
    thread = rows[0].thread
    engine = [e for e in trace.events if e.name.startswith("autograd::engine") and e.cat in ("annotation", "cpu_op")]
    updates = []
    for row in rows:  # a closure runs backward inside: the update follows it
        ends = [e.end for e in engine if row.start <= e.start < row.end]
        updates.append((min(max(ends, default=row.start), row.end), row.end))
    within = union(updates)
    ns = 0
    for piece in parts:
        if piece.op is None:
            ns += common(piece, within) * (piece.category != "launch_latency")
        elif call := trace.launches.get(piece.op.row):
            ns += (piece.end - piece.start) * (call.thread == thread and inside(within, call.start))
    return ns


def carrying_metrics(trace: Trace, parts: list[Piece]) -> int:
    """Exposed time of gloo's collectives of one or two floats: in our jobs those of metrics."""
    rows = [e for e in trace.events if e.name.startswith("gloo:") and e.args.get("input type") == ["float"]]
    few = union([(e.start, e.end) for e in rows if prod(e.args["input dims"][0]) <= 2])
    return sum(common(piece, few) for piece in parts if piece.category == "exposed_comm")
