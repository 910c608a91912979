"""Cases of rewritten code: other names of ops and kernels, an op that is three, a module that is two, fused ops."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from known_changes.kinds import Edit
from known_changes.recording import Change, Doc, Recording, UnsuitableSource, is_compute, launching_ops
from traceq.facts.events.kernel_names import kernel_family

__all__ = ["REWRITTEN", "SHARES", "fused", "in_three", "renamed", "split", "unchanged"]

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


def in_three(recording: Recording) -> Edit:
    """Replace the most frequent op without ops in it by three of other names, which together do the same."""
    (doc,) = recording.replayed().values()
    children = _children(doc)
    leaves = [event for event in _ops(doc) if id(event) not in children and event["dur"] > 3]
    name = _most_frequent(leaves)
    for leaf in leaves:
        if leaf["name"] == name:
            third = leaf["dur"] / 3
            parts = [{**leaf, "name": f"ext::part_{n}", "ts": leaf["ts"] + n * third, "dur": third} for n in range(3)]
            leaf |= parts[0]
            doc["traceEvents"] += parts[1:]
    return Edit(recording.replayed(), {0: doc}, ())


def split(recording: Recording) -> Edit:
    """Replace the most frequent op of four or more ops by two of other names, each with a half of them."""
    (doc,) = recording.replayed().values()
    children = _children(doc)
    parents = [event for event in _ops(doc) if len(children.get(id(event), ())) >= 4]
    name = _most_frequent(parents)
    for parent in parents:
        if parent["name"] == name:
            inside, end = children[id(parent)], parent["ts"] + parent["dur"]
            middle = inside[len(inside) // 2]["ts"] - 0.001
            doc["traceEvents"].append({**parent, "name": "ext::second", "ts": middle, "dur": end - middle})
            parent |= {"name": "ext::first", "dur": middle - parent["ts"] - 0.001}
    return Edit(recording.replayed(), {0: doc}, ())


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
    simulator.run(scale=lambda work: factor.get(id(work), 1))
    _fuse(doc, simulator, chosen)
    change = Change("replaced", ("ext::fused", "fused_kernel", name, *sorted(names)), len(chosen))
    return Edit(recording.replayed(), {0: doc}, (change,))


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


def _most_frequent(ops: Sequence[Doc]) -> str:
    names: Counter[str] = Counter(event["name"] for event in ops if _may_change(event["name"], ()))
    if not names:
        raise UnsuitableSource("no such op")
    return names.most_common(1)[0][0]


REWRITTEN: Mapping[str, Callable[[Recording], Edit]] = {"three": in_three, "split": split, "fused": fused}
"""Kinds of rewritten code that stand for themselves."""
