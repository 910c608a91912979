"""Waits by their cause: which rank arrives last, in which phase, at which collective, and how long the others wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceq.analysis._wording import MOST_RANKS, more_rows
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.caused_waits import CausedWaits
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.report import Table, column
from traceq.units import Unit

__all__ = ["CausedWaitRow", "caused_wait_rows", "caused_wait_table", "caused_wait_view", "most_of_waits_for"]

_LEAST_SHARE = 0.01
"""Part of the step that others wait from which people see a row."""


@frozen
class CausedWaitRow:
    """Waits for one rank, the last to arrive in collectives of one kind and phase.

    They add up to its `caused_ns` in `ranks`.
    """

    key: str = column("key", is_hidden=True)
    rank: int = column("waits for rank", Unit.COUNT)
    phase: str = column("in phase")
    name: str = column("at collective")
    num_last: int = column("times last", Unit.COUNT)
    caused_ns: int = column("waits", Unit.NS)
    """Waits of the others, mean."""
    exposed_ns: int = column("exposed", Unit.NS)
    """Of `caused_ns`, they compute nothing."""


def caused_wait_rows(job: Job, waits: CausedWaits) -> tuple[CausedWaitRow, ...]:
    """Return the waits by the rank that causes them, its phase and the collective, the longest first."""
    issued = job.issued
    waited = np.flatnonzero(waits.ns > 0)
    if not len(waited):
        return ()
    cause, instance = waits.cause[waited], waits.instance[waited]
    call = job.waits.instances.call[instance, cause]
    groups = group([cause, issued.phase[call], issued.columns.name[call]])
    num_peers = np.maximum(waits.peers.sum(axis=1), 1)
    _, first = np.unique(instance, return_index=True)
    num_last = np.bincount(groups.group_ids[first], minlength=len(groups.keys)).tolist()
    rows = []
    for index, (rank, phase, name) in enumerate(groups.keys.tolist()):
        selected = waited[groups.group_ids == index]
        names = (issued.phases[phase] if phase >= 0 else "", COLLECTIVE_NAMES[name])
        caused_ns, exposed_ns = (int(ns[selected].sum()) / num_peers[rank] for ns in (waits.ns, waits.exposed_ns))
        number = issued.ranks[rank]
        key = "|".join((f"rank {number}", *names))
        rows.append(CausedWaitRow(key, number, *names, num_last[index], round(caused_ns), round(exposed_ns)))
    return tuple(sorted(rows, key=lambda row: (-row.caused_ns, row.key)))


def most_of_waits_for(rank: int, rows: Sequence[CausedWaitRow]) -> CausedWaitRow | None:
    """Return where others wait for a rank, if at least half of the waits for it are there."""
    of_rank = [row for row in rows if row.rank == rank]
    is_most = of_rank and 2 * of_rank[0].caused_ns >= sum(row.caused_ns for row in of_rank)
    return of_rank[0] if is_most else None


def caused_wait_table(rows: Sequence[CausedWaitRow]) -> Table:
    """Return the rows as sums over the compared steps."""
    return Table.of("caused_waits", "Waits by cause", CausedWaitRow, rows)


def caused_wait_view(rows: Sequence[CausedWaitRow], num_steps: int, step_ns: float) -> tuple[Table, ...]:
    """Return the longest waits of a mean step of `step_ns`; no table where all of them are short."""
    means = [
        replace(row, caused_ns=round(row.caused_ns / num_steps), exposed_ns=round(row.exposed_ns / num_steps))
        for row in rows
    ]
    shown = [row for row in means if row.caused_ns >= _LEAST_SHARE * step_ns][:MOST_RANKS]
    note = more_rows(len(rows) - len(shown))
    title = "What ranks wait for (waits per step, mean of the ranks that wait)"
    return (Table.of("caused_waits", title, CausedWaitRow, shown, note=note).visible,) if shown else ()
