"""How long is a step, on every rank?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._rank_rows import of_all
from traceq.analysis._wording import MOST_RANKS, more_rows, per_step
from traceq.analysis.perturbation import most_overhead_ns, perturbation_words, unlike_steps
from traceq.claims.limits import FEW
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.once import NOT_IN_A_CALL
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import measure_within, span_index, spans, subtract
from traceq.model import Category, Caveat, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value, sparkline

_PYTHON_CALL_NS = 5_000
"""Host time per recorded Python call below which the profiler, which takes part of a us for each, slows the host."""
_CURVE = 5
"""Fewest steps that people see as a curve."""


@frozen
class StepRow:
    """One step, on the host and as a window."""

    rank: int = column("rank", Unit.COUNT)
    step: int = column("step", Unit.COUNT)
    name: str = column("name")
    """`ProfilerStep#7`, or `whole trace`."""
    dur_ns: int = column("host", Unit.NS)
    window: str = column("window")
    """`device` or `host`: what determines its end."""
    window_ns: int = column("window", Unit.NS)
    partial: bool = column("partial")
    """Not whole; excluded from means."""
    lag_ns: int = column("lag", Unit.NS)
    """End of the window minus end of the host step."""
    overhead_ns: int = column("overhead", Unit.NS)
    """Of the host step: the profiler's work, or loading of kernels."""


@frozen
class _Summary:
    """The counted steps of one rank.

    `lag_ns` is None where windows are the host's, and do not tell; `curve` is "" where steps are too few for one.
    """

    rank: int = column("rank", Unit.COUNT)
    num: int = column("steps", Unit.COUNT)
    mean_ns: float = column("step, mean", Unit.NS)
    min_ns: int = column("shortest", Unit.NS)
    max_ns: int = column("longest", Unit.NS)
    host_ns: float = column("host, mean", Unit.NS)
    lag_ns: float | None = column("device ends later", Unit.NS)
    curve: str = column("each step")


@frozen
class _Whole:
    """The trace of one rank that has no steps."""

    rank: int = column("rank", Unit.COUNT)
    dur_ns: int = column("duration", Unit.NS)


@frozen
class _Rank:
    """One rank's rows, what is doubtful about its steps, and the most ns that the profiler adds to one."""

    rows: tuple[StepRow, ...]
    caveats: tuple[Caveat, ...]
    most_overhead_ns: int


def summarize(trace: Trace) -> _Rank:
    """Return the windows of all steps: the device's where there is device work."""
    return _Rank(tuple(_rows(trace)), tuple(_caveats(trace)), most_overhead_ns(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks; people see one line for each of the slowest."""
    table = Table.of("steps", "Steps", StepRow, of_all(parts))
    if not job.ranks:
        return Report("steps", (table,))
    first_of_code = {caveat.code: caveat for part in reversed(parts) for caveat in reversed(part.caveats)}
    unlike = unlike_steps(job, [part.most_overhead_ns for part in parts])
    caveats = (*reversed(first_of_code.values()), *unlike)
    return Report("steps", (table,), (_view(job),), caveats=caveats)


def _rows(trace: Trace) -> list[StepRow]:
    trace_steps = steps(trace)
    columns = zip(
        trace_steps.number.tolist(),
        trace_steps.names,
        (trace_steps.host[:, 1] - trace_steps.host[:, 0]).tolist(),
        (trace_steps.window[:, 1] - trace_steps.window[:, 0]).tolist(),
        trace_steps.partial.tolist(),
        (trace_steps.window[:, 1] - trace_steps.host[:, 1]).tolist(),
        _overhead(trace).tolist(),
        strict=True,
    )
    clock = "device" if trace_steps.by_device else "host"
    return [
        StepRow(trace.rank, number, name, dur_ns, clock, window_ns, partial, lag_ns, overhead_ns)
        for number, name, dur_ns, window_ns, partial, lag_ns, overhead_ns in columns
    ]


@once_per_trace
def _overhead(trace: Trace) -> NDArray[np.int64]:
    """Return int64[K] ns of each window in which the profiler did its own work, or kernels were being loaded.

    What holds up nothing is none: a thread of the profiler's works, the host is ahead of the device, and its launches
    wait for room, or the device works meanwhile.
    """
    events, work, window = trace.events, device_work(trace), steps(trace).window
    rows = events.rows(Category.OVERHEAD)
    rows = rows[~matching(events, rows, NOT_IN_A_CALL)]
    idle = subtract(spans(events.ts[rows], events.end[rows]), spans(work.start, work.end))
    return measure_within(idle, window[:, 0], window[:, 1])


def _view(job: Job) -> Table:
    if not any(rank.steps.marked for rank in job.ranks):
        return _whole_traces(job)
    lines = [_summary(rank) for rank in job.ranks]
    longest = sorted(lines, key=lambda line: -line.mean_ns)[:MOST_RANKS]
    shown = [line for line in lines if line in longest]
    note = " ".join(filter(None, [_note(job), perturbation_words(job), more_rows(len(lines) - len(shown))]))
    return Table.of("steps", "Steps", _Summary, shown, note=note)


def _whole_traces(job: Job) -> Table:
    """Return the durations of traces without steps, longest first."""
    lines = [_Whole(rank.rank, int(np.diff(rank.steps.window[0])[0])) for rank in job.ranks]
    shown = sorted(lines, key=lambda line: -line.dur_ns)[:MOST_RANKS]
    note = more_rows(len(lines) - len(shown))
    return Table.of("steps", sentences.WHOLE_TRACES, _Whole, shown, note=note)


def _summary(rank: Outline) -> _Summary:
    counted = rank.steps.counted
    host, window = rank.steps.host[counted], rank.steps.window[counted]
    window_ns = window[:, 1] - window[:, 0]
    return _Summary(
        rank=rank.rank,
        num=len(window),
        mean_ns=float(np.mean(window_ns)),
        min_ns=int(window_ns.min()),
        max_ns=int(window_ns.max()),
        host_ns=float(np.mean(host[:, 1] - host[:, 0])),
        lag_ns=float(np.mean(window[:, 1] - host[:, 1])) if rank.steps.by_device else None,
        curve=sparkline(window_ns.tolist()) if len(window_ns) >= _CURVE else "",
    )


def _note(job: Job) -> str:
    first = job.ranks[0].steps
    if not first.marked:
        return ""
    num_left_out = sum(int((~rank.steps.counted).sum()) for rank in job.ranks)
    times = sentences.STEPS["device" if first.by_device else "host"]
    left_out = sentences.LEFT_OUT.format(num=num_left_out, s="s" * (num_left_out > 1))
    return f"{times} {left_out}" if num_left_out else times


def _caveats(trace: Trace) -> list[Caveat]:
    trace_steps = steps(trace)
    if not trace_steps.marked:
        return [Caveat("no_steps", sentences.NO_STEPS), *_disturbed(trace), *_slowed(trace)]
    return [*_alone(trace), *_disturbed(trace), *_slowed(trace)]


def _alone(trace: Trace) -> list[Caveat]:
    """Return how a partial step that has no other beside it differs from one in the middle of a job."""
    trace_steps, work = steps(trace), device_work(trace)
    if len(trace_steps) > 1 or not trace_steps.partial.any() or trace_steps.is_cut:
        return []
    (name,), (_, host_end), window = trace_steps.names, trace_steps.host[0].tolist(), trace_steps.window
    earlier = ~work.linked | (trace.events.ts[work.call] < trace_steps.host[0, 0])
    earlier_ns = int(measure_within(spans(work.start[earlier], work.end[earlier]), window[:, 0], window[:, 1])[0])
    lag_ns = int(window[0, 1]) - host_end
    differences = (
        (earlier_ns, sentences.LAUNCHED_BEFORE.format(time=format_value(earlier_ns, Unit.NS))),
        (lag_ns, sentences.ENDS_LATER.format(time=format_value(lag_ns, Unit.NS))),
    )
    differs = " and ".join(words for ns, words in differences if ns * 1000 > int(window[0, 1] - window[0, 0]))
    return [Caveat("only_step", sentences.ONLY_STEP.format(rank=trace.rank, step=name, differs=differs))]


def _disturbed(trace: Trace) -> list[Caveat]:
    """Return that the profiler itself takes much of the step in which it takes most."""
    trace_steps, overhead_ns = steps(trace), _overhead(trace)
    window_ns = trace_steps.window[:, 1] - trace_steps.window[:, 0]
    share = np.where(trace_steps.counted, overhead_ns / window_ns, 0.0)
    worst = int(np.argmax(share))
    if share[worst] < FEW:
        return []
    overhead = format_value(int(overhead_ns[worst]), Unit.NS)
    whole = trace_steps.names[worst] if trace_steps.marked else "the trace"
    if trace_steps.labels:  # several may have one name
        whole = f"step {worst + 1:,} of {len(trace_steps):,}, {whole}"
    part = format_value(100 * float(share[worst]), Unit.PERCENT)
    discount = sentences.DISCOUNT if trace_steps.counted.sum() > 1 else ""
    text = sentences.DISTURBED.format(rank=trace.rank, time=overhead, share=part, step=whole, discount=discount)
    return [Caveat("overhead", text)]


def _slowed(trace: Trace) -> list[Caveat]:
    """Return that so many Python calls are recorded that the host is slower than without their stacks."""
    host = steps(trace).host[steps(trace).counted]
    step = span_index(host, trace.events.ts[trace.events.rows(Category.PYTHON)])
    num = int((step >= 0).sum())
    host_ns = int((host[:, 1] - host[:, 0]).sum())
    if not num or host_ns > num * _PYTHON_CALL_NS:
        return []
    per, time = per_step(steps(trace)), format_value(host_ns / num, Unit.NS)
    text = sentences.SLOWED.format(rank=trace.rank, num=num // len(host), per_step=per, time=time)
    return [Caveat("python_stacks", text)]
