"""Collectives matched across ranks: the skew of their starts, and the bandwidth of the transfer alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._collective_bandwidth import algbw_gbps, busbw_gbps
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.arrival_waits import ArrivalWaits, latest_rank
from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.report import Table, column
from traceq.units import Unit

__all__ = ["SkewRow", "skew_table", "skew_view"]


@frozen
class SkewRow:
    """Collectives of one name, group, dtype and phase, matched across ranks and summed."""

    key: str = column("key")
    name: str = column("collective")
    group: str = column("group")
    dtype: str = column("dtype")
    phase: str = column("phase")
    num_ranks: int = column("ranks", Unit.COUNT)
    num: int = column("num", Unit.COUNT)
    bytes: int | None = column("bytes", Unit.BYTES)
    """Larger side."""
    shortest_ns: int = column("transfer", Unit.NS)
    """Shortest duration over ranks: the transfer."""
    algbw_gbps: float | None = column("algbw", Unit.GBPS)
    busbw_gbps: float | None = column("busbw", Unit.GBPS)
    skew_ns: int = column("skew", Unit.NS)
    """From the first to the last start."""
    skew_max_ns: int = column("max skew", Unit.NS)
    last_rank: int = column("mostly last", Unit.COUNT)
    num_last: int = column("times", Unit.COUNT)


def skew_table(issued: JobCollectives | None, waits: ArrivalWaits | None) -> Table:
    """Return one row for each collective, group, dtype and phase; the first instance of each group counts as well."""
    rows = _rows(issued, waits) if issued is not None and waits is not None and len(waits) else []
    return Table.of("skew", "Collectives across ranks", SkewRow, rows)


def skew_view(table: Table, scope: str) -> Table:
    """Return the rows for people, those with most skew first; `scope` is what the rows cover."""
    view = table.largest_first("skew_ns").select(
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
    note = "Transfer: the shortest duration over ranks, summed; skew: from the first to the last rank's start, summed."
    return replace(view, title=f"Collectives across ranks ({scope})", note=note)


def _rows(issued: JobCollectives, waits: ArrivalWaits) -> list[SkewRow]:
    call = np.take_along_axis(waits.instances.call, _first_present(waits)[:, None], axis=1)[:, 0]
    num_ranks = (waits.duration >= 0).sum(axis=1)
    groups = group([issued.group[call], issued.columns.name[call], issued.dtype[call], issued.phase[call]])
    size, last = issued.columns.size[call], latest_rank(waits)
    sizes, num_unsized = groups.sum(np.maximum(size, 0)), groups.sum(size < 0)
    sums = zip(groups.keys.tolist(), groups.count(), groups.sum(waits.shortest), groups.sum(waits.skew), strict=True)
    rows: dict[tuple[int, int, str, int], SkewRow] = {}
    for index, ((number, name, dtype, phase), num, shortest_ns, skew_ns) in enumerate(sums):
        names = (
            COLLECTIVE_NAMES[name],
            issued.groups[number],
            issued.dtypes[dtype] if dtype >= 0 else "",
            issued.phases[phase],
        )
        selected = groups.group_ids == index
        size_bytes = None if num_unsized[index] else sizes[index]
        algbw = algbw_gbps(size_bytes, shortest_ns)
        num_last = np.bincount(last[selected], minlength=len(issued.ranks))
        ranks = int(num_ranks[selected].max())
        # not all ranks of a group need to be read
        members = max(int(issued.columns.group_size[call[selected]].max()), ranks)
        rows[number, name, names[2], phase] = SkewRow(
            "|".join(names),
            *names,
            num_ranks=ranks,
            num=num,
            bytes=size_bytes,
            shortest_ns=shortest_ns,
            algbw_gbps=algbw,
            busbw_gbps=busbw_gbps(algbw, names[0], members),
            skew_ns=skew_ns,
            skew_max_ns=int(waits.skew[selected].max()),
            last_rank=issued.ranks[int(num_last.argmax())],
            num_last=int(num_last.max()),
        )
    return [row for _, row in sorted(rows.items())]  # the number of a dtype depends on what is read first


def _first_present(waits: ArrivalWaits) -> NDArray[np.int64]:
    """Return int64[B]: the first rank that ran each."""
    first: NDArray[np.int64] = (waits.duration >= 0).argmax(axis=1)
    return first
