"""Does the device wait because the host cannot launch fast enough, or copies all the time?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps, job_gain, on_the_worst_rank
from traceq.analysis._rank_rows import Part, of_all
from traceq.causes.replay import replay_of
from traceq.claims.claim import AT_MOST, BY_JOB_REPLAY, BY_REPLAY, Claim, Measure, Subject, by_step, measured
from traceq.claims.limits import LARGE, MOST, MUCH, SHORT_GAP
from traceq.facts.events.copies import copies_to_host, host_copies, ops_that_copy_to_host
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.kernels import launched_kernels, runs_compiled
from traceq.facts.events.name_patterns import matching
from traceq.facts.ranks.job import Job
from traceq.facts.stalls.syncs import SYNC_KINDS, is_of_timing, syncs
from traceq.facts.timeline.data_loading import LOADING
from traceq.facts.timeline.main_lines import lines_of_work, main_lines
from traceq.facts.timeline.phases import OTHER, phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps, share_base
from traceq.frozen import frozen
from traceq.grouping import Numbers
from traceq.intervals import Spans, measure_common, span_index, spans
from traceq.model import Category, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit
from traceq.whatif.interventions import NoLaunchLatency
from traceq.whatif.predict import is_replayed

_HAS_GRAPHS = re.compile(r"^(cuda|cu|hip)[A-Z]")
"""Calls of a runtime that captures graphs."""
_CAN_BE_CAPTURED = (SYNC_KINDS.index("alloc"),)
"""Kinds of blocking calls that capturing a graph avoids: its memory comes from a pool of its own."""


@frozen
class LaunchRow:
    """Kernels of one phase, and the host-bound part of its windows."""

    rank: int = column("rank", Unit.COUNT)
    phase: str = column("phase")
    num_kernels: int = column("kernels", Unit.COUNT)
    num_tiny: int = column("tiny", Unit.COUNT)
    """[tiny](method.md#kernels-launches-host-ops) ones."""
    tiny_gpu_ns: int = column("tiny, GPU time", Unit.NS)
    window_ns: int = column("time", Unit.NS)
    host_bound_ns: int = column("host-bound", Unit.NS)
    """Of `window_ns`, the device waits for launches."""
    launch_bound_pct: float = column("host-bound", Unit.PERCENT)
    cold_ns: int = column("once", Unit.NS)
    """In counted steps: waits for what happens [once](method.md#once)."""


def summarize(trace: Trace) -> Part[LaunchRow]:
    """Return kernels, tiny kernels and the host-bound share of the time of each phase."""
    return Part(tuple(_rows(trace)), _waits_for_host(trace))


def merge(job: Job, parts: Sequence[Part[LaunchRow]]) -> Report:
    """Return the rows of all ranks, and the rank that waits longest for launches."""
    table = Table.of("launches", "Launches", LaunchRow, of_all(parts))
    claims = on_the_worst_rank(job, (part.finding for part in parts))
    return Report("launches", (table,), findings=tuple(_gained_by_job(job, each) for each in claims))


def _gained_by_job(job: Job, claim: Claim) -> Claim:
    """Return the claim with what all ranks gain if launches took no time, at most what the device waits for them."""
    gain = job_gain(job, NoLaunchLatency()) if claim.code == "launch_bound" else None
    if gain is None:
        return claim
    least_ns, most_ns = (min(ns, claim.ns + int(claim.measures["latency_ns"])) for ns in gain.saved_ns)
    return replace(claim, gain=(least_ns, most_ns), gain_by=BY_JOB_REPLAY)


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


def _waits_for_host(trace: Trace) -> Claim | None:
    """Return a claim where the device idles in many short gaps: the host copies, or cannot launch fast enough."""
    kernels, copies = launched_kernels(trace), host_copies(trace)
    are_tiny = len(kernels.tiny) > 0 and kernels.tiny.mean() >= MUCH
    may_copy = len(copies) >= len(kernels.work)
    waits = _short_waits(trace) if are_tiny or may_copy else None
    if waits is None:
        return None
    claim = _round_trips(trace, waits) if may_copy else None
    return claim or (_launch_bound(trace, waits) if are_tiny else None)


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
    gaps = gaps[gaps[:, 1] - gaps[:, 0] <= SHORT_GAP]
    after_sync = span_index(gaps, syncs(trace).start + syncs(trace).blocked)
    gaps = np.delete(gaps, after_sync[after_sync >= 0], axis=0)
    recurring = in_counted_steps(trace) & (partition.category != TimeCategory.ONCE)
    waited = np.where(span_index(gaps, partition.parts[:, 0]) >= 0, partition.ns, 0)
    loads = [number for number, name in enumerate(phases(trace).names) if name in LOADING]
    waited[~recurring | np.isin(partition.phase, loads)] = 0
    if int(waited.sum()) < LARGE * int(partition.ns[recurring].sum()):
        return None
    step = span_index(steps_.window, partition.parts[:, 0])
    by_step, step_ns = (
        np.bincount(step[step >= 0], ns[step >= 0], len(steps_))[steps_.counted].astype(np.float64)
        for ns in (waited, np.where(recurring, partition.ns, 0))
    )
    if not holds_in_steps(by_step, step_ns, 100 * LARGE):
        return None
    return _ShortWaits(spans(*partition.parts[waited > 0].T), waited, by_step)


def _round_trips(trace: Trace, waits: _ShortWaits) -> Claim | None:
    """Return a claim where most of the short waits lie in ops that copy to the host, and copies outnumber kernels."""
    events, windows, work = trace.events, steps(trace).window[steps(trace).counted], device_work(trace)
    ops = ops_that_copy_to_host(trace)
    copying_ns = measure_common(spans(events.ts[ops], events.end[ops]), waits.gaps)
    if copying_ns <= MOST * int(waits.ns.sum()):
        return None
    by_name = {
        events.strings[name]: measure_common(spans(events.ts[chosen], events.end[chosen]), waits.gaps)
        for name in events.names_among(ops).tolist()
        for chosen in (ops[events.name[ops] == name],)
    }
    kernels, copies, to_host = (
        int((span_index(windows, work.start[chosen]) >= 0).sum()) / len(windows)
        for chosen in (launched_kernels(trace).work, host_copies(trace), copies_to_host(trace))
    )
    ns, op = round(copying_ns / len(windows)), max(by_name, key=lambda name: by_name[name])
    num = measured(copies_mean=copies, to_host_mean=to_host, kernels_mean=kernels)
    return Claim("host_round_trips", ns, Subject(op=op), _measures(trace, waits) | num, (0, ns), AT_MOST)


def _launch_bound(trace: Trace, waits: _ShortWaits) -> Claim:
    """Return the claim that the device idles in many short gaps, each until the next kernel is launched.

    Without launches from the host it would not wait for those that have returned either.
    """
    partition, names, waited_ns, num = activity(trace), phases(trace).names, int(waits.ns.sum()), len(waits.by_step)
    host_bound = in_counted_steps(trace) & partition.among(TimeCategory.HOST_BOUND)
    latency = in_counted_steps(trace) & partition.among(TimeCategory.LAUNCH_LATENCY)
    by_phase = np.bincount(partition.phase, waits.ns, len(names))
    phase, line = names[int(by_phase.argmax())], _awaited_line(trace, waits)
    is_in_phase = phase != OTHER and by_phase.max() >= MOST * waited_ns
    ns, latency_ns = round(waited_ns / num), round(int(partition.ns[latency].sum()) / num)
    measures = measured(
        host_bound_ns=round(int(partition.ns[host_bound].sum()) / num),
        tiny_pct=100 * float(launched_kernels(trace).tiny.mean()),
        syncs_mean=_num_uncapturable(trace) / num or None,
        latency_ns=latency_ns,
    )
    gain, gain_by, subject = (0, ns), AT_MOST, Subject(phase=phase if is_in_phase else "", line=line)
    if is_replayed(trace) and not lacks_host_ops(trace):
        gain, gain_by = (0, min(ns + latency_ns, replay_of(trace).without_host_time.most_ns)), BY_REPLAY
    return Claim("launch_bound", ns, subject, _measures(trace, waits) | measures, gain, gain_by, _remedy(trace))


def _measures(trace: Trace, waits: _ShortWaits) -> dict[str, Measure]:
    """Return how long the device waits in a step, and which parts of the counted steps it waits and computes."""
    partition, waited_ns = activity(trace), float(waits.by_step.sum())
    base = share_base(trace)
    whole_ns = float(base.ns.sum())
    computing_ns = float(partition.ns[in_counted_steps(trace) & partition.among(TimeCategory.COMPUTE)].sum())
    return measured(
        time_ns=round(waited_ns / len(waits.by_step)),
        share_pct=100 * waited_ns / whole_ns,
        compute_pct=100 * computing_ns / whole_ns,
        share_of=base.share_of,
        **by_step("time", waits.by_step.astype(np.int64).tolist()),
    )


def _awaited_line(trace: Trace, waits: _ShortWaits) -> str:
    """Return the line that launches most of what the device waits for, itself or in its backward; "" for none."""
    waited, texts = np.flatnonzero(waits.ns), main_lines(trace).texts
    awaited = lines_of_work(trace)[activity(trace).owner[waited]]  # each wait ends with the work that it is for
    ns = np.bincount(awaited, waits.ns[waited], len(texts))
    line = int(np.argmax(np.r_[0, ns[1:]]))  # the first line is none
    return texts[line] if line > 0 and ns[line] >= MOST * waits.ns.sum() else ""


def _num_uncapturable(trace: Trace) -> int:
    """Return how many syncs of counted steps no CUDA graph can capture, without those that time work."""
    waits = syncs(trace)
    in_steps = span_index(steps(trace).host[steps(trace).counted], waits.start) >= 0
    return int(np.count_nonzero(in_steps & ~np.isin(waits.kind, _CAN_BE_CAPTURED) & ~is_of_timing(trace)))


def _remedy(trace: Trace) -> str:
    """Return what can shorten launches: graphs only if the device's runtime captures them, compiling only if new."""
    has_graphs = matching(trace.events, trace.events.rows(Category.RUNTIME), _HAS_GRAPHS).any()
    graphs = "more_graphs" if graph_replays(trace).replayed.any() else "graphs"
    remedies = [graphs] * bool(has_graphs) + ["compile"] * (not runs_compiled(trace))
    return "_or_".join(remedies) or "batches"
