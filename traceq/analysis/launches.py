"""Does the device wait because the host cannot launch fast enough, or copies all the time?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps, step_lengths
from traceq.analysis._job_gain import job_gain
from traceq.analysis._rank_rows import Part, of_all
from traceq.analysis._wording import in_brackets, in_phase, per_step, plain_phase, range_of_steps
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.facts.events.compiled_code import runs_compiled
from traceq.facts.events.copies import copies_to_host, host_copies, ops_that_copy_to_host
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.events.name_patterns import matching
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.lost_once import lost_once_ns
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.data_loading import LOADING
from traceq.facts.timeline.line_parts import lines_of_work
from traceq.facts.timeline.main_lines import main_lines
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import Spans, measure_common, span_index, spans
from traceq.model import Category, Trace
from traceq.report import Finding, Report, Table, column, found
from traceq.units import Unit, format_value
from traceq.whatif.interventions import NoLaunchLatency

POSITION = 72

_BOUND_PCT, _HIGH_PCT, _TINY_PCT = 10.0, 20.0, 25.0
_LONGEST_GAP_NS = 1_000_000
"""A longer gap is not caused by launch latency: the host does something else."""
_MUCH_OF_WAITS = 0.25
"""Part of the waits from which the line that launches what the device waits for is named."""
_NEARLY_ALL = 0.9
"""Part of the host-bound time from which the gaps that count are all of it."""
_HAS_GRAPHS = re.compile(r"^(cuda|cu|hip)[A-Z]")
"""Calls of a runtime that captures graphs."""
_CAN_BE_CAPTURED = (SYNC_KINDS.index("alloc"),)
"""Kinds of blocking calls that capturing a graph avoids: its memory comes from a pool of its own."""


@frozen
class LaunchRow:
    """Kernels of one phase over the whole trace, and over its windows the host-bound part of its time.

    `launch_bound_pct` is `host_bound_ns` in percent of `window_ns`; `cold_ns` the time in the counted steps in which
    the device waits for what the host does once.
    """

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    num_kernels: int = column("kernels", Unit.COUNT)
    num_tiny: int = column("tiny", Unit.COUNT)
    tiny_gpu_ns: int = column("GPU time of tiny ones", Unit.NS)
    window_ns: int = column("time", Unit.NS)
    host_bound_ns: int = column("host-bound", Unit.NS)
    launch_bound_pct: float = column("host-bound", Unit.PERCENT)
    cold_ns: int = column("once", Unit.NS)


def summarize(trace: Trace) -> Part[LaunchRow]:
    """Return kernels, tiny kernels and the host-bound share of the time of each phase."""
    return Part(tuple(_rows(trace)), _waits_for_host(trace))


def merge(job: Job, parts: Sequence[Part[LaunchRow]]) -> Report:
    """Return the rows of all ranks, and the rank that waits longest for launches."""
    table = Table.of("launches", "Launches", LaunchRow, of_all(parts))
    findings = on_the_worst_rank(job, (part.finding for part in parts))
    return Report("launches", (table,), findings=tuple(_gained_by_job(job, each) for each in findings))


def _gained_by_job(job: Job, finding: Finding) -> Finding:
    """Return the finding with what all ranks gain if launches took no time, at most what the device waits for them."""
    gain = job_gain(job, NoLaunchLatency()) if finding.code == "launch_bound" else None
    if gain is None:
        return finding
    least_ns, most_ns = (min(ns, finding.ns) for ns in gain.saved_ns)
    return replace(finding, gain=(least_ns, most_ns))


def _rows(trace: Trace) -> list[LaunchRow]:
    kernels, labels, partition = launched_kernels(trace), phases(trace), activity(trace)
    if len(kernels.work) == 0:
        return []
    of_kernel, size = labels.work_phase[kernels.work], len(labels.names)

    def total(phase: Numbers, values: NDArray[np.int64]) -> list[int]:
        sums = np.zeros(size, np.int64)
        np.add.at(sums, phase, values)
        return list(map(int, sums))

    inside = span_index(steps(trace).window, partition.parts[:, 0]) >= 0
    inside &= partition.category != TimeCategory.UNRECORDED
    bound = inside & (partition.category == TimeCategory.HOST_BOUND)
    is_once = in_counted_steps(trace) & (partition.category == TimeCategory.ONCE)
    columns = zip(
        labels.names,
        np.bincount(of_kernel, minlength=size).tolist(),
        np.bincount(of_kernel[kernels.tiny], minlength=size).tolist(),
        total(of_kernel[kernels.tiny], kernels.ns[kernels.tiny]),
        total(partition.phase[inside], partition.ns[inside]),
        total(partition.phase[bound], partition.ns[bound]),
        total(partition.phase[is_once], partition.ns[is_once]),
        strict=True,
    )
    return [
        LaunchRow(trace.rank, name, num, num_tiny, tiny_ns, window, bound, round(100 * bound / (window or 1), 3), cold)
        for name, num, num_tiny, tiny_ns, window, bound, cold in columns
        if num or window
    ]


def _waits_for_host(trace: Trace) -> Finding | None:
    """Return a finding where the device idles in many short gaps: the host copies, or cannot launch fast enough."""
    kernels, copies = launched_kernels(trace), host_copies(trace)
    tiny_pct = 100 * float(kernels.tiny.mean()) if len(kernels.tiny) else 0.0
    may_copy = len(copies) >= len(kernels.work)
    waits = _short_waits(trace) if tiny_pct >= _TINY_PCT or may_copy else None
    if waits is None:
        return None
    finding = _round_trips(trace, waits) if may_copy else None
    return finding or (_launch_bound(trace, waits, tiny_pct) if tiny_pct >= _TINY_PCT else None)


@frozen(eq=False)
class _ShortWaits:
    """Gaps of the counted steps that are short and follow no sync, in which the device waits for the host.

    `gaps` int64[G, 2] ns, without what is in the data loader; `ns` int64[P] in each piece of the partition; `by_step`
    float64[K].
    """

    gaps: Spans
    ns: NDArray[np.int64]
    by_step: NDArray[np.float64]


def _short_waits(trace: Trace) -> _ShortWaits | None:
    """Return the short waits for the host if they take a tenth of the counted steps, and of most of them.

    Gaps that a sync causes are the sync's, and what of them is in the data loader is the loader's.
    """
    steps_, partition = steps(trace), activity(trace)
    gaps = partition.when(TimeCategory.HOST_BOUND, TimeCategory.ONCE)
    gaps = gaps[gaps[:, 1] - gaps[:, 0] <= _LONGEST_GAP_NS]
    after_sync = span_index(gaps, syncs(trace).start + syncs(trace).blocked)
    gaps = np.delete(gaps, after_sync[after_sync >= 0], axis=0)
    recurring = in_counted_steps(trace) & (partition.category != TimeCategory.ONCE)
    waited = np.where(span_index(gaps, partition.parts[:, 0]) >= 0, partition.ns, 0)
    loads = [number for number, name in enumerate(phases(trace).names) if name in LOADING]
    waited[~recurring | np.isin(partition.phase, loads)] = 0
    if 100 * int(waited.sum()) < _BOUND_PCT * int(partition.ns[recurring].sum()):
        return None
    step = span_index(steps_.window, partition.parts[:, 0])
    by_step, step_ns = (
        np.bincount(step[step >= 0], ns[step >= 0], len(steps_))[steps_.counted].astype(np.float64)
        for ns in (waited, np.where(recurring, partition.ns, 0))
    )
    if not holds_in_steps(by_step, step_ns, _BOUND_PCT):
        return None
    return _ShortWaits(spans(*partition.parts[waited > 0].T), waited, by_step)


def _round_trips(trace: Trace, waits: _ShortWaits) -> Finding | None:
    """Return a finding where most of the short waits lie in ops that copy to the host, and copies outnumber kernels."""
    events, steps_, work = trace.events, steps(trace), device_work(trace)
    ops = ops_that_copy_to_host(trace)
    copying_ns = measure_common(spans(events.ts[ops], events.end[ops]), waits.gaps)
    if 2 * copying_ns <= int(waits.ns.sum()):
        return None
    by_name = {
        events.strings[name]: measure_common(spans(events.ts[chosen], events.end[chosen]), waits.gaps)
        for name in events.names_among(ops).tolist()
        for chosen in (ops[events.name[ops] == name],)
    }
    num, each, most = len(waits.by_step), per_step(steps_), max(by_name, key=lambda name: by_name[name])
    kernels, copies, to_host = (
        format_value(int((span_index(steps_.window[steps_.counted], work.start[chosen]) >= 0).sum()) / num, Unit.MEAN)
        for chosen in (launched_kernels(trace).work, host_copies(trace), copies_to_host(trace))
    )
    time, copying = (format_value(ns / num, Unit.NS) for ns in (int(waits.ns.sum()), copying_ns))
    text = (
        f"host round trips: the device waits {time} {each}{_share(trace, waits)} for "
        f"the host in gaps of up to 1 ms that follow no sync, {copying} of it in ops that copy to the host (most in "
        f"{most}); {copies} copies between host and device ({to_host} to the host) and {kernels} kernels {each}: keep "
        "scalars and operands on the device"
    )
    return found(
        "host_round_trips",
        "high",
        text,
        round(copying_ns / num),
        lead=f"host round trips, most in {most}: keep scalars and operands on the device",
        evidence=f"{copies} copies between host and device and {kernels} kernels {each}",
        gain=(0, round(copying_ns / num)),
    )


def _launch_bound(trace: Trace, waits: _ShortWaits, tiny_pct: float) -> Finding:
    """Return the finding that the device idles in many short gaps, each until the next kernel is launched."""
    steps_, partition, waited_ns, num = steps(trace), activity(trace), int(waits.ns.sum()), len(waits.by_step)
    host_bound = in_counted_steps(trace) & partition.among(TimeCategory.HOST_BOUND)
    names, by_phase = phases(trace).names, np.bincount(partition.phase, waits.ns, len(phases(trace).names))
    main = [phase for phase in np.argsort(-by_phase)[:2].tolist() if by_phase[phase] >= waited_ns / 5]
    time, of_main, of_all = (
        format_value(int(ns) / num, Unit.NS) for ns in (waited_ns, by_phase[main].sum(), partition.ns[host_bound].sum())
    )
    where = " and ".join(in_phase(names[phase]) for phase in main)
    where = f" {where}" if time == of_main else f", {of_main} of it {where}"
    tiny = f"{format_value(tiny_pct, Unit.PERCENT)} of the kernels are tiny"
    of_all = f", of {of_all} host-bound," if waited_ns < _NEARLY_ALL * int(partition.ns[host_bound].sum()) else ""
    which = f"for the host in gaps of up to 1 ms that follow no sync{where}{_awaited_line(trace, waits)}"
    device_waits = f"the device waits {time} {per_step(steps_)}{_share(trace, waits)}{of_all} {which} ({tiny})"
    text = f"launch-bound: {device_waits}; try {_remedies(trace, main)}"
    severity = "high" if 100 * waited_ns >= _HIGH_PCT * _whole_ns(trace) else "medium"
    return found(
        "launch_bound",
        severity,
        text,
        round(waited_ns / num),
        lead=f"launch-bound in {' and '.join(plain_phase(names[phase]) for phase in main)}: {_remedies(trace, main)}",
        evidence=f"{format_value(tiny_pct, Unit.PERCENT)} of kernels are under 10 us, or shorter than their launch",
        gain=(0, round(waited_ns / num)),
    )


def _share(trace: Trace, waits: _ShortWaits) -> str:
    """Return ` (30.6 %; it computes 52.0 %)`: the shares of the counted steps that the device waits and computes.

    The second where it is larger; with the range of the waits where steps are unlike.
    """
    partition, whole_ns, waited_ns = activity(trace), _whole_ns(trace), float(waits.by_step.sum())
    computes = in_counted_steps(trace) & partition.among(TimeCategory.COMPUTE)
    computing_ns = float(partition.ns[computes].sum())
    share, computing = (format_value(100 * ns / whole_ns, Unit.PERCENT) for ns in (waited_ns, computing_ns))
    beside = f"it computes {computing}" if computing_ns > waited_ns else ""
    return in_brackets(share, range_of_steps(waits.by_step), beside)


def _whole_ns(trace: Trace) -> float:
    """Return the time of the counted steps without what is once."""
    return float(step_lengths(steps(trace)).sum()) - lost_once_ns(trace)


def _awaited_line(trace: Trace, waits: _ShortWaits) -> str:
    """Return `, 15.0 ms of it for launches at loss.py:20 apart`, or in its backward; "" where no line has much."""
    waited, texts = np.flatnonzero(waits.ns), main_lines(trace).texts
    awaited = lines_of_work(trace)[activity(trace).owner[waited]]  # each wait ends with the work that it is for
    ns = np.bincount(awaited, waits.ns[waited], len(texts))
    line = int(np.argmax(np.r_[0, ns[1:]]))  # the first line is none
    is_known = line > 0 and ns[line] >= _MUCH_OF_WAITS * waits.ns.sum()
    time = format_value(int(ns[line]) / len(waits.by_step), Unit.NS)
    return f", {time} of it for launches at {texts[line]}" if is_known else ""


def _remedies(trace: Trace, waits_in: Sequence[int]) -> str:
    """Return `CUDA graphs, torch.compile or larger batches`, without what the device lacks or the trace already has.

    A sync cannot be captured in a graph: those of the phases in which the device waits have to go first.
    """
    calls, waits = trace.events.rows(Category.RUNTIME), syncs(trace)
    in_steps = span_index(steps(trace).host[steps(trace).counted], waits.start) >= 0
    prevents = in_steps & np.isin(waits.phase, waits_in) & ~np.isin(waits.kind, _CAN_BE_CAPTURED)
    remedies = []
    if matching(trace.events, calls, _HAS_GRAPHS).any():
        graphs = "more of the step in CUDA graphs" if graph_replays(trace).replayed.any() else "CUDA graphs"
        remedies.append(f"{graphs} (once the syncs are gone)" if prevents.any() else graphs)
    if not runs_compiled(trace):
        remedies.append("torch.compile")
    return " or ".join(filter(None, (", ".join(remedies), "larger batches")))
