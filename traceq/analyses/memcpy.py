"""What is copied between host and device, and on the device?"""

from __future__ import annotations

import re

import numpy as np

from traceq.analyses.tally import group
from traceq.links.launches import device_work
from traceq.model import Category, Run, Trace
from traceq.report import Column, Report, Table
from traceq.units import Unit

POSITION = 60

_COLUMNS = (
    Column("rank", "rank", Unit.COUNT),
    Column("kind", "copy"),
    Column("num", "num", Unit.COUNT),
    Column("bytes", "bytes", Unit.BYTES),
    Column("gpu_ns", "GPU time", Unit.NS),
)
_KIND = re.compile(r"^Memcpy (?P<kind>[A-Za-z]+to[A-Za-z]+)")


def analyze(run: Run) -> Report:
    """Copies by kind, over the whole trace."""
    rows = tuple(row for trace in run.traces for row in _rows(trace))
    sums: dict[str, list[int]] = {}
    for _, kind, *values in rows:
        sums[kind] = [a + b for a, b in zip(sums.get(kind, [0, 0, 0]), values, strict=True)]
    over = f"sum of {len(run.traces)} ranks, " if len(run.traces) > 1 else ""
    view = Table("memcpy", f"Copies ({over}whole trace)", _COLUMNS[1:], tuple((k, *v) for k, v in sums.items()))
    return Report("memcpy", (Table("memcpy", "Copies", _COLUMNS, rows),), (view,) if rows else ())


def _rows(trace: Trace) -> list[tuple[int, str, int, int, int]]:
    work, events = device_work(trace), trace.events
    mine = np.flatnonzero(events.category[work.rows] == Category.MEMCPY)
    rows = work.rows[mine]
    kinds: dict[str, int] = {}
    names, inverse = np.unique(events.name[rows], return_inverse=True)
    of_name = [kinds.setdefault(_kind(events.strings[name]), len(kinds)) for name in names.tolist()]
    groups = group([np.array(of_name, np.int64)[inverse]])
    label = list(kinds)
    bytes_, gpu_ns = groups.sum(np.maximum(events.bytes[rows], 0)), groups.sum((work.end - work.start)[mine])
    return [
        (trace.rank, label[int(key)], num, size, ns)
        for (key,), num, size, ns in zip(groups.keys.tolist(), groups.count(), bytes_, gpu_ns, strict=True)
    ]


def _kind(name: str) -> str:
    """`Memcpy DtoH (Device -> Pinned)` is DtoH; memory kinds after the arrow differ between versions of torch."""
    found = _KIND.match(name)
    return found["kind"] if found else name
