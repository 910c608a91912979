"""Tree of nn.Modules by Python stacks, and the module of each instant of a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import forward_op, forward_op_at
from traceq.facts.events.graph_replays import graph_labels, graph_replays
from traceq.facts.events.name_patterns import module_frames
from traceq.facts.events.nesting import ThreadNests, thread_nests, tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import main_track
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace

_MOST_LEVELS, _LONGEST_PATH = 64, 1024
"""Modules around one another, and characters of a path, several times those of the deepest models: each module has the
names of all around it in its path, whose memory would grow with the square of the depth."""


@frozen(eq=False)
class Modules:
    """M modules, each after its parent; what is deeper than paths reach counts to the module around it.

    `paths` like `Net_0.Linear_1`; `parent` int64[M], -1 at the top; `frames` their calls by track; `by_name`
    int64[strings] the module of a frame by the string id of its name, -1 for other strings; `by_label` that of each
    name of `graph_labels`.
    """

    paths: tuple[str, ...]
    parent: NDArray[np.int64]
    frames: ThreadNests
    by_name: NDArray[np.int64]
    by_label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.paths)

    def with_inner(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of the values (int64[M, ...]) of each module and of all modules inside it."""
        total = values.copy()
        for inner in range(len(self) - 1, -1, -1):
            if self.parent[inner] >= 0:
                total[self.parent[inner]] += total[inner]
        return total


@once_per_trace
def modules(trace: Trace) -> Modules:
    """Return the modules in order of their first call, those of the main thread first, then those of graphs' labels.

    The first call defines a module's parent: when a checkpoint calls the module again in backward, outside its parent,
    it is still the same module.
    """
    events = trace.events
    nests = thread_nests(trace, module_frames(trace))
    by_name, paths, parents = np.full(len(events.strings), -1), list[str](), list[int]()
    for track in sorted(nests, key=lambda track: track != main_track(trace)):
        calls = nests[track]
        names = events.name[calls.rows]
        _, first = np.unique(names, return_index=True)
        for index in np.sort(first).tolist():
            if by_name[names[index]] < 0:
                parent = int(by_name[names[calls.parent[index]]]) if calls.parent[index] >= 0 else -1
                name = events.strings[names[index]].removeprefix("nn.Module: ")
                path = f"{paths[parent]}.{name}" if parent >= 0 else name
                if parent >= 0 and _is_too_deep(path):
                    by_name[names[index]] = parent
                    continue
                by_name[names[index]] = len(paths)
                paths.append(path)
                parents.append(parent)
    by_label = list(_add_paths(paths, parents, graph_labels(trace).names))
    return Modules(tuple(paths), np.array(parents, np.int64), nests, by_name, np.array(by_label, np.int64))


def _is_too_deep(path: str) -> bool:
    return len(path) > _LONGEST_PATH or path.count(".") >= _MOST_LEVELS


def _add_paths(paths: list[str], parents: list[int], names: Iterable[str]) -> Iterator[int]:
    """Yield the module of each of these paths; append those, and the ones around them, that are not there yet."""
    index = {path: number for number, path in enumerate(paths)}
    for name in names:
        parent, path = -1, ""
        for part in name.split("."):
            path = f"{path}.{part}" if path else part
            if parent >= 0 and _is_too_deep(path):
                break
            if path not in index:
                index[path] = len(paths)
                paths.append(path)
                parents.append(parent)
            parent = index[path]
        yield parent


def modules_at(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the module of host instants on their threads: int64[K], -1 outside all modules.

    The innermost module that runs; in a backward op the module of its forward op.
    """
    if len(modules(trace)) == 0:
        return np.full(len(instants), -1)
    running = _running_modules(trace, track, instants)
    forward = forward_op_at(trace, track, instants)
    differentiated = np.where(forward >= 0, _modules_of_forward_ops(trace)[forward], -1)
    return np.where(running >= 0, running, differentiated)


@once_per_trace
def modules_of_work(trace: Trace) -> NDArray[np.int64]:
    """Return the module of each piece of device work by its launch: int64[D], -1 outside all and without a launch.

    A node of a graph counts to the module in which it was captured, where that is known, else to its replay's.
    """
    replays, labels = graph_replays(trace), graph_labels(trace)
    call = replays.calls(device_work(trace).call)
    module = np.where(call >= 0, modules_at(trace, tracks(trace)[call], trace.events.ts[call]), -1)
    labelled = np.append(modules(trace).by_label, -1)[labels.label]
    is_shown = (replays.captured >= 0) & (module >= 0)
    return np.where(is_shown | (labelled < 0), module, labelled)


def _running_modules(trace: Trace, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the module of the innermost module frame at each instant of a thread, -1 outside all."""
    tree, module = modules(trace), np.full(len(instants), -1)
    for frames, which in tree.frames.on(track):
        index = frames.innermost_at(instants[which])
        module[which] = np.where(index >= 0, tree.by_name[trace.events.name[frames.rows[index]]], -1)
    return module


@once_per_trace
def _modules_of_forward_ops(trace: Trace) -> NDArray[np.int64]:
    """Return the module of each row of Events that is the forward op of a backward op: int64[N], else -1."""
    module = np.full(len(trace.events), -1)
    rows = sorted_unique(forward_op(trace))
    rows = rows[rows >= 0]
    module[rows] = _running_modules(trace, tracks(trace)[rows], trace.events.ts[rows])
    return module
