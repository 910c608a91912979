"""Where does the time of an unprofiled step go; of an inference engine, that of a traced one?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import ranks_differ
from traceq.analysis._wording import MOST_RANKS
from traceq.analysis.inference import StepKindRow, step_kinds, step_kinds_view
from traceq.analysis.loader import core_claims, is_loader_alone
from traceq.claims.claim import AT_MOST, Basis, Claim, Subject, measured
from traceq.claims.limits import MODERATE, MOST
from traceq.facts.comm.parallelism import strategy_of
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.op_work import rank_work
from traceq.facts.roofline.peaks import peaks_of
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.unprofiled_phases import UnprofiledPhase, pace_of, unprofiled_phases
from traceq.frozen import frozen
from traceq.model import BATCHES_PER_STEP, NOTABLE_PCT, Manifest, Timings, Trace, WallTime
from traceq.report import Column, Report, Table, column
from traceq.stats.means import block_means, lowest_mean
from traceq.units import Unit, format_value

BACKWARD_STEP = ("bwd", "unscale_clip", "optim_step", "zero_grad_sched")
_BY_DEEPSPEED = re.compile(r"DeepSpeed|ZeRO-[23]|or 2")
_MOST_BESIDE_SPREAD = 4
"""Most ranks whose times fit beside median, p95 and share."""


@frozen
class PhaseTimesRow:
    """One phase of the unprofiled steps of one rank, or of all."""

    rank: int | None = column("rank", Unit.COUNT, is_hidden=True)
    phase: str = column("phase")
    mean_ns: int = column("mean", Unit.NS)
    median_ns: int = column("median", Unit.NS)
    p95_ns: int = column("p95", Unit.NS)
    share_pct: float = column("share", Unit.PERCENT)
    host_ns: int = column("host, mean", Unit.NS)


@frozen
class WallTimeRow:
    """A part of the job's wall time, from its start to the end of the recording."""

    part: str = column("part", is_hidden=True)
    """`regular`, `recompiling`, `checkpoint`, `epoch`, `evaluation`, `rollout`, `pause`, `other`, joined by `+`;
    `start_up`, `compiling`, `learning`, `recording`.
    """
    title: str = column("part")
    num: int | None = column("times", Unit.COUNT)
    ns: int = column("time", Unit.NS)
    share_pct: float = column("share", Unit.PERCENT)
    training_pct: float | None = column("of training", Unit.PERCENT)
    line: str = column("line")
    """Where the main thread was most often."""
    line_pct: float | None = column("of its samples", Unit.PERCENT, is_hidden=True)


@frozen
class _Profile:
    """The unprofiled steps of an arm, in seconds and 10^9 bytes; parameters are None where the recipe lacks them.

    The means of phases, with `other` and without `backward_step` (a sum), add up to the step.
    """

    arm: str = column()
    warmup: int = column()
    measured: int = column()
    num_processes: int = column()
    distributed_type: str = column()
    """Class that wraps the model, `none`, or a loop's strategy."""
    batch_size: str | float | None = column()
    grad_accum: str | float | None = column()
    num_workers: str | float | None = column()
    prefetch_factor: str | float | None = column()
    samples_per_step: int | None = column()
    clock: str = column()
    """`device` or `host`: that of the phases."""
    global_step_time_s: float = column()
    """Mean step of the slowest rank."""
    global_samples_per_sec: float | None = column()
    clock_samples_per_sec: float | None = column()
    """By the training's wall time, with irregular steps."""
    slowest_rank: int = column()
    ranks_differ: bool = column()
    """By 1 %, and beyond scatter."""
    peak_alloc_gb_worst: float | None = column()
    """Of tensors, since warm-up."""
    peak_reserved_gb_worst: float | None = column()
    peak_rss_gb_worst: float | None = column()
    mfu_pct: float | None = column()
    """With the FLOPs of traced steps; None without shapes or peaks."""
    note: str = column()


@frozen
class _Rank:
    """What a rank's trace shows: its strategy, the model FLOPs of a mean counted step by dtype, steps of inference."""

    strategy: str
    model_flops: dict[str, float]
    kinds: tuple[StepKindRow, ...]


@frozen
class _Seconds:
    """Seconds by the name of a phase or a rank."""

    name: str = column()
    s: float = column()


def summarize(trace: Trace) -> _Rank:
    """Return the strategy that the rank's trace shows, and what its step computes."""
    flops: dict[str, float] = {}
    num_steps = int(steps(trace).counted.sum())
    for row in rank_work(trace).rows:
        flops[row.dtype] = flops.get(row.dtype, 0.0) + row.step_model_flops / num_steps
    return _Rank(strategy_of(trace)[0], flops, step_kinds(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return phases of the unprofiled steps of the run's arm, and the job's pace; of a trace alone kinds of steps."""
    timings, manifest = job.timings, job.manifest
    kinds = [row for part in parts for row in part.kinds]
    if timings is None or manifest is None:
        views = (step_kinds_view(kinds),) if kinds else ()
        return Report("step_profile", _tables((), _parts((), ()), (), kinds, _wall_time(None)), views)
    times = unprofiled_phases(timings)
    ranks = range(len(timings.step_ns))
    rows = tuple(row for rank in ranks for row in _rows([phase.of(rank) for phase in times], rank))
    # a user's loop has no wrapper of a recipe, but the strategy that the trace shows
    distributed = str(manifest.facts_for(job.arm).get("wrapper", "")) or (parts[0].strategy if parts else "")
    mfu_pct = _mfu(job, timings, manifest, [part.model_flops for part in parts])
    figures = _figures(job, timings, manifest, distributed, mfu_pct)
    views = () if is_loader_alone(manifest) else (_view(job, timings, distributed, times, mfu_pct),)
    wall_time = WallTime.of(manifest.facts_for(job.arm))
    clock = _wall_time(wall_time)
    tables = _tables((figures,), _parts(times, timings.step_ns.mean(axis=1).tolist()), rows, kinds, clock)
    views = (clock.visible, *views) if wall_time else views
    is_busy = any(claim.code == "busy_machine" for claim in core_claims(job))
    return Report("step_profile", tables, views, tuple(_claims(wall_time, timings, is_busy=is_busy)))


def _claims(wall_time: WallTime | None, timings: Timings, *, is_busy: bool) -> Iterator[Claim]:
    """Yield where the time goes if much of it is not in regular steps, and which part goes to the garbage collector.

    What regular steps would save is little beside it. Pauses on a busy machine are not the job's.
    """
    parts = [part for part in wall_time.training if part.tells_rate] if wall_time is not None else []
    parts = [part for part in parts if not (is_busy and part.name == "pause")]
    if wall_time is not None and sum(map(wall_time.share_pct, parts)) >= NOTABLE_PCT:
        irregular = parts[0]
        measures = measured(
            part=irregular.counted_text,
            part_pct=wall_time.share_pct(irregular),
            part_ns=irregular.ns,
            training_ns=wall_time.training_ns,
            irregular_pct=wall_time.irregular_pct,
            samples_rate=wall_time.samples_per_second,
            regular_samples_rate=wall_time.regular_samples_per_second,
            num_workers=wall_time.renewed_workers or None,
        )
        rank = wall_time.rank if wall_time.num_ranks > 1 else None
        remedy = "persistent_workers" if wall_time.renews_workers else ""
        yield Claim("wall_time", 0, Subject(rank=rank, line=irregular.line), measures, remedy=remedy)
    yield from _longer_steps(timings)
    num_steps, paused_ns = timings.host_step_ns.shape[1], sum(each.ns for each in timings.pauses)
    share = paused_ns / int(timings.host_step_ns.sum(axis=1).max())
    if share >= MODERATE and (most := timings.pauses[0]).num > 1:  # one may be the only one
        measures = measured(
            share_pct=100 * share,
            collection=most.name,
            num_pauses=most.num,
            pause_ns=most.ns // most.num,
            num_steps=num_steps,
        )
        basis, ns = Basis(num_steps, is_unprofiled=True), paused_ns // num_steps
        yield Claim("garbage_collection", ns, Subject(), measures, (0, ns), AT_MOST, basis=basis)


def _longer_steps(timings: Timings) -> Iterator[Claim]:
    """Yield that the steps of the second half are longer than those of the first by most of these, beyond scatter.

    Each with the one as many steps before it. Without a device it is the CPU time of a main thread, which waits for
    neither other ranks nor other processes.
    """
    work_ns = timings.step_ns if timings.by_device or timings.cpu_ns is None else timings.cpu_ns
    half = work_ns.shape[1] // 2
    for rank, ns in enumerate(work_ns.astype(np.float64)):
        first, second = ns[:half], ns[half : 2 * half]
        if half > 1 and lowest_mean(block_means(second - first)) >= MOST * first.mean() > 0:
            more_pct = 100 * float(second.mean() / first.mean() - 1)
            measures = measured(more_pct=more_pct, first_ns=round(first.mean()), second_ns=round(second.mean()))
            subject = Subject(rank=rank if len(work_ns) > 1 else None)
            yield Claim("longer_steps", 0, subject, measures, basis=Basis(work_ns.shape[1], is_unprofiled=True))
            return


def _wall_time(account: WallTime | None) -> Table:
    """Return the parts of the account, those of the training first, largest first."""
    if account is None:
        return Table.of("wall_time", "", WallTimeRow, ())
    others = sorted((part for part in account.parts if not part.is_training), key=lambda part: -part.ns)
    total_ns = sum(part.ns for part in account.parts)
    rows = [
        WallTimeRow(
            part=part.name,
            title=part.title,
            num=part.num or None,
            ns=part.ns,
            share_pct=100 * part.ns / total_ns,
            training_pct=account.share_pct(part) if part.is_training else None,
            line=part.line,
            line_pct=part.line_pct if part.line else None,
        )
        for part in (*account.training, *others)
        if part.ns
    ]
    of_rank = f" of rank {account.rank}" if account.num_ranks > 1 else ""
    return Table.of("wall_time", sentences.WALL_TIME.format(of_rank=of_rank), WallTimeRow, rows)


def _tables(
    profile: Sequence[_Profile],
    parts: tuple[Table, ...],
    phases: Sequence[PhaseTimesRow],
    kinds: Sequence[StepKindRow],
    wall_time: Table,
) -> tuple[Table, ...]:
    return (
        Table.of("step_profile", "", _Profile, profile, single=True, parts=parts),
        Table.of("step_phases", "Phases of unprofiled steps", PhaseTimesRow, phases),
        Table.of("step_kinds", sentences.INFERENCE_KINDS.format(of_rank=""), StepKindRow, kinds),
        wall_time,
    )


def _rows(times: Sequence[UnprofiledPhase], rank: int | None = None) -> list[PhaseTimesRow]:
    whole_ns = sum(phase.mean for phase in times)
    return [
        PhaseTimesRow(
            rank=rank,
            phase=phase.name,
            mean_ns=round(phase.mean),
            median_ns=round(phase.median),
            p95_ns=round(phase.p95),
            share_pct=100 * phase.mean / whole_ns,
            host_ns=round(phase.host_ns.mean()),
        )
        for phase in times
    ]


def _figures(job: Job, timings: Timings, manifest: Manifest, distributed: str, mfu_pct: float | None) -> _Profile:
    pace, arm = pace_of(manifest, job.arm, timings), manifest.arm(job.arm)
    wall_time = WallTime.of(manifest.facts_for(job.arm))
    parameters = {**manifest.facts_for(job.arm), **manifest.parameters, **(arm.varied if arm else {})}
    return _Profile(
        arm=job.arm,
        warmup=timings.num_warmup,
        measured=timings.step_ns.shape[1],
        num_processes=len(timings.step_ns),
        distributed_type=distributed,
        batch_size=parameters.get("batch_size"),
        grad_accum=parameters.get("grad_accum"),
        num_workers=parameters.get("num_workers"),
        prefetch_factor=parameters.get("prefetch_factor"),
        samples_per_step=pace.samples or None,
        clock="device" if timings.by_device else "host",
        global_step_time_s=pace.step_ns * 1e-9,
        global_samples_per_sec=pace.samples_per_second,
        clock_samples_per_sec=wall_time.samples_per_second if wall_time else None,
        slowest_rank=pace.slowest,
        ranks_differ=ranks_differ(timings.step_ns),
        peak_alloc_gb_worst=_gigabytes(timings.peak_allocated),
        peak_reserved_gb_worst=_gigabytes(timings.peak_reserved),
        peak_rss_gb_worst=_gigabytes(timings.peak_process),
        mfu_pct=mfu_pct,
        note=" ".join(_doubts(distributed, timings)),
    )


def _parts(times: Sequence[UnprofiledPhase], ranks_ns: Sequence[float]) -> tuple[Table, ...]:
    """Return the objects within the profile: seconds by phase, the sum `backward_step` among them, and by rank."""
    by_name = {phase.name: phase for phase in times}
    if all(name in by_name for name in BACKWARD_STEP):
        summed = [by_name[name] for name in BACKWARD_STEP]
        ns, host_ns = (np.sum([getattr(phase, name) for phase in summed], axis=0) for name in ("ns", "host_ns"))
        times = (*times, UnprofiledPhase("backward_step", ns, host_ns))
    return (
        _seconds("phase_means_s", {phase.name: phase.mean for phase in times}),
        _seconds("phase_medians_s", {phase.name: phase.median for phase in times}),
        _seconds("phase_p95_s", {phase.name: phase.p95 for phase in times}),
        _seconds("per_rank_step_time_s", {str(rank): ns for rank, ns in enumerate(ranks_ns)}),
    )


def _seconds(key: str, times_ns: Mapping[str, float]) -> Table:
    return Table.of(key, "", _Seconds, [_Seconds(name, ns * 1e-9) for name, ns in times_ns.items()])


def _view(
    job: Job, timings: Timings, distributed: str, times: Sequence[UnprofiledPhase], mfu_pct: float | None
) -> Table:
    num_ranks, num_steps = timings.step_ns.shape
    total = UnprofiledPhase("total", timings.step_ns, np.sum([phase.host_ns for phase in times], axis=0))
    rows = [row for row in _rows(times) if row.mean_ns] + _rows([total])
    ranks = f"mean of {num_ranks} ranks, " if num_ranks > 1 else ""
    clock = sentences.BY_DEVICE * timings.by_device
    title = sentences.UNPROFILED_STEP.format(ranks=ranks, num_steps=num_steps, clock=clock)
    mfu = [sentences.MFU_OF_STEP.format(mfu=format_value(mfu_pct, Unit.PERCENT))] if mfu_pct is not None else []
    rest = [sentences.OTHER_PHASE] if 100 * times[-1].mean >= 100 * MODERATE * total.mean and len(times) > 1 else []
    note = " ".join([*_pace(job, timings), *mfu, *_memory(timings), *rest, *_doubts(distributed, timings)])
    view = Table.of("step_phases", title, PhaseTimesRow, rows, note=note).visible
    view = view if timings.by_device else view.without("host_ns")
    return _with_ranks(view, {phase.name: phase for phase in (*times, total)}, num_ranks)


def _with_ranks(view: Table, times: Mapping[str, UnprofiledPhase], num_ranks: int) -> Table:
    """Return the view with the mean of each rank, of many ranks with the slowest, the median and the fastest."""
    if num_ranks < 2:
        return view
    means = [times[str(row[0])].ns.mean(axis=1).round().astype(np.int64) for row in view.rows]
    if num_ranks <= MOST_RANKS:
        if num_ranks > _MOST_BESIDE_SPREAD:
            view = view.select("phase", "mean_ns")
        for rank in range(num_ranks):
            view = view.with_column(Column(f"rank_{rank}", f"rank {rank}", Unit.NS), (int(ns[rank]) for ns in means))
        return view
    view = view.with_column(Column("slowest_ns", "slowest", Unit.NS), (int(ns.max()) for ns in means))
    view = view.with_column(Column("slowest_rank", "on rank", Unit.COUNT), (int(ns.argmax()) for ns in means))
    view = view.with_column(Column("median_rank_ns", "median rank", Unit.NS), (round(np.median(ns)) for ns in means))
    return view.with_column(Column("fastest_ns", "fastest", Unit.NS), (int(ns.min()) for ns in means))


def _pace(job: Job, timings: Timings) -> Iterator[str]:
    """Yield what the job's step takes, the fastest rank where ranks differ, and a batch where a step has several.

    Where other work takes much of the time, the samples per second are those by the clock, and said there.
    """
    manifest = job.manifest
    pace = pace_of(manifest, job.arm, timings)
    facts = manifest.facts_for(job.arm) if manifest else {}
    step, wall_time, rate = format_value(pace.step_ns, Unit.NS), WallTime.of(facts), pace.samples_per_second
    if rate and not (wall_time is not None and wall_time.is_notable):
        samples = format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN)
        yield sentences.PACE_AND_RATE.format(step=step, rate=samples)
    else:
        yield sentences.PACE.format(step=step)
    if ranks_differ(timings.step_ns):
        yield sentences.SLOWEST_RANK.format(rank=pace.slowest, fastest=format_value(min(pace.ranks_ns), Unit.NS))
    num_batches = facts.get(BATCHES_PER_STEP)
    if isinstance(num_batches, int | float) and num_batches > 1:
        per_batch = format_value(pace.step_ns / num_batches, Unit.NS)
        yield sentences.BATCHES_OF_STEP.format(num=format_value(num_batches, Unit.NUMBER), per_batch=per_batch)


def _mfu(job: Job, timings: Timings, manifest: Manifest, flops: Sequence[dict[str, float]]) -> float | None:
    """Return the share of the job's unprofiled step that the FLOPs of a traced one take at peak speed, in percent.

    None where a rank's trace, its shapes or the peaks of its device are missing, and where it would exceed 100.
    """
    measured = manifest.facts_for(job.arm)
    all_peaks = [peaks_of(rank.device, measured) for rank in job.ranks]
    if len(flops) < len(timings.step_ns) or not all(flops):
        return None
    seconds = 0.0
    for peaks, of_rank in zip(all_peaks, flops, strict=True):
        of_peak = peaks.seconds(of_rank) if peaks is not None else None
        if of_peak is None:
            return None
        seconds += of_peak
    mfu_pct = 100 * seconds / len(flops) / (pace_of(manifest, job.arm, timings).step_ns * 1e-9)
    return mfu_pct if 0 < mfu_pct <= 100 else None


def _memory(timings: Timings) -> list[str]:
    """Return the recorded peaks of the worst rank in a sentence, if there are any."""
    peaks = [int(peak.max()) for peak in (timings.peak_allocated, timings.peak_reserved, timings.peak_process)]
    kinds = ("allocated", "reserved", "of the process")
    texts = [f"{format_value(peak, Unit.BYTES)} {kind}" for peak, kind in zip(peaks, kinds, strict=True) if peak]
    worst = " of the worst rank" if len(timings.step_ns) > 1 else ""
    return [sentences.PEAK_MEMORY.format(of_rank=worst, peaks=", ".join(texts))] if texts else []


def _gigabytes(peak_bytes: NDArray[np.int64]) -> float | None:
    """Return the most bytes of any rank in 10^9; None where that was not recorded."""
    peak = int(peak_bytes.max())
    return peak * 1e-9 if peak else None


def _doubts(distributed: str, timings: Timings) -> list[str]:
    """Return why phases may not match their names."""
    merged = [sentences.DEEPSPEED] if _BY_DEEPSPEED.search(distributed) else []
    return [*merged, *([sentences.BY_HOST] if timings.peak_allocated.any() and not timings.by_device else [])]
