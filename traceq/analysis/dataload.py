"""Does the step wait for its data?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import (
    UnprofiledShare,
    exceeds_in_mean,
    holds_in_steps,
    recurs,
    step_lengths,
    unprofiled_share,
)
from traceq.analysis._core_use import is_contended
from traceq.analysis._job_gain import JobGain, gained_words, job_gain
from traceq.analysis._rank_rows import of_all
from traceq.analysis._slack import slack_by_rank
from traceq.analysis._wording import and_followers, replay_term, saving_words
from traceq.analysis._worker_restarts import Restarts, restart_finding, worker_restarts
from traceq.analysis._worst_rank import on_the_worst_rank
from traceq.causes.removed_waits import saved_without_loader
from traceq.causes.savings import Saving
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.loading_workers import ready_batches, worker_line
from traceq.facts.timeline.data_loading import (
    DATALOAD_WAIT,
    LOADER,
    around_iterations,
    loader_iterations,
    loader_waits,
    makes_own_batches,
)
from traceq.facts.timeline.loading_line import LoadingLine, loading_line
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import IDLE, TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import Spans, intersect, measure, measure_common, measure_within, spans, union
from traceq.model import Category, Trace
from traceq.report import Finding, Report, Table, column, found
from traceq.units import Unit, format_value
from traceq.whatif.host_waits import WithoutLoader
from traceq.whatif.unreplayed import is_replayed

POSITION = 25

_STARVED_PCT, _MOST_PCT = 5.0, 50.0
_LEAST_BATCHES = 4
"""Batches from which a loop is told without marks of steps: three times from one to the next."""
_FIRST = 3
"""Part of the waits, one over this, from which it is told that they are for the first batch of each epoch."""
_READY_PCT = 90.0
"""Batches that workers had made before the loop asked, from which it waits for their transfer and not for workers."""
_WAIT = re.compile(f"^{DATALOAD_WAIT}$")
_LOADS = re.compile(rf"^{LOADER}|^(## )?data_?load", re.IGNORECASE)


@frozen
class DataloadRow:
    """Time of one step that its main thread waits for the data loader, and the idle time of the device in it."""

    rank: int = column("rank", Unit.COUNT)
    step: int = column("step", Unit.COUNT)
    wait_ns: int = column("data wait", Unit.NS)
    idle_ns: int = column("device idle", Unit.NS)


@frozen
class _Rank:
    """One rank's rows, and the waits that hold up its steps.

    `makes_own`: the main thread makes the batches itself, most of that time at `line`. `restarts` of workers.
    """

    rows: tuple[DataloadRow, ...]
    starved: _Starved | None
    makes_own: bool
    line: LoadingLine | None
    restarts: Restarts


@frozen
class _Starved:
    """Waits for the loader that hold up the steps of a rank, `idle_ns` of a step of `step_ns`.

    `saving` is what the rank saves without them, None where they are ranges of the program's own. Of `idle_ns`
    `first_ns` are until the first batch of an epoch, whose workers were there before. Of a trace without steps it is
    the time between the first and the last of `num_batches`; `is_most`: of all waits these are most.
    """

    idle_ns: int
    step_ns: float
    saving: Saving | None
    first_ns: int = 0
    num_batches: int = 0
    is_most: bool = True

    @property
    def told_first_ns(self) -> int:
        """Ns of the waits for the first batch of an epoch, however many workers make it; 0 if they are not much."""
        return self.first_ns if _FIRST * self.first_ns >= self.idle_ns else 0


def summarize(trace: Trace) -> _Rank:
    """Return the waits for the data loader in each step, and whether they hold up the steps."""
    restarts = worker_restarts(trace, _idle(trace))
    return _Rank(tuple(_rows(trace)), _starved(trace), makes_own_batches(trace), loading_line(trace), restarts)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks, and the rank that waits longest."""
    table = Table.of("dataload", "Data loader", DataloadRow, of_all(parts))
    share = unprofiled_share(job, _WAIT, _STARVED_PCT)
    if share is None:
        gains = any(part.starved and part.starved.saving and not part.starved.num_batches for part in parts)
        gain = job_gain(job, WithoutLoader()) if gains else None
        of_ranks = [_starved_traced(job, part, gain) for part in parts]
        slack_ns = slack_by_rank(job)
        findings = on_the_worst_rank(job, of_ranks, slack_ns, is_of_job=gain is not None)
        of_restarts = on_the_worst_rank(job, [restart_finding(job, part.restarts) for part in parts], slack_ns)
        return Report("dataload", (table,), findings=(*of_restarts, *findings))
    return Report("dataload", (table,), findings=(_starved_unprofiled(job, share, parts),) if share.exceeds else ())


@once_per_trace
def _fetches(trace: Trace) -> Spans:
    """Return the ranges of the main thread in which it fetches the next batch."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    rows = rows[matching(events, rows, _LOADS) & (tracks(trace)[rows] == main_track(trace))]
    return spans(events.ts[rows], events.end[rows])


@once_per_trace
def _loading(trace: Trace) -> Spans:
    """Return the times in which the main thread fetches the next batch, or starts or ends a loader's workers."""
    return union(_fetches(trace), around_iterations(trace))


def _idle(trace: Trace) -> Spans:
    """Return the times in which nothing runs because of the loader: while the device idles; without one, all of it.

    Between kernels that are launched already the device does not wait for the host.
    """
    if len(device_work(trace)) == 0:
        return _loading(trace)
    waits = (code for code in IDLE if code is not TimeCategory.LAUNCH_LATENCY)
    return intersect(_loading(trace), activity(trace).when(*waits))


def _rows(trace: Trace) -> list[DataloadRow]:
    if len(_loading(trace)) == 0:
        return []
    host, window = steps(trace).host, steps(trace).window
    wait_ns = measure_within(_loading(trace), host[:, 0], host[:, 1]).tolist()
    idle_ns = measure_within(_idle(trace), window[:, 0], window[:, 1]).tolist()
    return [
        DataloadRow(trace.rank, number, wait, idle)
        for number, wait, idle in zip(steps(trace).number.tolist(), wait_ns, idle_ns, strict=True)
    ]


def _starved(trace: Trace) -> _Starved | None:
    """Return the waits where nothing runs for more than 5 % of the step because of the loader, and replay agrees."""
    steps_ = steps(trace)
    if not steps_.marked:
        return _starved_loop(trace)
    window = steps_.window[steps_.counted]
    if not _waits_long(trace, window):
        return None
    idle_ns, total_ns = measure_common(_idle(trace), spans(window[:, 0], window[:, 1])), int(np.diff(window).sum())
    step_idle_ns, step_ns = round(idle_ns / len(window)), total_ns / len(window)
    if not len(loader_waits(trace)) or not is_replayed(trace):  # ranges of the program's own, unknown to the replay
        return _Starved(step_idle_ns, step_ns, None)
    saving = saved_without_loader(trace)
    if 100 * saving.least_ns * len(window) <= _STARVED_PCT * total_ns:
        return None
    saved_ns = np.array(saving.steps_ns, np.float64)
    in_mean = exceeds_in_mean(saved_ns, step_lengths(steps_), _STARVED_PCT)
    if not in_mean and not recurs(saving.steps_ns, steps_, _STARVED_PCT):
        return None
    return _Starved(step_idle_ns, step_ns, saving, round(_first_ns(trace, window) / len(window)))


def _starved_loop(trace: Trace) -> _Starved | None:
    """Return the waits of a trace without steps, likewise from each batch to the next.

    The wait for the first one may be before the loop.
    """
    fetches = _fetches(trace)
    between = np.column_stack([fetches[:-1, 1], fetches[1:, 1]])
    if len(fetches) < _LEAST_BATCHES or not _waits_long(trace, between):
        return None
    loop = np.array([[between[0, 0], between[-1, 1]]])
    idle_ns, loop_ns = measure_common(_idle(trace), loop), float(np.diff(loop)[0, 0])
    if not len(loader_waits(trace)) or not is_replayed(trace):
        return _Starved(idle_ns, loop_ns, None, num_batches=len(fetches))
    saving = saved_without_loader(trace, int(between[0, 0]))
    if 100 * saving.least_ns <= _STARVED_PCT * loop_ns:
        return None
    is_most = 2 * idle_ns >= measure(_idle(trace))
    return _Starved(idle_ns, loop_ns, saving, _first_ns(trace, loop), len(fetches), is_most)


def _waits_long(trace: Trace, window: NDArray[np.int64]) -> bool:
    """Return whether nothing runs because of the loader for more than 5 % of some windows.

    In most of them, or, as several workers bring as many batches at once, of their mean beyond its scatter.
    """
    lengths = np.diff(window)[:, 0].astype(np.float64)
    by_window = measure_within(_idle(trace), window[:, 0], window[:, 1]).astype(np.float64)
    recurring = holds_in_steps(by_window, lengths, _STARVED_PCT) or exceeds_in_mean(by_window, lengths, _STARVED_PCT)
    return recurring and 100 * by_window.sum() > _STARVED_PCT * lengths.sum()


def _first_ns(trace: Trace, window: NDArray[np.int64]) -> int:
    """Return the time in some steps in which nothing runs until the first batch of an epoch, with workers that stay."""
    begins = loader_iterations(trace)
    first = begins.whole[begins.is_again & ~begins.starts_workers]
    return measure_common(intersect(_idle(trace), spans(*first.T)), spans(*window.T))


def _starved_traced(job: Job, part: _Rank, gain: JobGain | None) -> Finding | None:
    """Return the finding on a rank; its time is what a step without these waits saves, or in which nothing runs.

    `gain`: what all ranks gain without theirs, None where that is not known.
    """
    starved = part.starved
    if starved is None:
        return None
    share = format_value(100 * starved.idle_ns / starved.step_ns, Unit.PERCENT)
    where = _where(job, [part]) if part.line is not None and part.line.share_pct >= _MOST_PCT else ""
    who = (
        f"between the first and the last of {starved.num_batches:,} batches the loop"
        if starved.num_batches
        else "the step"
    )
    waits = f"{who} waits {format_value(starved.idle_ns, Unit.NS)} ({share}) for the data loader"
    saving = starved.saving
    if saving is None:
        return _finding(waits, starved.idle_ns, where, first_ns=starved.told_first_ns, makes_own=part.makes_own)
    saved = gained_words(saving_words(saving, starved.step_ns), gain)
    basis = f"{replay_term(job)}{and_followers(saving, starved.idle_ns)}"
    text = f"{waits}; removing this wait saves {saved} ({basis})"
    finding = _finding(text, saving.least_ns, where, first_ns=starved.told_first_ns, makes_own=part.makes_own)
    finding = finding if starved.is_most else replace(finding)
    finding = replace(finding, gain=gain.saved_ns if gain is not None else (saving.least_ns, saving.most_ns))
    return replace(finding, severity="low") if gain is not None and gain.is_nothing else finding


def _where(job: Job, parts: Sequence[_Rank]) -> str:
    """Return the line that makes the batches, in this process or in workers; "" where none is known."""
    lines = [part.line for part in parts if part.line is not None]
    if not lines:
        return worker_line(job)
    longest = max(lines, key=lambda line: line.share_pct)
    return f"{format_value(longest.share_pct, Unit.PERCENT)} of its traced time is at {longest.line}"


def _starved_unprofiled(job: Job, share: UnprofiledShare, parts: Sequence[_Rank]) -> Finding:
    percent = format_value(share.pct, Unit.PERCENT)
    ready = ready_batches(job)
    if ready is not None and ready[0] >= _READY_PCT:
        return _transferred(f"{format_value(share.ns, Unit.NS)} ({percent})", share, *ready)
    waits = f"an unprofiled step waits {format_value(share.ns, Unit.NS)} ({percent}) for the data loader"
    text = f"{waits} (mean of {share.num_steps:,} on rank {share.rank})"
    makes_own = any(part.makes_own for part in parts)
    return _finding(text, share.ns, _where(job, parts), makes_own=makes_own, are_cores_taken=is_contended(job))


def _transferred(takes: str, share: UnprofiledShare, ready_pct: float, num: int) -> Finding:
    ready = f"{format_value(ready_pct, Unit.PERCENT)} of {num:,} cases"
    text = (
        f"batch transfer: an unprofiled step takes {takes} to receive its batch from a worker (mean of "
        f"{share.num_steps:,} on rank {share.rank}), which had made it before in {ready}: more workers shorten "
        "nothing; try fewer tensors per batch, fewer and larger batches, or num_workers=0 if a sample is little work"
    )
    return found(
        "batch_transfer",
        "medium",
        text,
        share.ns,
        lead="batch transfer from workers: fewer tensors per batch, or num_workers=0 if a sample is little work",
        evidence=f"the batch was ready in {ready}: more workers shorten nothing",
        gain=(0, share.ns),
    )


def _finding(
    waits: str, ns: int, where: str = "", *, first_ns: int = 0, makes_own: bool = False, are_cores_taken: bool = False
) -> Finding:
    """Return the finding with its remedy: more workers only where a core is free, and any where there are none.

    None of them helps where `first_ns` are for the first batch of an epoch.
    """
    less = f"less work {'there' if where else 'per sample'}"
    if makes_own:
        remedy = f"the main thread makes each batch itself (num_workers=0); try num_workers > 0, or {less}"
    elif first_ns:
        first = f"{format_value(first_ns, Unit.NS)} of it is for the first batch of each epoch"
        remedy = f"{first}, which workers begin only then; try longer epochs, or {less}"
    else:
        more = "as its workers find no free core" if are_cores_taken else "or more workers"
        remedy = f"try {less}, {more}"
    text = f"starved: {waits}: {f'{where}; ' if where else ''}{remedy}"
    lead = f"starved by the data loader: {remedy}"
    if makes_own:
        lead = f"the main thread makes each batch: try num_workers > 0, or {less}"
    return found("starved", "high", text, ns, lead=lead, evidence=where, gain=(0, ns))
