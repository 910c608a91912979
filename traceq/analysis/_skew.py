"""Collectives matched across ranks, in rows: how far apart their starts, how fast the transfer itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._bandwidth import algbw_gbps, busbw_gbps
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.arrival_waits import Waits, latest_rank
from traceq.facts.ranks.job_collectives import Issued
from traceq.grouping import group
from traceq.report import Cell, Column, Table
from traceq.units import Unit

__all__ = ["skew_table", "skew_view"]

_COLUMNS = (
    Column("key", "key"),
    Column("name", "collective"),
    Column("group", "group"),
    Column("dtype", "dtype"),
    Column("phase", "phase"),
    Column("num_ranks", "ranks", Unit.COUNT),
    Column("num", "num", Unit.COUNT),
    Column("bytes", "bytes", Unit.BYTES),
    Column("shortest_ns", "transfer", Unit.NS),
    Column("algbw_gbps", "algbw", Unit.GBPS),
    Column("busbw_gbps", "busbw", Unit.GBPS),
    Column("skew_ns", "skew", Unit.NS),
    Column("skew_max_ns", "longest skew", Unit.NS),
    Column("last_rank", "mostly last", Unit.COUNT),
    Column("num_last", "times", Unit.COUNT),
)
_VIEW = (
    "name",
    "phase",
    "dtype",
    "num_ranks",
    "num",
    "bytes",
    "shortest_ns",
    "busbw_gbps",
    "skew_ns",
    "last_rank",
    "num_last",
)


def skew_table(issued: Issued | None, found: Waits | None) -> Table:
    """One row for each collective, group, dtype and phase: sums over its instances, each group's first included.

    `shortest_ns` sums the shortest duration of each instance, on which the bandwidths rest: the rest is waiting.
    """
    rows = tuple(_rows(issued, found)) if issued is not None and found is not None and len(found) else ()
    return Table("skew", "Collectives across ranks", _COLUMNS, rows)


def skew_view(table: Table, of: str) -> Table:
    """The rows with most skew first, for people; `of` what they are."""
    keys = [column.key for column in _COLUMNS]
    at = [keys.index(key) for key in _VIEW]
    order = sorted(table.rows, key=lambda row: -int(row[keys.index("skew_ns")] or 0))
    note = "Transfer: the shortest duration over ranks, summed; skew: from the first to the last rank's start, summed."
    columns = tuple(_COLUMNS[index] for index in at)
    shown = tuple(tuple(row[index] for index in at) for row in order)
    return Table("skew", f"Collectives across ranks ({of})", columns, shown, note=note)


def _rows(issued: Issued, found: Waits) -> list[tuple[Cell, ...]]:
    call = np.take_along_axis(found.instances.call, _first_present(found)[:, None], axis=1)[:, 0]
    num_ranks = (found.duration >= 0).sum(axis=1)
    groups = group([issued.group[call], issued.called.name[call], issued.dtype[call], issued.phase[call]])
    size, last = issued.called.size[call], latest_rank(found)
    sized, unknown = groups.sum(np.maximum(size, 0)), groups.sum(size < 0)
    sums = zip(groups.keys.tolist(), groups.count(), groups.sum(found.shortest), groups.sum(found.skew), strict=True)
    rows: list[tuple[Cell, ...]] = []
    for at, ((number, name, dtype, phase), num, shortest_ns, skew_ns) in enumerate(sums):
        words = (
            COLLECTIVE_NAMES[name],
            issued.groups[number],
            issued.dtypes[dtype] if dtype >= 0 else "",
            issued.phases[phase],
        )
        mine = groups.of_row == at
        size_bytes = None if unknown[at] else sized[at]
        algbw = algbw_gbps(size_bytes, shortest_ns)
        lasts = np.bincount(last[mine], minlength=len(issued.ranks))
        ranks = int(num_ranks[mine].max())
        members = max(
            int(issued.called.group_size[call[mine]].max()), ranks
        )  # not all ranks of a group need to be read
        speed = (shortest_ns, algbw, busbw_gbps(algbw, words[0], members))
        apart = (skew_ns, int(found.skew[mine].max()), issued.ranks[int(lasts.argmax())], int(lasts.max()))
        rows.append(("|".join(words), *words, ranks, num, size_bytes, *speed, *apart))
    return rows


def _first_present(found: Waits) -> NDArray[np.int64]:
    """int64[B]: the first rank that ran each."""
    first: NDArray[np.int64] = (found.duration >= 0).argmax(axis=1)
    return first
