"""Cases of rewritten code: other names of ops and kernels, an op that is three, ops in another order, fused ops."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from known_changes.kinds import Edit
from known_changes.recording import Change, Doc, Recording, UnsuitableSource, is_compute, launching_ops
from traceq.facts.events.kernel_names import kernel_family

Tracks = Mapping[tuple[Any, Any], tuple[list[float], list[Doc]]]
Move = tuple[list[Doc], float]
"""Events, and by how many us they begin later."""

SHARES = (30, 60, 95)
"""Percent of the names of ops and kernels that are others in B."""
_KEPT = ("record_param_comms", "nccl", "ProfilerStep", "rccl", "oneccl", "c10d", "DataLoader")
"""Parts of names that no user can change: those of the profiler and of communication libraries."""
_FUSED = 0.6
"""Part of the time of kernels that the fused one takes."""


def renamed(edit: Edit, percent: int, seed: str) -> Edit:
    """Return the edit with this share of the names in B replaced, but for those of the change itself.

    As a rename, a fused layer or another version does. Times stay as they are, so that names alone cost nothing.
    """
    kept = {name for change in edit.changes if change.kind in ("sync", "collective") for name in change.names}
    docs = {rank: _renamed(doc, percent, seed, kept) for rank, doc in edit.b.items()}
    return replace(edit, b=docs)


def _renamed(doc: Doc, percent: int, seed: str, kept: Collection[str]) -> Doc:
    names = sorted(
        {
            (event["cat"] == "kernel", event["name"])
            for event in doc["traceEvents"]
            if event.get("cat") in ("cpu_op", "kernel") and _may_change(event["name"], kept)
        }
    )
    chosen = random.Random(seed).sample(names, round(len(names) * percent / 100))
    new = {name: f"new_kernel_{n}" if name[0] else f"ext::op_{n}" for n, name in enumerate(chosen)}
    for event in doc["traceEvents"]:
        if event.get("cat") in ("cpu_op", "kernel"):
            event["name"] = new.get((event["cat"] == "kernel", event["name"]), event["name"])
    return doc


def _may_change(name: str, kept: Collection[str]) -> bool:
    return name not in kept and not any(part in name for part in _KEPT)


def unchanged(recording: Recording) -> Edit:
    """Change nothing."""
    return Edit(recording.replayed(), recording.replayed(), ())


def in_three(doc: Doc, kept: Collection[str]) -> None:
    """Replace the most frequent op without ops in it by three of other names, which together do the same."""
    children = _children(doc)
    leaves = [event for event in _ops(doc) if id(event) not in children and event["dur"] > 3]
    name = _most_frequent(leaves, kept)
    for leaf in leaves:
        if leaf["name"] == name:
            third = leaf["dur"] / 3
            parts = [{**leaf, "name": f"ext::part_{n}", "ts": leaf["ts"] + n * third, "dur": third} for n in range(3)]
            leaf |= parts[0]
            doc["traceEvents"] += parts[1:]


def split(doc: Doc, kept: Collection[str]) -> None:
    """Replace the most frequent op of four or more ops by two of other names, each with a half of them."""
    children = _children(doc)
    parents = [event for event in _ops(doc) if len(children.get(id(event), ())) >= 4]
    name = _most_frequent(parents, kept)
    for parent in parents:
        if parent["name"] == name:
            inside, end = children[id(parent)], parent["ts"] + parent["dur"]
            middle = inside[len(inside) // 2]["ts"] - 0.001
            doc["traceEvents"].append({**parent, "name": "ext::second", "ts": middle, "dur": end - middle})
            parent |= {"name": "ext::first", "dur": middle - parent["ts"] - 0.001}


def reordered(doc: Doc, kept: Collection[str]) -> None:
    """Exchange the first two ops of other names that are neighbours inside each op, with their calls and kernels.

    Only where that changes no other time: the ops launch nothing, or their kernels are neighbours on a stream and begin
    once both are launched. Of all ops, those of the name with most such places.
    """
    children, tracks, work_of = _children(doc), _tracks(doc), _work_by_call(doc)
    places: defaultdict[str, list[list[Move]]] = defaultdict(list)
    for parent in _ops(doc):
        for pair in pairwise(children.get(id(parent), ())):
            names = {op["name"] for op in pair}
            if len(names) == 2 and not names & {*kept} and (moves := _exchange(pair, tracks, work_of)):
                places[parent["name"]].append(moves)
                break
    if not places:
        raise UnsuitableSource("no two ops can change places without changing times")
    for moves in max(places.values(), key=len):
        for events, by_us in moves:
            for event in events:
                event["ts"] += by_us


def _exchange(ops: Sequence[Doc], tracks: Tracks, work_of: Mapping[Any, list[Doc]]) -> list[Move]:
    """Return by how many us which events move so that the second op runs before the first; none if others would."""
    first, second = ops
    sides = [_within(tracks, op, op["ts"], _end(op)) for op in ops]
    if any("Synchronize" in each["name"] for side in sides for each in side):
        return []
    moves = [(sides[0], _end(second) - _end(first)), (sides[1], first["ts"] - second["ts"])]
    work = [[one for each in side for one in work_of.get(_correlation(each), ())] for side in sides]
    if not any(work):
        return moves
    if not all(work) or len({_track(each) for side in work for each in side}) > 1:
        return []
    begin, middle, until, end = (edge(side) for side in work for edge in (_begin, _last_end))
    is_alone = len(_within(tracks, work[0][0], begin, end - 0.001)) == sum(map(len, work))
    if not is_alone or middle > until or begin < _end(second):
        return []
    return [*moves, (work[0], end - middle), (work[1], begin - until)]


def _tracks(doc: Doc) -> Tracks:
    """Return the events of each thread or stream in order, beside their times."""
    events: defaultdict[tuple[Any, Any], list[Doc]] = defaultdict(list)
    for event in doc["traceEvents"]:
        if "ts" in event and "tid" in event:
            events[_track(event)].append(event)
    tracks = {}
    for track, of_track in events.items():
        of_track.sort(key=lambda event: event["ts"])
        tracks[track] = [event["ts"] for event in of_track], of_track
    return tracks


def _within(tracks: Tracks, event: Doc, begin: float, end: float) -> list[Doc]:
    """Return what begins between two times, both included, on the track of an event."""
    times, events = tracks[_track(event)]
    return events[bisect_left(times, begin) : bisect_right(times, end)]


def _track(event: Doc) -> tuple[Any, Any]:
    return event["pid"], event["tid"]


def _work_by_call(doc: Doc) -> Mapping[Any, list[Doc]]:
    """Return device work by the correlation of the call that launches it."""
    work: defaultdict[Any, list[Doc]] = defaultdict(list)
    for event in doc["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            work[_correlation(event)].append(event)
    return work


def _correlation(event: Doc) -> Any:
    return (event.get("args") or {}).get("correlation")


def _end(event: Doc) -> float:
    end: float = event["ts"] + event.get("dur", 0.0)
    return end


def _begin(events: Sequence[Doc]) -> float:
    begin: float = min(event["ts"] for event in events)
    return begin


def _last_end(events: Sequence[Doc]) -> float:
    return max(map(_end, events))


def fused(recording: Recording) -> Edit:
    """Fuse the kernels of the op with most of their time into one of 0.6 times their time, and its ops into one."""
    doc, simulator = recording.start()
    children, op_of = _children(doc), launching_ops(doc, simulator)
    kernels: defaultdict[int, list[Doc]] = defaultdict(list)  # by the op that launches them
    for number, work in enumerate(simulator.dev):
        call = simulator.info[number][1]
        if is_compute(work) and call is not None and id(call) in op_of:
            kernels[id(op_of[id(call)])].append(work)
    time: Counter[str] = Counter()
    groups: dict[int, tuple[Doc, list[Doc], list[Doc]]] = {}
    for parent in _ops(doc):
        ops = [op for op in children.get(id(parent), ()) if id(op) not in children]
        runs = [work for op in ops for work in kernels[id(op)]]
        if len(runs) >= 3 and len({work["tid"] for work in runs}) == 1:
            groups[id(parent)] = parent, ops, sorted(runs, key=lambda work: work["ts"])
            time[parent["name"]] += sum(work["dur"] for work in runs)
    if not time:
        raise UnsuitableSource("no op has three ops or more that launch kernels")
    name = time.most_common(1)[0][0]
    chosen = [group for group in groups.values() if group[0]["name"] == name]
    factor = {id(work): 0.0 for _, _, runs in chosen for work in runs}
    for _, _, runs in chosen:
        factor[id(runs[-1])] = _FUSED * sum(work["dur"] for work in runs) / max(runs[-1]["dur"], 0.001)
    names = {each["name"] for _, ops, _ in chosen for each in ops}
    names |= {kernel_family(work["name"]) for _, _, runs in chosen for work in runs}
    gone = [number for number, work in enumerate(simulator.dev) if factor.get(id(work)) == 0]
    early = {number: -_gap_us(simulator, number) for number in gone}
    simulator.run(scale=lambda work: factor.get(id(work), 1), late=early)
    _fuse(doc, simulator, chosen)
    change = Change("replaced", ("ext::fused", "fused_kernel", name, *sorted(names)), len(chosen))
    return Edit(recording.replayed(), {0: doc}, (change,))


def _gap_us(simulator: Any, number: int) -> float:
    """Return how long work starts after all that it waits for: a kernel that is gone has no gap before it either."""
    work, (before, call, awaited) = simulator.dev[number], simulator.info[number]
    ready = [_end(simulator.dev[each]) for each in (before, awaited) if each is not None]
    ready += [] if call is None else [call["ts"]]
    gap_us: float = max(work["ts"] - max(ready, default=work["ts"]), 0.0)
    return gap_us


def _fuse(doc: Doc, simulator: Any, chosen: Sequence[tuple[Doc, list[Doc], list[Doc]]]) -> None:
    """Remove the kernels without time and their calls, and join the ops, once all is where it belongs in time."""
    gone = {id(work) for _, _, runs in chosen for work in runs[:-1]}
    calls = {id(work): simulator.info[number][1] for number, work in enumerate(simulator.dev)}
    gone |= {id(calls[each]) for each in list(gone) if calls.get(each) is not None}
    for _, ops, runs in chosen:
        first, *others = sorted(ops, key=lambda op: op["ts"])
        end = max(op["ts"] + op["dur"] for op in ops)
        first |= {"name": "ext::fused", "dur": end - first["ts"]}
        runs[-1]["name"] = "fused_kernel"
        gone |= {id(op) for op in others}
    doc["traceEvents"] = [event for event in doc["traceEvents"] if id(event) not in gone]


def _ops(doc: Doc) -> list[Doc]:
    return [event for event in doc["traceEvents"] if event.get("cat") == "cpu_op" and "dur" in event]


def _children(doc: Doc) -> Mapping[int, list[Doc]]:
    """Return the ops directly inside each op that has any, by its id, in their order."""
    children: defaultdict[int, list[Doc]] = defaultdict(list)
    threads: defaultdict[tuple[Any, Any], list[Doc]] = defaultdict(list)
    for event in _ops(doc):
        threads[event["pid"], event["tid"]].append(event)
    for events in threads.values():
        opened: list[Doc] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while opened and opened[-1]["ts"] + opened[-1]["dur"] <= event["ts"]:
                opened.pop()
            if opened:
                children[id(opened[-1])].append(event)
            opened.append(event)
    return children


def _most_frequent(ops: Sequence[Doc], kept: Collection[str]) -> str:
    names: Counter[str] = Counter(event["name"] for event in ops if _may_change(event["name"], kept))
    if not names:
        raise UnsuitableSource("no such op")
    return names.most_common(1)[0][0]


REWRITTEN: Mapping[str, Callable[[Doc, Collection[str]], None]] = {
    "three": in_three,
    "split": split,
    "reordered": reordered,
}
"""Other code that takes as long, by which B is rewritten, but for ops of the names that are given."""


def rewritten(edit: Edit, kind: str) -> Edit:
    """Return the edit with B rewritten, but for the ops of the change itself."""
    kept = {name for change in edit.changes for name in change.names}
    kept |= {name for change in edit.changes if change.kind == "kernel" for name in change.ops}
    for doc in edit.b.values():
        REWRITTEN[kind](doc, kept)
    return edit
