"""Which lines of Python take the time, on the host and in the work that they launch?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import other_share
from traceq.analysis._rank_rows import largest_sums, of_all
from traceq.analysis._wording import in_traced_steps, more_rows
from traceq.analysis.perturbation import much_longer_words
from traceq.claims.claim import Basis, Claim, Subject, measured
from traceq.claims.limits import LARGE, MOST, SHOWN
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.main_lines import MainLines, line_parts, lines_of_work, main_lines, outermost_ops
from traceq.facts.timeline.phases import OTHER, phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import contains, spans
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit

_TOP = 10
_MOST_OPS = 2
_ENGINE = "autograd::engine::evaluate_function: "


@frozen
class LineRow:
    """Time per counted step of one line of the main thread in one phase; `host_ns` adds up to the step.

    A backward op belongs to the line of its forward op.
    """

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    line: str = column("line")
    op: str = column("op")
    """The one or two longest outermost ops."""
    num_ops: float = column("ops", Unit.MEAN)
    host_ns: int = column("host", Unit.NS)
    gpu_ns: int = column("GPU time", Unit.NS)
    """Device work launched meanwhile, by any thread."""


@frozen
class _Line:
    """Time of one line per step, mean of ranks; `share` in percent of GPU time, without a device of the host's."""

    line: str = column("line")
    phase: str = column("phase")
    op: str = column("ops")
    num_ops: float | None = column("num", Unit.MEAN)
    host_ns: float = column("host", Unit.NS)
    gpu_ns: float = column("GPU time", Unit.NS)
    share: float = column("share", Unit.PERCENT)


@frozen
class _Outside:
    """Time of one line in none of the phases: medians of the counted steps, so that one held up op decides nothing."""

    line: str
    op: str
    host_ns: int
    gpu_ns: int


@frozen
class _Rank:
    """One rank's rows, longest first, none without recorded lines; and its lines outside of the phases."""

    rows: tuple[LineRow, ...]
    outside: tuple[_Outside, ...]


def summarize(trace: Trace) -> _Rank:
    """Return the time of each line in each phase, which add up to the counted steps of the host."""
    lines = main_lines(trace)
    if len(lines.texts) == 1:
        return _Rank((), ())
    rows = tuple(_rows(trace, lines))
    return _Rank(rows, tuple(_outside(trace, lines, rows)))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see means of them, and what is outside of the phases of unprofiled steps."""
    rows = of_all(parts)
    table = Table.of("lines", "Lines", LineRow, rows)
    view = _view(job, rows) if rows and not job.is_empty else None
    return Report("lines", (table,), () if view is None else (view,), tuple(_outside_phases(job, parts)))


def _rows(trace: Trace, lines: MainLines) -> Iterator[LineRow]:
    counted, labels, parts = steps(trace).host[steps(trace).counted], phases(trace), line_parts(trace)
    work = device_work(trace)
    of_work = np.flatnonzero(work.linked & contains(spans(*counted.T), trace.events.ts[work.call]))
    calls = work.call[of_work]
    launching, _ = outermost_ops(trace, tracks(trace)[calls], trace.events.ts[calls])
    line = np.r_[parts.line, lines_of_work(trace)[of_work]]
    groups = group([np.r_[parts.phase, labels.work_phase[of_work]], line])
    work_ns, none = (work.end - work.start)[of_work], np.zeros(len(of_work), np.int64)
    host_ns = groups.sum(np.r_[parts.ns, none])
    gpu_ns = groups.sum(np.r_[np.zeros_like(parts.ns), work_ns])
    num_ops = groups.sum(np.r_[parts.begins_op.astype(np.int64), none])
    of_host, of_device = groups.group_ids[: len(parts.ns)], groups.group_ids[len(parts.ns) :]
    names = _longest(of_host, parts.op, parts.ns, trace.events.strings)
    names |= _longest(of_device, launching, work_ns, trace.events.strings)
    num = max(len(counted), 1)
    size = np.array([gpu_ns, host_ns], np.int64)
    for index in np.lexsort((-size[1], -size[0])).tolist():
        number, text = groups.keys[index].tolist()
        per_step = (round(total[index] / num) for total in (host_ns, gpu_ns))
        yield LineRow(
            trace.rank, labels.names[number], lines.texts[text], names.get(index, ""), num_ops[index] / num, *per_step
        )


def _outside(trace: Trace, lines: MainLines, rows: Sequence[LineRow]) -> Iterator[_Outside]:
    """Yield the lines whose time is in none of the phases, with the median of the counted steps."""
    parts, labels, work = line_parts(trace), phases(trace), device_work(trace)
    other = [number for number, name in enumerate(labels.names) if name == OTHER]
    of_host, of_work = np.isin(parts.phase, other), np.isin(labels.work_phase, other) & work.linked
    launched = trace.events.ts[work.call[of_work]]
    host_ns = _medians(trace, parts.start[of_host], parts.line[of_host], parts.ns[of_host])
    gpu_ns = _medians(trace, launched, lines_of_work(trace)[of_work], (work.end - work.start)[of_work])
    ops = {row.line: row.op for row in rows if row.phase == OTHER}
    for line in sorted({*host_ns, *gpu_ns}):
        text = lines.texts[line]
        yield _Outside(text, ops.get(text, ""), host_ns.get(line, 0), gpu_ns.get(line, 0))


def _medians(
    trace: Trace, instants: NDArray[np.int64], line: NDArray[np.int64], ns: NDArray[np.int64]
) -> dict[int, int]:
    """Return {line: median over the counted steps of its time in them}."""
    counted = steps(trace).host[steps(trace).counted]
    inside = contains(spans(*counted.T), instants)
    keys, index = np.unique(line[inside], return_inverse=True)
    step = np.searchsorted(counted[:, 0], instants[inside], "right") - 1
    sums = np.zeros((len(keys), len(counted)), np.int64)
    np.add.at(sums, (index, step), ns[inside])
    return {key: round(float(np.median(of_steps))) for key, of_steps in zip(keys.tolist(), sums, strict=True)}


def _longest(
    groups: NDArray[np.int64], op: NDArray[np.int64], ns: NDArray[np.int64], strings: Sequence[str]
) -> dict[int, str]:
    """Return `aten::mul, aten::add`: the ops that take most time of each group, at most two."""
    of_ops = group([groups, op])
    ops: defaultdict[int, list[str]] = defaultdict(list)
    for index in np.argsort(-np.array(of_ops.sum(ns), np.int64), kind="stable").tolist():
        number, name = of_ops.keys[index].tolist()
        if name >= 0 and len(ops[number]) < _MOST_OPS:
            ops[number].append(strings[name].removeprefix(_ENGINE))
    return {number: ", ".join(names) for number, names in ops.items()}


def _view(job: Job, rows: Sequence[LineRow]) -> Table | None:
    """Return the lines that take most, as means of all ranks; None where the lines of most of the time are unknown."""
    ops = {(row.line, row.phase): row.op for row in reversed(rows)}
    has_device, num = any(row.gpu_ns for row in rows), len(job.ranks)
    sums = largest_sums(
        rows,
        lambda row: (row.line, row.phase),
        lambda row: (row.num_ops, *((row.host_ns, row.gpu_ns) if has_device else (row.gpu_ns, row.host_ns))),
    )
    all_ns = sum(values[-1] for _, values in sums) or 1
    listed = [
        _Line(
            line or "(not known)",
            phase,
            ops[line, phase],
            num_ops / num or None,  # its ops began at other lines, and run Python
            (other_ns if has_device else most_ns) / num,
            most_ns / num if has_device else 0.0,
            100 * most_ns / all_ns,
        )
        for (line, phase), (num_ops, other_ns, most_ns) in sums
    ]
    if sum(values[-1] for (line, _), values in sums if line) < MOST * all_ns:
        return None
    shown = [row for row in listed if row.share >= 100 * SHOWN][:_TOP]
    ranks = f", mean of {num} ranks" if num > 1 else ""
    basis = f"{in_traced_steps(job).removeprefix('in ')}{much_longer_words(job)}{ranks}"
    per = ", per step" if job.ranks[0].steps.marked else ""
    title = f"Time by line of Python{per} ({basis})"
    view = Table.of("lines", title, _Line, shown, note=more_rows(len(listed) - len(shown)))
    return view if has_device else view.without("gpu_ns")


def _outside_phases(job: Job, parts: Sequence[_Rank]) -> Iterator[Claim]:
    """Yield a claim on time in none of the phases of unprofiled steps, with the line that has most of it."""
    share = other_share(job, 100 * LARGE)
    if share is None or not share.exceeds or job.timings is None:
        return
    rows = parts[share.rank].outside if share.rank < len(parts) else ()
    times = [row.gpu_ns if job.timings.by_device else row.host_ns for row in rows]
    if not (traced_ns := sum(times)):
        return
    row, line_ns = max(zip(rows, times, strict=True), key=itemgetter(1))
    measures = measured(
        outside_ns=share.ns,
        share_pct=share.pct,
        line_pct=100 * line_ns / traced_ns,
        traced_ns=traced_ns,
        phases=", ".join(name for name in job.timings.phases if name != OTHER),
    )
    subject = Subject(rank=job.ranks[share.rank].rank if len(job.ranks) > 1 else None, line=row.line, op=row.op)
    basis = Basis(share.num_steps, is_unprofiled=True)
    yield Claim("outside_phases", share.ns, subject, measures, basis=basis)
