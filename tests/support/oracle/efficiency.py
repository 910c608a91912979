"""Ops that findings compare with a roof or with a fused kernel, from the events of one file."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from math import prod
from pathlib import Path

from .phases import Phases
from .reader import Event, Trace, read
from .replay import Replay
from .steps import windows
from .unrecorded import gaps, opening

__all__ = ["attention_ns", "saved_ns"]

REACHED = 0.7
DEVICES = {  # name -> (bytes per ns, FLOPs per ns, and those with a precision that a finding may compare with)
    "NVIDIA B200": (8000, {}, {}),
    "NVIDIA H100 80GB HBM3": (3350, {}, {}),
    "NVIDIA A100-SXM4-40GB": (1555, {"float": 19_500}, {"float": 156_000}),  # in TF32
}
LEAST_NS = 2_000
ITEM_BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2}
PRODUCTS = ("aten::bmm", "aten::baddbmm")


def saved_ns(path: Path, op: str, phase: str) -> float:
    """By how much the mean counted step is shorter if calls of an op take as long as at 70 % of their roof.

    By replay of the file. In TF32 where FLOPs bind all calls together; no call takes less than the shortest kernel.
    """
    replay = Replay(path)
    trace = replay.trace
    (device,) = {each["name"] for each in trace.meta["deviceProperties"]}
    bandwidth, rates, faster = DEVICES[device]
    shortest = min(min(e.end - e.start for e in trace.device_ops if e.cat == "kernel"), LEAST_NS)
    kernels_of: dict[str, list[Event]] = defaultdict(list)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0])
    for call, kernels in calls_of(trace, (op,), phase)[1]:
        flops, moved = work(call)
        shapes = str(call.args["input dims"]) + str(call.args["input type"])
        kernels_of[shapes] += kernels
        dtype = call.args["input type"][1]
        each = sum(kernel.end - kernel.start for kernel in kernels), flops / rates.get(dtype, 1e99), moved / bandwidth
        sums[shapes] = [before + now for before, now in zip(sums[shapes], (*each, 1), strict=True)]
        factor = rates[dtype] / faster[dtype] if dtype in faster else 1
    by_flops = sum(of_flops for _, of_flops, _, _ in sums.values()) > sum(moved for *_, moved, _ in sums.values())
    ns_of = {}
    for shapes, (ns, of_flops, moved, num) in sums.items():
        least = max(max(of_flops * factor if by_flops else of_flops, moved) / REACHED, num * shortest)
        for kernel in kernels_of[shapes]:
            ns_of[kernel.row] = round((kernel.end - kernel.start) * min(least / ns, 1))
    return replay.saved_by_faster_work(ns_of)


def attention_ns(path: Path, phase: str, scores: tuple[int, int, int]) -> float:
    """Time of softmaxes of such scores, of products that give them and that take them: ns of a mean counted step."""
    trace = read(path)
    num_steps, calls = calls_of(trace, ("aten::_softmax", "aten::_safe_softmax", *PRODUCTS), phase)
    return sum(k.end - k.start for call, kernels in calls if has_scores(call, scores) for k in kernels) / num_steps


def has_scores(call: Event, scores: tuple[int, int, int]) -> bool:
    """Whether a call gives, takes or normalises scores of this shape."""
    batch, rows, columns = scores
    shapes = [shape for shape in call.args["input dims"] if len(shape) > 2]
    if call.name not in PRODUCTS:
        *outer, height, width = shapes[0]
        return (prod(outer), height, width) == scores
    left, right = shapes[-2:]
    return [batch, rows, columns] in ([left[0], left[1], right[2]], left) and left[2] != right[2]


def work(call: Event) -> tuple[int, int]:
    """FLOPs and bytes of a call: each element read or written once; of a product without what is added to it."""
    dims, types = call.args["input dims"], call.args["input type"]
    sizes = [prod(shape) * ITEM_BYTES.get(kind, 0) if shape else 0 for shape, kind in zip(dims, types, strict=True)]
    if call.name == "aten::addmm":
        (rows, inner), (_, columns) = dims[1], dims[2]
        return 2 * rows * inner * columns, sum(sizes[1:3]) + rows * columns * ITEM_BYTES[types[1]]
    if call.name == "aten::_index_put_impl_":  # the values are read, and written at other places
        return 0, 2 * sizes[2]
    assert call.name == "aten::_softmax", call.name
    return 0, 2 * sizes[0]


def calls_of(trace: Trace, names: Iterable[str], phase: str) -> tuple[int, list[tuple[Event, list[Event]]]]:
    """The number of counted steps, and the calls that begin on the device in one, in a phase, with their kernels.

    A kernel belongs to the outermost such op around its launch; of ops that only move bytes, to one that launches it
    itself.
    """
    phases = Phases(trace)
    steps = windows(trace, phases, opening(trace, gaps(trace)))
    counted = [step for step in steps if not step["partial"]] or steps
    ops: dict[tuple[str, str], list[Event]] = defaultdict(list)
    pattern = re.compile("|".join(f"{re.escape(name)}$" for name in names))
    for event in sorted(trace.events, key=lambda event: (event.start, -event.end)):
        of_thread = ops[event.thread]
        if event.cat == "cpu_op" and pattern.match(event.name) and not (of_thread and event.start < of_thread[-1].end):
            of_thread.append(event)
    inside: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.cat == "cpu_op" and not multiplies(event):
            inside[event.thread].append(event)
    starts = {thread: [event.start for event in events] for thread, events in ops.items()}
    kernels: dict[int, list[Event]] = defaultdict(list)
    called: dict[int, Event] = {}
    for kernel in trace.device_ops:
        launch = trace.launches.get(kernel.row)
        if launch is None:
            continue
        index = bisect_right(starts.get(launch.thread, []), launch.start) - 1
        if index >= 0 and launch.start < ops[launch.thread][index].end:
            call = ops[launch.thread][index]
            if multiplies(call) or innermost(inside[launch.thread], launch) is call:
                kernels[call.row].append(kernel)
                called[call.row] = call
    chosen: list[tuple[Event, list[Event]]] = []
    for row, work_of in kernels.items():
        first = min(work_of, key=lambda kernel: kernel.start)
        is_counted = any(step["start_ns"] <= first.start < step["end_ns"] for step in counted)
        if is_counted and phases.of_op[first.row] == phase:
            chosen.append((called[row], work_of))
    return len(counted), chosen


def multiplies(call: Event) -> bool:
    """Whether an op is a product of matrices here."""
    return call.name in ("aten::addmm", *PRODUCTS)


def innermost(ops: list[Event], launch: Event) -> Event:
    """The innermost of the ops of a thread around a launch."""
    return max((op for op in ops if op.start <= launch.start < op.end), key=lambda op: (op.start, -op.end))
