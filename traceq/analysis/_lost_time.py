"""Claims on what takes the time of a step: categories in which it is lost; where none is, what else takes it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import (
    holds_in_steps,
    job_gain,
    least_waiting_rank,
    slack_by_rank,
    unprofiled_share,
)
from traceq.analysis._longest_work import (
    HostCauses,
    HostPlace,
    LongWork,
    WorkTimes,
    host_causes,
    host_places,
    longest_work,
    merged_places,
    most_of_host,
    work_measures,
    work_times,
)
from traceq.analysis._wording import per_step
from traceq.analysis.loader import core_claims
from traceq.causes.removed_waits import saved_without_host_time, saved_without_syncs
from traceq.causes.replay import replay_of
from traceq.causes.savings import Saving
from traceq.claims.claim import (
    AT_MOST,
    BY_JOB_REPLAY,
    BY_REPLAY,
    Claim,
    Measure,
    Subject,
    by_rank,
    by_step,
    measured,
)
from traceq.claims.limits import LIMITING, LOST, MODERATE, MOST, MUCH
from traceq.claims.rules import RULES
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, collective_calls, collective_kernels
from traceq.facts.events.copies import OVER_LINK, WITHIN_DEVICE, copy_kind
from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.kernels import REMOTE_CALL, innermost_ops, is_communication
from traceq.facts.events.name_patterns import matching, unique_names
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.peaks import peaks_of
from traceq.facts.stalls.syncs import allocates_once
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.data_loading import DATALOAD_WAIT, makes_own_batches
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps, is_told_once
from traceq.frozen import frozen
from traceq.grouping import Groups, group
from traceq.intervals import earliest_owner, measure_within, sorted_unique
from traceq.model import Category, Caveat, Trace
from traceq.units import Unit, format_value, name_ranks
from traceq.whatif.interventions import HiddenComm, NoLaunchLatency
from traceq.whatif.predict import is_replayed

_NAMED = 2
"""Kinds of copies whose bandwidth is told."""
_FEWEST = 3
"""Calls of one size from which the shortest says how long a transfer takes."""
_MESSAGES = [COLLECTIVE_NAMES.index(name) for name in ("send", "recv", "send_recv")]


def exposed_copies(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return (bytes, ns) of all copies of each kind that are exposed in counted steps, wholly or in part."""
    events, work, pieces = trace.events, device_work(trace), activity(trace)
    exposed = pieces.owner[in_counted_steps(trace) & (pieces.category == TimeCategory.EXPOSED_MEMCPY)]
    sums: dict[str, tuple[int, int]] = {}
    copies = sorted_unique(exposed)
    copies = copies[events.category[work.rows[copies]] == Category.MEMCPY]
    names, of_name = unique_names(events, work.rows[copies])
    for number, name in enumerate(names.tolist()):
        chosen = copies[of_name == number]
        size, ns = sums.get(kind := copy_kind(events.strings[name]).text, (0, 0))
        moved, took = events.bytes[work.rows[chosen]], work.end[chosen] - work.start[chosen]
        sums[kind] = size + int(np.maximum(moved, 0).sum()), ns + int(took.sum())
    return sums


def rate_words(copies: Sequence[Mapping[str, tuple[int, int]]], link: float = 0.0) -> str:
    """Return `DtoH pinned at 8.7 of 26.0 GB/s, HtoD pinned at 5.0 GB/s` of the ranks' longest exposed copies.

    Of known size; `link`: bytes per second that copies reach between host and device, 0 where it is not known.
    """
    sums: dict[str, tuple[int, int]] = {}
    for of_rank in copies:
        for kind, (size, ns) in of_rank.items():
            sums[kind] = sums.get(kind, (0, 0))[0] + size, sums.get(kind, (0, 0))[1] + ns
    least_ns = MODERATE * sum(ns for _, ns in sums.values())  # one value, such as a loss, moves at no rate
    sized = [(ns, size, kind) for kind, (size, ns) in sums.items() if size and ns > least_ns]
    longest = sorted(sized, reverse=True)[:_NAMED]
    rates = [(kind, size / ns, link / 1e9 * kind.startswith(OVER_LINK)) for ns, size, kind in longest]
    return ", ".join(
        f"{kind} at " + (f"{gbps:.1f} of " if gbps < most else "") + format_value(max(gbps, most), Unit.GBPS)
        for kind, gbps, most in rates
    )


def exposed_device_copies(trace: Trace) -> dict[str, float]:
    """Return ns per counted step of the exposed copies within a device on streams that compute, by the op they are of.

    The op is "" where none is around the copy's launch.
    """
    events, work, pieces = trace.events, device_work(trace), activity(trace)
    if not len(work):
        return {}
    computes = (events.category[work.rows] == Category.KERNEL) & ~is_communication(trace)
    is_copy = matching(events, work.rows, WITHIN_DEVICE) & np.isin(work.stream, work.stream[computes])
    exposed = np.flatnonzero(in_counted_steps(trace) & (pieces.category == TimeCategory.EXPOSED_MEMCPY))
    exposed = exposed[is_copy[pieces.owner[exposed]]]
    ops, of_piece = np.unique(innermost_ops(trace, work.call[pieces.owner[exposed]]), return_inverse=True)
    ns = np.bincount(of_piece, weights=pieces.ns[exposed], minlength=len(ops)) / int(steps(trace).counted.sum())
    by_name: dict[str, float] = {}
    for row, op_ns in zip(ops.tolist(), ns.tolist(), strict=True):
        name = events.text(row) if row >= 0 else ""
        by_name[name] = by_name.get(name, 0.0) + op_ns
    return by_name


def most_transfer_ns(trace: Trace) -> float:
    """Return the ns of a mean counted step in which exposed collectives transfer, if all of a size take as long.

    Those of the same group, operation, dtype and size in the trace; of one that has few alike all may be transfer.
    """
    work, pieces = device_work(trace), activity(trace)
    most_ns = pieces.ns_of_work(pieces.among(TimeCategory.EXPOSED_COMM) & in_counted_steps(trace), len(work))
    index, alike = _of_known_size(trace)
    ns, shortest_ns = work.end[index] - work.start[index], np.full(len(alike.keys), np.iinfo(np.int64).max)
    np.minimum.at(shortest_ns, alike.group_ids, ns)
    has_alike = np.array(alike.count(), np.int64)[alike.group_ids] >= _FEWEST
    most_ns[index] = np.minimum(most_ns[index], np.where(has_alike, shortest_ns[alike.group_ids], ns))
    return float(most_ns.sum()) / int(steps(trace).counted.sum())


def exposed_remote_calls(trace: Trace) -> dict[str, float]:
    """Return ns per counted step in which the main thread waits in calls of other processes, by name.

    Of calls that overlap, the first counts. A trace with a device has none: its partition does not know them.
    """
    events, pieces = trace.events, activity(trace)
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION)
    rows = events.by_start(rows[matching(events, rows, REMOTE_CALL) & (len(device_work(trace)) == 0)])
    exposed = pieces.parts[pieces.among(TimeCategory.EXPOSED_COMM) & in_counted_steps(trace)]
    calls, owner = earliest_owner(events.ts[rows], events.end[rows])
    ns = measure_within(exposed, *calls.T) / int(steps(trace).counted.sum())
    by_name: defaultdict[str, float] = defaultdict(float)
    for row, row_ns in zip(rows[owner].tolist(), ns.tolist(), strict=True):
        by_name[events.text(row)] += row_ns
    return dict(by_name)


def _of_known_size(trace: Trace) -> tuple[NDArray[np.int64], Groups]:
    """Return (the device work of collectives whose size is recorded, those that are alike).

    Not that of messages, whose peers may be on another machine, nor of coalesced calls, which one kernel runs together.
    """
    work, events, calls, messages = device_work(trace), trace.events, collective_calls(trace), trace.events.messages
    kernels = collective_kernels(trace)
    linked = np.flatnonzero((kernels.call >= 0) & ~np.isin(kernels.name, _MESSAGES) & work.linked[kernels.work])
    call, launched = kernels.call[linked], events.ts[work.call[kernels.work[linked]]]
    begin, end = events.ts[calls.rows[call]], events.end[calls.rows[call]]
    sized = linked[(calls.size[call] > 0) & (calls.message[call] >= 0) & (begin <= launched) & (launched <= end)]
    message = calls.message[kernels.call[sized]]
    columns = messages.group, messages.dtype, messages.elements_in, messages.elements_out
    return kernels.work[sized], group([kernels.name[sized], *(column[message] for column in columns)])


_EXPOSED = TimeCategory.EXPOSED_COMM.name.lower()
_COPIES = TimeCategory.EXPOSED_MEMCPY.name.lower()
_HOST_BOUND = TimeCategory.HOST_BOUND.name.lower()
_LOADER = TimeCategory.DATALOAD_WAIT.name.lower()
_SYNC, _ALLOC = TimeCategory.SYNC_WAIT.name.lower(), TimeCategory.ALLOC_WAIT.name.lower()
_COMPUTE, _IN_OPS = TimeCategory.COMPUTE.name.lower(), TimeCategory.CPU_COMPUTE.name.lower()
_PYTHON = TimeCategory.PYTHON.name.lower()
_ONCE, _UNRECORDED = TimeCategory.ONCE.name.lower(), TimeCategory.UNRECORDED.name.lower()
_LOST = (_HOST_BOUND, _EXPOSED, EXPOSED_WAIT, EXPOSED_TRANSFER, _COPIES, _SYNC, _ALLOC, _LOADER)
"""Categories in which time is lost; the code of each claim is its category."""
_LIMITING = {_COMPUTE: "device_bound", _IN_OPS: "cpu_bound", _PYTHON: "python_bound"}
"""Category -> code of the claim that it is most of a step in which none of these is much."""
_BESIDE_COMPUTE = (_EXPOSED, EXPOSED_WAIT, EXPOSED_TRANSFER)
"""Categories of what other work would hide."""
_CHANGES = {EXPOSED_TRANSFER: HiddenComm(), _HOST_BOUND: NoLaunchLatency()}
"""What `traceq whatif` changes where all of a category is gone on all ranks."""
_DATA_WAIT = re.compile(f"^{DATALOAD_WAIT}$")


@frozen
class RankLoss:
    """What is known of the time that one rank loses.

    `saved` is what replay saves without the resource of a category. `device_copies`: ns of a step by op of exposed
    copies that no overlap can hide, `copies`: (bytes, ns) by kind of all exposed ones; exposed collectives can transfer
    for `most_transfer_ns`, and `remote_calls` are ns of a step by name. `work` divides what it computes, and `places`
    are those of a host without a device. `allocates_once`: why its allocations do not recur, "" where they may.
    """

    saved: dict[str, Saving]
    device_copies: dict[str, float]
    copies: dict[str, tuple[int, int]]
    most_transfer_ns: float
    remote_calls: dict[str, float]
    host_causes: HostCauses
    makes_own_batches: bool
    work: WorkTimes
    places: tuple[HostPlace, ...]
    allocates_once: str


def rank_loss(trace: Trace) -> RankLoss:
    """Return what is known of the time that a rank loses."""
    return RankLoss(
        saved=_saved(trace),
        device_copies=exposed_device_copies(trace),
        copies=exposed_copies(trace),
        most_transfer_ns=most_transfer_ns(trace),
        remote_calls=exposed_remote_calls(trace),
        host_causes=host_causes(trace),
        makes_own_batches=makes_own_batches(trace),
        work=work_times(trace),
        places=host_places(trace),
        allocates_once=allocates_once(trace),
    )


def _saved(trace: Trace) -> dict[str, Saving]:
    """Return by how much replay shortens a step without the resource of a category, as in the table `replay`.

    Of computing, with all work of the device in half the time. What a host does of which no op is recorded is not
    known, and so is what would be saved without it.
    """
    if not len(device_work(trace)) or not is_replayed(trace):
        return {}
    replay, work = replay_of(trace), device_work(trace)
    saved = {_EXPOSED: replay.without_communication}
    saved[_COMPUTE] = replay.with_shorter_work([(work.end - work.start) // 2])[0]
    saved |= {} if lacks_host_ops(trace) else {_HOST_BOUND: saved_without_host_time(trace)}
    return saved | {_SYNC: saved_without_syncs(trace), _ALLOC: saved_without_syncs(trace, SyncKind.ALLOC)}


@frozen(eq=False)
class StepTimes:
    """Time of the K counted steps of a job: float64[K] ns by category, mean over ranks.

    `first_waits` float64[K] ns: exposed waits in first collectives. `of_ranks`: ns of a mean step by category and
    rank. Shares are of whole steps, or of the rest where what is once is told.
    """

    by_category: Mapping[str, NDArray[np.float64]]
    first_waits: NDArray[np.float64]
    of_ranks: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def whole(self) -> NDArray[np.float64]:
        """float64[K] ns of each step, of which shares are."""
        if not self.by_category:
            return np.zeros(0)
        recurring = [ns for name, ns in self.by_category.items() if name != _ONCE or not self.is_rest]
        return np.asarray(np.sum([np.zeros_like(self.first_waits), *recurring], axis=0))  # all may be once

    @property
    def is_rest(self) -> bool:
        """Whether shares are of the rest of the steps, without what is once."""
        once_ns = float(np.sum(self.by_category.get(_ONCE, 0.0)))
        return is_told_once(once_ns, float(np.sum(list(self.by_category.values()))))

    @property
    def mean_whole_ns(self) -> float:
        """Of a step, of which shares are; 0.0 without steps."""
        return float(self.whole.mean()) if len(self.whole) else 0.0

    def ns(self, category: str) -> NDArray[np.float64]:
        """Return float64[K] ns of a category."""
        return self.by_category.get(category, np.zeros_like(self.whole))

    def mean_ns(self, category: str) -> float:
        """Return ns of a category in a mean step."""
        return float(self.ns(category).mean())

    def share_pct(self, category: str) -> float:
        """Return the percentage of all steps that a category takes."""
        return 100 * float(self.ns(category).sum()) / float(self.whole.sum())

    def holds(self, category: str, least: float) -> bool:
        """Return whether a category takes that part of most steps."""
        return holds_in_steps(self.ns(category), self.whole, 100 * least)

    def measures(self, category: str) -> dict[str, Measure]:
        """Return how long a category takes."""
        ns = self.ns(category).round().astype(np.int64).tolist()
        return measured(
            time_ns=round(self.mean_ns(category)),
            share_pct=self.share_pct(category),
            **self.base,
            **by_step("time", ns),
        )

    @property
    def base(self) -> dict[str, Measure]:
        """The measure that tells what shares are of."""
        return {"share_of": "rest"} if self.is_rest else {}


def time_claims(job: Job, times: StepTimes, losses: Sequence[RankLoss]) -> list[Claim]:
    """Return the categories that take a large share of most counted steps; where none does, what limits the step."""
    lost = [_lost(job, times, losses, category) for category in _LOST if _is_large(job, times, category)]
    return lost or list(_limiting(job, times, losses))


def first_collective_caveats(job: Job, times: StepTimes) -> tuple[Caveat, ...]:
    """Return a note on waits in first collectives where these are much of the steps, and others no claim."""
    first_ns, whole_ns = times.first_waits.sum(), times.whole.sum()
    if first_ns < MODERATE * whole_ns or not whole_ns or _is_large(job, times, EXPOSED_WAIT):
        return ()
    time = f"{format_value(float(times.first_waits.mean()), Unit.NS)} {per_step(job.ranks[0].steps)}"
    share = format_value(100 * float(first_ns / whole_ns), Unit.PERCENT)
    return (Caveat("first_collective", sentences.FIRST_COLLECTIVE.format(time=time, share=share)),)


def _is_large(job: Job, times: StepTimes, category: str) -> bool:
    (least,) = RULES[category].limits
    if category in _BESIDE_COMPUTE and any(rank.lacks_device_rows for rank in job.ranks):
        return False  # the host's calls, not the transfers
    lost = times.ns(category) - (times.first_waits if category == EXPOSED_WAIT else 0)
    if not times.whole.any() or times.ns(category).sum() < least * times.whole.sum():
        return False
    if not holds_in_steps(lost, times.whole, 100 * least):
        return False
    unprofiled = unprofiled_share(job, _DATA_WAIT, 100 * least) if category == _LOADER else None
    return unprofiled is None or unprofiled.exceeds


def _lost(job: Job, times: StepTimes, losses: Sequence[RankLoss], category: str) -> Claim:
    """Return the claim on time that is lost in a category, mean over ranks."""
    ns = round(times.mean_ns(category))
    subject, measures, remedy = _details(job, times, losses, category)
    if category in (*_BESIDE_COMPUTE, _HOST_BOUND):
        unrecorded_ns = times.mean_ns(_UNRECORDED)
        is_much = unrecorded_ns > LOST * times.mean_whole_ns  # how long phases compute is not known
        measures |= measured(unrecorded_ns=round(unrecorded_ns) if is_much else None)
    measures |= by_rank(times.of_ranks.get(category, {}))
    claim = Claim(category, ns, subject, times.measures(category) | measures, remedy=remedy)
    return _gained(claim, job, losses)


def _details(
    job: Job, times: StepTimes, losses: Sequence[RankLoss], category: str
) -> tuple[Subject, dict[str, Measure], str]:
    """Return (where a category loses time, what else is known of it, key of the remedy)."""
    mean_ns, has_device = times.mean_ns(category), any(rank.has_device for rank in job.ranks)
    if category == _HOST_BOUND:
        subject, places = most_of_host([loss.host_causes for loss in losses], mean_ns)
        return subject, measured(compute_pct=times.share_pct(_COMPUTE), **places), ""
    if category == _EXPOSED:
        most_ns = sum(loss.most_transfer_ns for loss in losses) / len(losses)
        tells_waits = not (job.waits.complete & ~job.waits.possible).any()  # durations do, of all ranks
        is_bound = has_device and tells_waits and most_ns <= MOST * mean_ns
        call, call_ns = _most_of([loss.remote_calls for loss in losses])
        if call_ns >= MOST * mean_ns:
            return Subject(op=call, kind="RPC"), {}, "remote_call"
        remedy = "all_ranks" if job.lacks_ranks else ""
        return Subject(), measured(most_transfer_ns=round(most_ns) if is_bound else None), remedy
    if category == EXPOSED_WAIT:
        return Subject(), measured(first_collective_ns=round(float(times.first_waits.mean())) or None), ""
    if category == _COPIES:
        peaks = peaks_of(job.ranks[0].device)
        rates = rate_words([loss.copies for loss in losses], peaks.link if peaks else 0.0)
        op, device_ns = _most_of([loss.device_copies for loss in losses])
        if device_ns < MOST * mean_ns:
            return Subject(), measured(rates=rates), ""
        return Subject(op=op), measured(device_copies_ns=round(device_ns), rates=rates), "device_copies"
    if category == _LOADER:
        makes_own = any(loss.makes_own_batches for loss in losses)
        return Subject(), measured(num_workers=0 if makes_own else None), ""
    if category == _ALLOC:
        reasons = {loss.allocates_once for loss in losses}
        return Subject(), measured(once=reasons.pop() if len(reasons) == 1 else ""), ""
    return Subject(), {}, ""


def _most_of(of_ranks: Sequence[Mapping[str, float]]) -> tuple[str, float]:
    """Return (what has most of the ns of a step or "", the ns of all), mean over ranks."""
    sums: defaultdict[str, float] = defaultdict(float)
    for of_rank in of_ranks:
        for name, ns in of_rank.items():
            sums[name] += ns / len(of_ranks)
    all_ns, name = sum(sums.values()), max(sums, key=sums.__getitem__, default="")
    return name if sums[name] >= MOST * all_ns else "", all_ns


def _gained(claim: Claim, job: Job, losses: Sequence[RankLoss]) -> Claim:
    """Return the claim with what a step gains without its category; waits for other ranks are those ranks' time.

    By replay of all ranks together; where that cannot be, of the one that waits least for others: the others would only
    wait longer. Where it is not known which one that is, it may be any.
    """
    if (change := _CHANGES.get(claim.code)) is not None and (gain := job_gain(job, change)) is not None:
        return replace(claim, gain=(0, gain.saved_ns[1]), gain_by=BY_JOB_REPLAY)  # as much as is hidden, or shortened
    last = least_waiting_rank(slack_by_rank(job))
    of_ranks = [loss.saved for rank, loss in zip(job.ranks, losses, strict=True) if last in (None, rank.rank)]
    savings = [saved[claim.code] for saved in of_ranks if claim.code in saved]
    if claim.code == EXPOSED_WAIT or (claim.code == _EXPOSED and (not savings or job.lacks_ranks)):
        return claim
    if not savings:
        return replace(claim, gain=(0, claim.ns), gain_by=AT_MOST)
    replayed = measured(replayed=None if last is None else name_ranks([last]))
    gained = min(saving.least_ns for saving in savings), max(saving.most_ns for saving in savings)
    return replace(claim, gain=gained, gain_by=BY_REPLAY, measures={**claim.measures, **replayed})


def _limiting(job: Job, times: StepTimes, losses: Sequence[RankLoss]) -> Iterator[Claim]:
    """Yield the claim on what takes most of a step of which no part is lost, if something does."""
    work = longest_work([loss.work for loss in losses])
    places = merged_places([loss.places for loss in losses], len(times.whole))
    longest = [place for place in places if _has_most(place, times)]
    if any(rank.lacks_device_rows for rank in job.ranks):
        yield from _longest_op_of_host(job, times, longest, work)
        return
    subject, in_ops = _most_in_ops(times, longest, work)
    measures = work_measures(work, times.mean_whole_ns) | in_ops
    category = next((each for each in (_COMPUTE, _IN_OPS) if times.holds(each, LIMITING)), "")
    is_only = category and not _waits_unprofiled(job) and _saves_most(category, times, losses)
    remedy = "only_compute" if is_only else ""
    if not category and times.holds(_IN_OPS, MOST) and subject != Subject():
        category = _IN_OPS
    elif not category and times.holds(_PYTHON, MUCH) and all(loss.host_causes for loss in losses):
        category = _PYTHON
        subject, in_python = most_of_host([loss.host_causes for loss in losses], times.mean_ns(_PYTHON))
        measures |= in_python
    if category:
        if category == _IN_OPS and subject == Subject():
            line = next((place.line or place.name for place in places if place.kind in ("line", "function")), "")
            measures |= measured(longest_line=line)
        ns = round(times.mean_ns(category))
        yield Claim(_LIMITING[category], ns, subject, times.measures(category) | measures, remedy=remedy)


def _saves_most(category: str, times: StepTimes, losses: Sequence[RankLoss]) -> bool:
    """Return whether twice the speed saves more than all else in a step takes, if replay can tell; a host limits it."""
    saved_ns = [loss.saved[category].least_ns for loss in losses if category in loss.saved]
    return not saved_ns or float(np.mean(saved_ns)) > times.mean_whole_ns - times.mean_ns(category)


def _waits_unprofiled(job: Job) -> bool:
    """Return whether unprofiled steps lose what traced ones need not show: waits for the loader, or for cores."""
    loading = unprofiled_share(job, _DATA_WAIT, 100 * MODERATE)
    return (loading is not None and loading.exceeds) or any(core_claims(job))


def _has_most(place: HostPlace, times: StepTimes) -> bool:
    """Return whether a place takes most of the step."""
    is_long = len(place.ns) > 0 and place.mean_ns >= MOST * times.mean_whole_ns
    return is_long and holds_in_steps(place.ns, times.whole, 100 * MOST)


def _most_in_ops(
    times: StepTimes, longest: Sequence[HostPlace], work: Sequence[LongWork]
) -> tuple[Subject, dict[str, Measure]]:
    """Return the op that takes most of the step, else the smallest line, function or module whose ops do, or nothing.

    Of a function it is the longest line, with its name.
    """
    if work and times.ns(_IN_OPS).any() and work[0].ns >= MOST * times.mean_whole_ns:
        return Subject(op=work[0].name, line=work[0].line), measured(node=work[0].node or None)
    places = (place for place in longest if place.kind != "op")
    place = min(places, key=lambda place: (place.mean_ns, -len(place.name)), default=None)
    if place is None:
        return Subject(), {}
    if place.kind == "function":
        return Subject(line=place.line), measured(function=place.name.partition(" ")[2])
    return Subject(line=place.name) if place.kind == "line" else Subject(module=place.name), {}


def _longest_op_of_host(
    job: Job, times: StepTimes, longest: Sequence[HostPlace], work: Sequence[LongWork]
) -> Iterator[Claim]:
    """Yield the op with most of the host's time, where no trace has the rows of its device."""
    op = next((place for place in longest if place.kind == "op"), None)
    if op is None or any(rank.has_device for rank in job.ranks):
        return
    line = next((each.line for each in work if each.name == op.name), "")
    measures = measured(time_ns=round(op.mean_ns), share_pct=100 * op.mean_ns / times.mean_whole_ns, **times.base)
    remedy = "" if op.asks_device else "on_device"
    yield Claim("host_op", round(op.mean_ns), Subject(op=op.name, line=line), measures, remedy=remedy)
