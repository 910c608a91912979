"""Where does the host wait for the device, what does it cost, and which line asked for it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis._parts import Part, each_of, of_all
from traceq.analysis._wording import more_rows, over_ranks, per_step, stepwise
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.dependency_graph import dependency_graph
from traceq.facts.stalls.replay import saved_a_step
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import Steps, steps
from traceq.grouping import Groups, group
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_value

POSITION = 40

_TOP = 8
_MOST_FINDINGS = 3
_THRESHOLD = 0.001
_LONG = 0.01
"""Part of a step from which a wait that costs nothing is worth a word."""
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
    Column("return_ns", "returned", Unit.NS),
    Column("starved_ns", "starved", Unit.NS),
    Column("cost_ns", "cost", Unit.NS),
    Column("replay_ns", "saves a step", Unit.NS),
    Column("label", "label"),
)
_VIEW = ("kind", "line", "op", "phase", "num", "blocked_ns", "cost_ns", "replay_ns", "label")
_ON_CPU = ("kind", "line", "op", "phase", "num", "blocked_ns", "cost_ns", "label")


@dataclass(frozen=True, slots=True)
class _Row:
    """Syncs of one kind, op, line, module and phase on one rank; times are sums over the trace, but `replay_ns`, by
    which a step becomes shorter without them, and the last two are means over steps.
    """

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
    return_ns: int
    starved_ns: int
    cost_ns: int
    replay_ns: int
    label: str
    step_blocked_ns: int
    step_cost_ns: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(getattr(self, column.key) for column in _COLUMNS)


def summarize(trace: Trace) -> Part[_Row]:
    """Syncs by kind, op, line and phase over the whole trace; what a row costs is device time lost to it."""
    return Part(tuple(_rows(trace)))


def merge(job: Job, parts: Sequence[Part[_Row]]) -> Report:
    """The rows of all ranks; people see sums over them, and findings where they matter most."""
    rows = of_all(parts)
    table = Table("syncs", "Syncs", _COLUMNS, each_of(parts, lambda part: [row.cells for row in part.rows]))
    return Report("syncs", (table,), (_view(job, rows),) if rows else (), tuple(_findings(job, rows)))


def _rows(trace: Trace) -> list[_Row]:
    found, names, strings = syncs(trace), phases(trace).names, trace.events.strings
    origin, paths = found.origin, modules(trace).paths
    module = modules_at(trace, tracks(trace)[found.rows], found.start + found.blocked // 2)
    groups = group([found.kind, origin.op, origin.line, module, found.phase])
    host = steps(trace).host[steps(trace).counted]
    counts = span_index(host, found.start) >= 0
    in_steps = [np.where(counts, column, 0) for column in (found.blocked, found.cost)]
    columns = [found.bytes, found.blocked, found.wait, found.starved, found.cost, *in_steps]
    saved = _saved_a_step(trace, groups)
    sums = list(zip(groups.count(), *(groups.sum(column) for column in columns), strict=True))
    rows = []
    for (kind, op, line, path, phase), first, values, replay_ns in zip(
        groups.keys.tolist(), groups.first.tolist(), sums, saved, strict=True
    ):
        words = SYNC_KINDS[kind], origin.texts[op], origin.texts[line], paths[path] if path >= 0 else "", names[phase]
        call = "" if SYNC_KINDS[kind] == "scalar" else strings[trace.events.name[found.rows[first]]]
        num, size, blocked_ns, wait_ns, starved_ns, cost_ns, counted_blocked_ns, counted_cost_ns = values
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
                return_ns=blocked_ns - wait_ns,
                starved_ns=starved_ns,
                cost_ns=cost_ns,
                replay_ns=replay_ns,
                label=_label(trace, wait_ns=wait_ns, cost_ns=cost_ns),
                step_blocked_ns=round(counted_blocked_ns / len(host)),
                step_cost_ns=round(counted_cost_ns / len(host)),
            )
        )
    return sorted(rows, key=lambda row: (-row.cost_ns, -row.blocked_ns, row.key))


def _saved_a_step(trace: Trace, groups: Groups) -> list[int]:
    """Ns by which a step becomes shorter without the syncs of each group, all others kept."""
    call = dependency_graph(trace).holds.call
    removed = np.zeros((len(groups.keys), len(call)), np.bool_)
    blocks = np.flatnonzero(call >= 0)
    removed[groups.of_row[call[blocks]], blocks] = True
    saved: list[int] = saved_a_step(trace, removed).tolist()
    return saved


def _label(trace: Trace, *, wait_ns: int, cost_ns: int) -> str:
    windows = steps(trace).window
    threshold = _THRESHOLD * int((windows[:, 1] - windows[:, 0]).sum())
    return "costly" if cost_ns >= threshold else "waits_but_free" if wait_ns >= threshold else "harmless"


def _view(job: Job, rows: Sequence[_Row]) -> Table:
    """Rows summed over ranks, the costliest first."""
    by_key: dict[str, list[_Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    merged = sorted(by_key.values(), key=lambda same: (-_sum(same, "cost_ns"), -_sum(same, "blocked_ns"), same[0].key))
    numbers = ("num", "bytes", "blocked_ns", "wait_ns", "starved_ns", "cost_ns")
    keys = _ON_CPU if all(row.kind == "scalar" for row in rows) else _VIEW
    labels = ("costly", "waits_but_free", "harmless")
    shown = []
    for same in merged[:_TOP]:
        label = min((row.label for row in same), key=labels.index)
        merged_cells: dict[str, Cell] = {key: _sum(same, key) for key in numbers}
        merged_cells |= {"op": same[0].op or same[0].call, "label": label.replace("_", " ")}
        merged_cells["replay_ns"] = max(row.replay_ns for row in same)
        shown.append(tuple(merged_cells.get(key, getattr(same[0], key)) for key in keys))
    columns = tuple(column for column in _COLUMNS if column.key in keys)
    columns = tuple(sorted(columns, key=lambda column: keys.index(column.key)))
    return Table("syncs", f"Syncs ({over_ranks(job)})", stepwise(columns, job), tuple(shown), note=_note(merged))


def _sum(rows: list[_Row], key: str) -> int:
    return sum(getattr(row, key) for row in rows)


def _note(merged: list[list[_Row]]) -> str:
    everything = [row for same in merged for row in same]
    num, cost = _sum(everything, "num"), format_value(_sum(everything, "cost_ns"), Unit.NS)
    more = f" {more_rows(len(merged) - _TOP)}".rstrip()
    if all(row.kind == "scalar" for row in everything):
        return (
            f"{num:,} reads of a tensor's value by Python: on an accelerator each one is a device-to-host sync.{more}"
        )
    syncs_cost = "syncs cost" if num > 1 else "sync costs"
    return f"{num:,} {syncs_cost} {cost} of device time{' together' if num > 1 else ''}.{more}"


def _findings(job: Job, rows: Sequence[_Row]) -> list[Finding]:
    """Rows whose removal would make a step shorter, then those that wait long and may stay; each on the rank where it
    matters most.
    """
    step_ns = {rank.rank: _step_ns(rank.steps) for rank in job.ranks}
    worst: dict[str, _Row] = {}
    for row in sorted(rows, key=lambda row: (-row.replay_ns, -row.step_blocked_ns)):
        worst.setdefault(row.key, row)
    saving = [row for row in worst.values() if row.replay_ns >= _THRESHOLD * step_ns[row.rank]]
    blocking = sorted(worst.values(), key=lambda row: -row.step_blocked_ns)
    free = [row for row in blocking if row not in saving and row.step_blocked_ns >= _LONG * step_ns[row.rank]]
    return [
        *(_finding(job, row, "costly_sync", "high") for row in saving[:_MOST_FINDINGS]),
        *(_finding(job, row, "free_sync", "low") for row in free[:1]),
    ]


def _step_ns(found: Steps) -> float:
    windows = found.window[found.counted]
    return float((windows[:, 1] - windows[:, 0]).mean())


def _finding(job: Job, row: _Row, code: str, severity: str) -> Finding:
    where = f"{row.line} ({row.op})" if row.line and row.op else row.line or row.op or row.call
    on = f" on rank {row.rank}" if len(job.ranks) > 1 else ""
    blocks, saves, idles = (format_value(ns, Unit.NS) for ns in (row.step_blocked_ns, row.replay_ns, row.step_cost_ns))
    said = f"{row.kind} sync at {where} in {row.phase}{on} blocks the host {blocks} {per_step(job.ranks[0].steps)}"
    if code == "free_sync":
        said += f", but removing it saves {saves} (replay): leave it"
    else:
        said += f"; removing it saves {saves} (replay)"
        said += f", the device idles {idles} right behind it" if row.step_cost_ns else ""
    return Finding(code, severity, said, row.replay_ns, row.key)
