"""Where does the host wait for the device, what does it cost, and which line asked for it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceq.analyses.tally import group
from traceq.intervals import find
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.links.syncs import KINDS, syncs
from traceq.model import Run, Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 40

_TOP = 12
_MOST_FINDINGS = 3
_THRESHOLD = 0.001
_COLUMNS = (
    Column("key", "key"),
    Column("rank", "rank", Unit.COUNT),
    Column("kind", "kind"),
    Column("op", "op"),
    Column("call", "call"),
    Column("phase", "phase"),
    Column("line", "line"),
    Column("module", "module"),
    Column("num", "num", Unit.COUNT),
    Column("bytes", "bytes", Unit.BYTES),
    Column("blocked_ns", "blocked", Unit.NS),
    Column("wait_ns", "waited", Unit.NS),
    Column("starved_ns", "starved", Unit.NS),
    Column("cost_ns", "cost", Unit.NS),
    Column("label", "label"),
)
_VIEW = ("kind", "line", "op", "phase", "num", "blocked_ns", "cost_ns", "label")


@dataclass(frozen=True, slots=True)
class _Row:
    """Syncs of one kind, op, line, module and phase on one rank; times are sums over the trace, `counted_cost_ns` over
    the steps that means are taken of."""

    key: str
    rank: int
    kind: str
    op: str
    call: str
    phase: str
    line: str
    module: str
    num: int
    bytes: int
    blocked_ns: int
    wait_ns: int
    starved_ns: int
    cost_ns: int
    label: str
    counted_cost_ns: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(getattr(self, column.key) for column in _COLUMNS)


def analyze(run: Run) -> Report:
    """Syncs by kind, op, line and phase over the whole trace; what a row costs is device time lost to it."""
    rows = [row for trace in run.traces for row in _rows(trace)]
    table = Table("syncs", "Syncs", _COLUMNS, tuple(row.cells for row in rows))
    return Report("syncs", (table,), (_view(run, rows),) if rows else (), tuple(_findings(run, rows)))


def _rows(trace: Trace) -> list[_Row]:
    found, names, strings = syncs(trace), phases(trace).names, trace.events.strings
    origin = found.origin
    groups = group([found.kind, origin.op, origin.line, origin.module, found.phase])
    windows = steps(trace).window[steps(trace).counted]
    counted = np.where(find(windows, found.start) >= 0, found.cost, 0)
    columns = (found.bytes, found.blocked, found.wait, found.starved, found.cost, counted)
    sums = list(zip(groups.count(), *(groups.sum(column) for column in columns), strict=True))
    rows = []
    for (kind, op, line, module, phase), first, values in zip(
        groups.keys.tolist(), groups.first.tolist(), sums, strict=True
    ):
        words = KINDS[kind], origin.texts[op], origin.texts[line], origin.texts[module], names[phase]
        call = "" if KINDS[kind] == "scalar" else strings[trace.events.name[found.rows[first]]]
        num, size, blocked_ns, wait_ns, starved_ns, cost_ns, counted_cost_ns = values
        rows.append(
            _Row(
                key="|".join(words),
                rank=trace.rank,
                kind=words[0],
                op=words[1],
                call=call,
                phase=words[4],
                line=words[2],
                module=words[3],
                num=num,
                bytes=size,
                blocked_ns=blocked_ns,
                wait_ns=wait_ns,
                starved_ns=starved_ns,
                cost_ns=cost_ns,
                label=_label(trace, wait_ns=wait_ns, cost_ns=cost_ns),
                counted_cost_ns=counted_cost_ns,
            )
        )
    return sorted(rows, key=lambda row: (-row.cost_ns, -row.blocked_ns, row.key))


def _label(trace: Trace, *, wait_ns: int, cost_ns: int) -> str:
    windows = steps(trace).window
    threshold = _THRESHOLD * int((windows[:, 1] - windows[:, 0]).sum())
    return "costly" if cost_ns >= threshold else "waits_but_free" if wait_ns >= threshold else "harmless"


def _view(run: Run, rows: list[_Row]) -> Table:
    """Rows summed over ranks, the costliest first."""
    by_key: dict[str, list[_Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    merged = sorted(by_key.values(), key=lambda same: (-_sum(same, "cost_ns"), -_sum(same, "blocked_ns"), same[0].key))
    numbers = ("num", "bytes", "blocked_ns", "wait_ns", "starved_ns", "cost_ns")
    labels = ("costly", "waits_but_free", "harmless")
    shown = []
    for same in merged[:_TOP]:
        label = min((row.label for row in same), key=labels.index)
        shown.append(
            tuple(
                label if key == "label" else _sum(same, key) if key in numbers else getattr(same[0], key)
                for key in _VIEW
            )
        )
    columns = tuple(column for column in _COLUMNS if column.key in _VIEW)
    columns = tuple(sorted(columns, key=lambda column: _VIEW.index(column.key)))
    over = f"sum of {len(run.traces)} ranks, " if len(run.traces) > 1 else ""
    return Table("syncs", f"Syncs ({over}whole trace)", columns, tuple(shown), note=_note(merged))


def _sum(rows: list[_Row], key: str) -> int:
    return sum(getattr(row, key) for row in rows)


def _note(merged: list[list[_Row]]) -> str:
    everything = [row for same in merged for row in same]
    num, cost = _sum(everything, "num"), format_value(_sum(everything, "cost_ns"), Unit.NS)
    more = f" {len(merged) - _TOP} more rows in --json." if len(merged) > _TOP else ""
    if all(row.kind == "scalar" for row in everything):
        return (
            f"{num:,} reads of a tensor's value by Python: on an accelerator each one is a device-to-host sync.{more}"
        )
    lines = "" if any(row.line for row in everything) else " No Python lines: record with stacks to see them."
    return f"{num:,} syncs cost {cost} of device time together.{more}{lines}"


def _findings(run: Run, rows: list[_Row]) -> list[Finding]:
    """The costliest rows, each on the rank where it costs most a step."""
    num_steps = {trace.rank: int(steps(trace).counted.sum()) for trace in run.traces}
    worst: dict[str, tuple[float, _Row]] = {}
    for row in rows:
        each_ns = row.counted_cost_ns / num_steps[row.rank]
        if row.label == "costly" and each_ns > worst.get(row.key, (0.0, row))[0]:
            worst[row.key] = (each_ns, row)
    costly = sorted(worst.values(), key=lambda item: -item[0])[:_MOST_FINDINGS]
    return [_finding(run, row, each_ns) for each_ns, row in costly]


def _finding(run: Run, row: _Row, each_ns: float) -> Finding:
    where = f"{row.line} ({row.op})" if row.line and row.op else row.line or row.op or row.call
    on = f" on rank {row.rank}, where it costs most," if len(run.traces) > 1 else ""
    cost = format_value(each_ns, Unit.NS)
    text = f"{row.kind} sync at {where} in {row.phase}{on} costs up to {cost} of device time a step"
    return Finding("costly_sync", "high", text, round(each_ns), row.key)
