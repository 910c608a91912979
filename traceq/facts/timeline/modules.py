"""The tree of nn.Modules that Python stacks show, and the module in which each instant of a thread belongs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import forward_op, is_backward
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import Nest, host_ops, nest, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

__all__ = ["Modules", "modules", "modules_at", "modules_of_work"]

_MODULE = re.compile(r"^nn\.Module: ")


@dataclass(frozen=True, slots=True, eq=False)
class Modules:
    """M modules, each after the one that holds it: `paths` like `Net_0.Linear_1`; `parent` int64[M], -1 at the top;
    `frames` their calls by track; `number` int64[strings] from the name of a frame to its module.
    """

    paths: tuple[str, ...]
    parent: NDArray[np.int64]
    frames: dict[int, Nest]
    number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.paths)

    def with_inner(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[M, ...]: of each module its own values and those of all modules inside it."""
        total = values.copy()
        for inner in range(len(self) - 1, -1, -1):
            if self.parent[inner] >= 0:
                total[self.parent[inner]] += total[inner]
        return total


@once_per_trace
def modules(trace: Trace) -> Modules:
    """Modules by their first call; those of the main thread come first.

    A module stands where it is first called. When a checkpoint calls it again in backward, outside of what holds it, it
    is still the same module.
    """
    events = trace.events
    rows = events.rows(Category.PYTHON)
    rows = rows[matching(events, rows, _MODULE)]
    of_row, own = tracks(trace)[rows], main_track(trace)
    frames = {int(track): nest(events, rows[of_row == track]) for track in sorted_unique(of_row)}
    number, paths, parent = np.full(len(events.strings), -1), list[str](), list[int]()
    for track in sorted(frames, key=lambda track: track != own):
        found = frames[track]
        names = events.name[found.rows]
        _, first = np.unique(names, return_index=True)
        for at in np.sort(first).tolist():
            if number[names[at]] < 0:
                holder = int(number[names[found.parent[at]]]) if found.parent[at] >= 0 else -1
                name = events.strings[names[at]].removeprefix("nn.Module: ")
                number[names[at]] = len(paths)
                paths.append(f"{paths[holder]}.{name}" if holder >= 0 else name)
                parent.append(holder)
    return Modules(tuple(paths), np.array(parent, np.int64), frames, number)


def modules_at(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[K]: module of host instants on their threads, -1 outside all.

    The innermost one that runs; in a backward op the module of its forward op.
    """
    found = np.full(len(instants), -1)
    if len(modules(trace)) == 0:
        return found
    for number in sorted_unique(track).tolist():
        mine = np.flatnonzero(track == number)
        inside = _open(trace, number, instants[mine])
        found[mine] = np.where(inside >= 0, inside, _through_backward(trace, number, instants[mine]))
    return found


@once_per_trace
def modules_of_work(trace: Trace) -> NDArray[np.int64]:
    """int64[D]: module of each piece of device work by its launch, -1 outside all and without a launch."""
    call = device_work(trace).call
    found = modules_at(trace, tracks(trace)[call], trace.events.ts[call])
    return np.where(call >= 0, found, -1)


def _open(trace: Trace, track: int, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Module of the innermost frame at each instant of a thread."""
    tree = modules(trace)
    frames = tree.frames.get(track)
    if frames is None:
        return np.full(len(instants), -1)
    at = frames.at(instants)
    return np.where(at >= 0, tree.number[trace.events.name[frames.rows[at]]], -1)


def _through_backward(trace: Trace, track: int, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Module of the forward op of the backward op at each instant of a thread."""
    ops = host_ops(trace).get(track)
    if ops is None:
        return np.full(len(instants), -1)
    at = ops.first_enclosing(ops.at(instants), is_backward(trace)[ops.rows])
    forward = np.where(at >= 0, forward_op(trace)[ops.rows[at]], -1)
    return np.where(forward >= 0, _of_forward_ops(trace)[forward], -1)


@once_per_trace
def _of_forward_ops(trace: Trace) -> NDArray[np.int64]:
    """int64[N]: module of each row of Events that is a forward op of some backward op, else -1."""
    found = np.full(len(trace.events), -1)
    rows = sorted_unique(forward_op(trace))
    rows = rows[rows >= 0]
    of_row = tracks(trace)[rows]
    for track in sorted_unique(of_row).tolist():
        mine = rows[of_row == track]
        found[mine] = _open(trace, track, trace.events.ts[mine])
    return found
