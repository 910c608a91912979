"""What a step of either side waits for and exchanges: how many syncs and collectives, where, and how many bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.causes.vocabulary import in_names_of
from traceq.facts.comm.collective_roles import ROLES, collective_roles
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls
from traceq.facts.events.name_patterns import VENDOR
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace

_Key = tuple[str, str, str, str]


@frozen
class CountDelta:
    """Syncs or collectives in a mean counted step of the explained rank."""

    kind: str
    """`sync` or `collective`."""
    name: str
    what: str
    """Op of the sync, else its call without `cuda`, `hip` or `cu`; role of the collective."""
    phase: str
    line: str
    """Of most of these syncs."""
    a_num: float
    b_num: float
    a_bytes: float
    """Unknown sizes are left out."""
    b_bytes: float

    @property
    def is_change(self) -> bool:
        """Whether both sides differ in calls, collectives also in bytes."""
        return self.a_num != self.b_num or (self.a_bytes != self.b_bytes and self.kind != "sync")


@frozen
class _Count:
    num: float = 0.0
    bytes: float = 0.0
    line: str = ""


def count_deltas(a: Trace, b: Trace) -> tuple[CountDelta, ...]:
    """Return the counts of both sides, those that differ most first; bytes of unknown size count as 0.

    Syncs are under A's names of ops; the role of a collective may rest on its own.
    """
    renaming = in_names_of(a, b)
    sides = {**_syncs(a), **_collectives(a)}, {**_syncs(renaming.trace), **_collectives(b)}
    deltas = []
    for key in dict.fromkeys((*sides[0], *sides[1])):
        of_a, of_b = (side.get(key, _Count()) for side in sides)
        line = (of_b if of_b.num > of_a.num else of_a).line
        kind, name, what, phase = key
        phase = phase if of_a.num else renaming.others.get(phase, phase)  # one that only B has it in
        deltas.append(CountDelta(kind, name, what, phase, line, of_a.num, of_b.num, of_a.bytes, of_b.bytes))
    return tuple(sorted(deltas, key=lambda each: (-abs(each.b_num - each.a_num), -abs(each.b_bytes - each.a_bytes))))


def _syncs(trace: Trace) -> Mapping[_Key, _Count]:
    waits, texts, names = syncs(trace), syncs(trace).origin.texts, phases(trace).names
    call = np.where(waits.origin.op > 0, -1, trace.events.name[waits.rows].astype(np.int64))
    counted = _is_counted(trace, steps(trace).issued(waits.start))
    line = waits.origin.line[counted]
    groups = group([column[counted] for column in (waits.kind, waits.origin.op, call, waits.phase)])
    num_steps, sums = (
        int(steps(trace).counted.sum()),
        zip(groups.count(), groups.sum(waits.bytes[counted]), strict=True),
    )
    result = {}
    for index, ((kind, op, name, phase), (num, size)) in enumerate(zip(groups.keys.tolist(), sums, strict=True)):
        most = int(np.bincount(line[groups.group_ids == index]).argmax())
        what = texts[op] if op > 0 else VENDOR.sub("", trace.events.strings[name])
        key = "sync", SYNC_KINDS[kind], what, names[phase]
        result[key] = _Count(num / num_steps, size / num_steps, texts[most] if most > 0 else "")
    return result


def _collectives(trace: Trace) -> Mapping[_Key, _Count]:
    calls, names = collective_calls(trace), phases(trace).names
    counted = _is_counted(trace, calls.step)
    groups = group([column[counted] for column in (calls.name, collective_roles(trace), calls.phase)])
    num_steps = int(steps(trace).counted.sum())
    sums = zip(groups.count(), groups.sum(np.maximum(calls.size, 0)[counted]), strict=True)
    return {
        ("collective", COLLECTIVE_NAMES[name], ROLES[role], names[phase]): _Count(num / num_steps, size / num_steps)
        for (name, role, phase), (num, size) in zip(groups.keys.tolist(), sums, strict=True)
    }


def _is_counted(trace: Trace, step: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray((step >= 0) & steps(trace).counted[step])
