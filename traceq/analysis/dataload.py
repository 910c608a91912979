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
    on_the_worst_rank,
    recurs,
    slack_by_rank,
    step_lengths,
    unprofiled_share,
)
from traceq.analysis._rank_rows import of_all
from traceq.analysis.loader import is_contended, place_of_workers
from traceq.causes.removed_waits import saved_without_loader
from traceq.causes.savings import Saving
from traceq.claims.claim import AT_MOST, BY_REPLAY, Basis, Claim, Subject, measured
from traceq.claims.limits import MODERATE, MOST
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.data_loading import (
    DATALOAD_WAIT,
    LOADER,
    around_iterations,
    hand_overs,
    loader_iterations,
    loader_waits,
    makes_own_batches,
)
from traceq.facts.timeline.main_lines import LoadingLine, loading_line
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import IDLE, TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import Spans, intersect, measure_common, measure_within, spans, union
from traceq.model import Category, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit
from traceq.whatif.interventions import WithoutLoader
from traceq.whatif.predict import is_replayed

_WAIT = re.compile(f"^{DATALOAD_WAIT}$")
_LOADS = re.compile(rf"^{LOADER}|^(## )?data_?load", re.IGNORECASE)


@frozen
class DataloadRow:
    """Time for which a step waits for the data loader, and the idle time of the device in it."""

    rank: int = column("rank", Unit.COUNT)
    step: int = column("step", Unit.COUNT)
    wait_ns: int = column("data wait", Unit.NS)
    idle_ns: int = column("device idle", Unit.NS)


@frozen
class _Restarts:
    """Starts of workers that follow other batches, in the counted steps of a rank.

    `idle_ns` in all of them together, in which nothing runs because of the loader, of `window_ns` in `num_steps`.
    """

    num: int
    idle_ns: int
    window_ns: int
    num_steps: int


@frozen
class _Rank:
    """One rank's rows, and the waits that hold up its steps.

    `makes_own`: the main thread makes the batches itself, most of that time at `line`. `restarts` of workers.
    """

    rows: tuple[DataloadRow, ...]
    starved: _Starved | None
    makes_own: bool
    line: LoadingLine | None
    restarts: _Restarts


@frozen
class _Starved:
    """Waits for the loader that hold up the steps of a rank, `idle_ns` of a step of `step_ns`.

    `saving` is what the rank saves without them, None where they are ranges of the program's own. Of `idle_ns`
    `first_ns` are until the first batch of an epoch, whose workers were there before, and `hand_over_ns` for batches
    that are there.
    """

    idle_ns: int
    step_ns: float
    saving: Saving | None
    first_ns: int = 0
    hand_over_ns: int = 0


def summarize(trace: Trace) -> _Rank:
    """Return the waits for the data loader in each step, and whether they hold up the steps."""
    return _Rank(tuple(_rows(trace)), _starved(trace), makes_own_batches(trace), loading_line(trace), _restarts(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks, and the rank that waits longest."""
    table = Table.of("dataload", "Data loader", DataloadRow, of_all(parts))
    slack_ns, share = slack_by_rank(job), unprofiled_share(job, _WAIT, 100 * MODERATE)
    restarts = on_the_worst_rank(job, [_restarts_claim(part.restarts) for part in parts], slack_ns)
    if share is not None:
        waits = [_unprofiled(job, share, parts)] if share.exceeds else []
        return Report("dataload", (table,), findings=(*restarts, *waits))
    gains = any(part.starved and part.starved.saving for part in parts)
    starved = on_the_worst_rank(job, map(_starved_traced, parts), slack_ns, WithoutLoader() if gains else None)
    return Report("dataload", (table,), findings=(*restarts, *starved))


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
    window = steps_.window[steps_.counted]
    if not steps_.marked or not _waits_long(trace, window):
        return None
    idle_ns, total_ns = measure_common(_idle(trace), spans(window[:, 0], window[:, 1])), int(np.diff(window).sum())
    hand_over_ns = measure_common(intersect(_idle(trace), hand_overs(trace)), spans(*window.T))
    of_all = idle_ns, _first_ns(trace, window), hand_over_ns
    step_idle_ns, first_ns, hand_over_ns = (round(ns / len(window)) for ns in of_all)
    starved = _Starved(step_idle_ns, total_ns / len(window), None, first_ns, hand_over_ns)
    if not len(loader_waits(trace)) or not is_replayed(trace):  # ranges of the program's own, unknown to the replay
        return starved
    saving = saved_without_loader(trace)
    if saving.least_ns * len(window) <= MODERATE * total_ns:
        return None
    saved_ns = np.array(saving.steps_ns, np.float64)
    lengths = step_lengths(steps_)
    in_mean = exceeds_in_mean(saved_ns, lengths, 100 * MODERATE)
    if not in_mean and not recurs(saving.steps_ns, lengths, 100 * MODERATE):
        return None
    return replace(starved, saving=saving)


def _waits_long(trace: Trace, window: NDArray[np.int64]) -> bool:
    """Return whether nothing runs because of the loader for more than 5 % of some windows.

    In most of them, or, as several workers bring as many batches at once, of their mean beyond its scatter.
    """
    lengths = np.diff(window)[:, 0].astype(np.float64)
    by_window = measure_within(_idle(trace), window[:, 0], window[:, 1]).astype(np.float64)
    recurring = holds_in_steps(by_window, lengths, 100 * MODERATE) or exceeds_in_mean(
        by_window, lengths, 100 * MODERATE
    )
    return recurring and by_window.sum() > MODERATE * lengths.sum()


def _first_ns(trace: Trace, window: NDArray[np.int64]) -> int:
    """Return the time in some steps in which nothing runs until the first batch of an epoch, with workers that stay."""
    begins = loader_iterations(trace)
    first = begins.whole[begins.is_again & ~begins.starts_workers]
    return measure_common(intersect(_idle(trace), spans(*first.T)), spans(*window.T))


def _restarts(trace: Trace) -> _Restarts:
    """Return the starts of workers in the counted steps of a trace that follow other batches."""
    begins, counted = loader_iterations(trace), steps(trace).window[steps(trace).counted]
    again = begins.whole[begins.is_again & begins.starts_workers]
    within = (again[:, :1] < counted[:, 1]) & (again[:, 1:] > counted[:, 0])
    in_steps = again[within.any(axis=1)]
    overlap = measure_common(spans(*in_steps.T), _idle(trace))
    return _Restarts(len(in_steps), overlap, int(np.diff(counted).sum()), len(counted))


def _restarts_claim(restarts: _Restarts) -> Claim | None:
    """Return the claim that restarts take much of a rank's steps."""
    if not restarts.num or restarts.idle_ns < MODERATE * restarts.window_ns:
        return None
    ns, share_pct = round(restarts.idle_ns / restarts.num_steps), 100 * restarts.idle_ns / restarts.window_ns
    measures = measured(time_ns=ns, share_pct=share_pct, num_restarts=restarts.num)
    return Claim("worker_restarts", ns, measures=measures, gain=(0, ns), gain_by=AT_MOST)


def _starved_traced(part: _Rank) -> Claim | None:
    """Return the claim on a rank; its time is what a step without these waits saves, or in which nothing runs."""
    starved = part.starved
    if starved is None:
        return None
    line = part.line if part.line is not None and part.line.share_pct >= 100 * MOST else None
    is_for_first, is_hand_over = (ns >= MOST * starved.idle_ns for ns in (starved.first_ns, starved.hand_over_ns))
    measures = measured(
        wait_ns=starved.idle_ns,
        share_pct=100 * starved.idle_ns / starved.step_ns,
        first_batches_ns=starved.first_ns or None,
        hand_over_ns=starved.hand_over_ns if is_hand_over else None,
        num_workers=0 if part.makes_own else None,
        line_pct=line.share_pct if line else None,
    )
    of_part = {"own_batches": part.makes_own, "hand_over": is_hand_over, "first_batches": is_for_first}
    remedy = next((name for name, applies in of_part.items() if applies), "")
    claim = Claim("starved", starved.idle_ns, Subject(line=line.line if line else ""), measures, remedy=remedy)
    if (saving := starved.saving) is None:
        return replace(claim, gain=(0, starved.idle_ns), gain_by=AT_MOST)
    return replace(claim, ns=saving.least_ns, gain=(saving.least_ns, saving.most_ns), gain_by=BY_REPLAY)


def _unprofiled(job: Job, share: UnprofiledShare, parts: Sequence[_Rank]) -> Claim:
    """Return the claim on waits for the loader in unprofiled steps."""
    measures = measured(wait_ns=share.ns, share_pct=share.pct)
    is_one_of_several = job.timings is not None and len(job.timings.step_ns) > 1
    subject = Subject(rank=share.rank if is_one_of_several else None)
    gain, basis = (0, share.ns), Basis(share.num_steps, is_unprofiled=True)
    place, of_place = place_of_workers(job)
    if lines := [part.line for part in parts if part.line is not None]:
        longest = max(lines, key=lambda line: line.share_pct)
        place, of_place = Subject(line=longest.line), measured(line_pct=longest.share_pct)
    makes_own = any(part.makes_own for part in parts)
    measures |= of_place | measured(num_workers=0 if makes_own else None)
    remedy = "own_batches" if makes_own else "no_free_core" if is_contended(job) else ""
    subject = replace(subject, line=place.line)
    return Claim("starved", share.ns, subject, measures, gain, AT_MOST, remedy, basis=basis)
