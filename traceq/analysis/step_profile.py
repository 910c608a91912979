"""Where does the time of a step go that no profiler slowed down?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceq.analysis.loader import is_loader_alone
from traceq.facts.comm.parallelism import strategy_of
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.unprofiled_phases import UnprofiledPhase, pace_of, unprofiled_phases
from traceq.model import Manifest, Timings, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value

POSITION = 6

BACKWARD_STEP = ("bwd", "unscale_clip", "optim_step", "zero_grad_sched")
_TIMES = (
    Column("phase", "phase"),
    Column("mean_ns", "mean", Unit.NS),
    Column("median_ns", "median", Unit.NS),
    Column("p95_ns", "p95", Unit.NS),
    Column("share_pct", "share", Unit.PERCENT),
    Column("host_ns", "host, mean", Unit.NS),
)
_PROFILE = tuple(
    Column(key)
    for key in (
        "arm",
        "warmup",
        "measured",
        "num_processes",
        "distributed_type",
        "batch_size",
        "grad_accum",
        "num_workers",
        "prefetch_factor",
        "samples_per_step",
        "clock",
        "global_step_time_s",
        "global_samples_per_sec",
        "slowest_rank",
        "peak_alloc_gb_worst",
        "peak_reserved_gb_worst",
        "peak_rss_gb_worst",
        "note",
    )
)
_BY_NAME = (Column("name"), Column("s"))
_PARTS = ("phase_means_s", "phase_medians_s", "phase_p95_s", "per_rank_step_time_s")
_GIVEN = ("batch_size", "grad_accum", "num_workers", "prefetch_factor")
_PER_NS = _PER_BYTE = 1e-9
_BY_DEEPSPEED = re.compile(r"DeepSpeed|ZeRO-[23]|or 2")
_BLURRED = (
    "DeepSpeed clips, steps and zeroes gradients within one call, and reduces them within backward: what unscale_clip "
    "and zero_grad_sched lack is in optim_step."
)
_BY_HOST = "By the host's clock: of a device phases tell when work was launched, not when it ran."


def summarize(trace: Trace) -> str:
    """The strategy that the rank's trace shows."""
    return strategy_of(trace)[0]


def merge(job: Job, parts: Sequence[str]) -> Report:
    """Phases of the unprofiled steps of the run's arm, and the job's pace; nothing where no steps were recorded."""
    timings, manifest = job.timings, job.manifest
    if timings is None or manifest is None:
        return Report("step_profile", (_profile(()), _by_rank(())))
    times = unprofiled_phases(timings)
    rows = tuple(
        (rank, *row) for rank in range(len(timings.step_ns)) for row in _rows([phase.of(rank) for phase in times])
    )
    distributed = _distributed(manifest, job.arm, parts)
    profile = _profile((_figures(job, timings, manifest, distributed),), _parts(times, timings))
    views = () if is_loader_alone(manifest) else (_view(job, timings, distributed, times),)
    return Report("step_profile", (profile, _by_rank(rows)), views)


def _profile(rows: tuple[tuple[Cell, ...], ...], parts: Sequence[Sequence[tuple[str, float]]] = ((),) * 4) -> Table:
    objects = (Table(key, "", _BY_NAME, tuple(part)) for key, part in zip(_PARTS, parts, strict=True))
    return Table("step_profile", "", _PROFILE, rows, single=True, parts=tuple(objects))


def _by_rank(rows: tuple[tuple[Cell, ...], ...]) -> Table:
    return Table("step_phases", "Phases of unprofiled steps", (Column("rank", "rank", Unit.COUNT), *_TIMES), rows)


def _rows(times: Sequence[UnprofiledPhase]) -> list[tuple[Cell, ...]]:
    """A row a phase; shares add up to 100 %."""
    whole = sum(phase.mean for phase in times)
    return [
        (
            phase.name,
            round(phase.mean),
            round(phase.median),
            round(phase.p95),
            100 * phase.mean / whole,
            round(phase.host_ns.mean()),
        )
        for phase in times
    ]


def _figures(job: Job, timings: Timings, manifest: Manifest, distributed: str) -> tuple[Cell, ...]:
    """The values of `step_profile` that are no parts."""
    pace, arm = pace_of(manifest, job.arm, timings), manifest.arm(job.arm)
    given = {**manifest.parameters, **(arm.varied if arm else {})}
    return (
        job.arm,
        timings.num_warmup,
        timings.step_ns.shape[1],
        len(timings.step_ns),
        distributed,
        *(given.get(key) for key in _GIVEN),
        pace.samples or None,
        "device" if timings.by_device else "host",
        pace.step_ns * _PER_NS,
        pace.samples_per_second,
        pace.slowest,
        *(_gigabytes(timings, kind) for kind in ("peak_allocated", "peak_reserved", "peak_process")),
        " ".join(_doubts(distributed, timings)),
    )


def _parts(times: Sequence[UnprofiledPhase], timings: Timings) -> list[list[tuple[str, float]]]:
    """Seconds by name of a phase, the aggregate `backward_step` among them, and by rank."""
    known = {phase.name: phase for phase in times}
    mine = [known[name] for name in BACKWARD_STEP if name in known]
    if len(mine) == len(BACKWARD_STEP):
        together = (np.sum([getattr(phase, clock) for phase in mine], axis=0) for clock in ("ns", "host_ns"))
        times = (*times, UnprofiledPhase("backward_step", *together))
    kinds = [[(phase.name, getattr(phase, kind) * _PER_NS) for phase in times] for kind in ("mean", "median", "p95")]
    ranks = [(str(rank), mean * _PER_NS) for rank, mean in enumerate(timings.step_ns.mean(axis=1).tolist())]
    return [*kinds, ranks]


def _view(job: Job, timings: Timings, distributed: str, times: Sequence[UnprofiledPhase]) -> Table:
    num_ranks, num_steps = timings.step_ns.shape
    whole = UnprofiledPhase("total", timings.step_ns, np.sum([phase.host_ns for phase in times], axis=0))
    rows = [row for row in _rows(times) if row[1]] + _rows([whole])
    columns = _TIMES if timings.by_device else _TIMES[:-1]
    ranks = f"mean of {num_ranks} ranks, " if num_ranks > 1 else ""
    clock = ", by the device's clock" if timings.by_device else ""
    title = f"An unprofiled step, by phase ({ranks}{num_steps:,} steps{clock})"
    note = " ".join([_pace(job, timings), *_memory(timings), *_doubts(distributed, timings)])
    return Table("step_phases", title, columns, tuple(row[: len(columns)] for row in rows), note=note)


def _pace(job: Job, timings: Timings) -> str:
    """`The job's step takes 46.7 ms (rank 1, the slowest; the fastest 40.1 ms): 343 samples/s.`"""
    pace = pace_of(job.manifest, job.arm, timings)
    step, fastest = format_value(pace.step_ns, Unit.NS), format_value(min(pace.ranks_ns), Unit.NS)
    apart = "" if step == fastest else f" (rank {pace.slowest}, the slowest; the fastest {fastest})"
    rate = pace.samples_per_second
    told = f": {format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN)} samples/s" if rate else ""
    return f"The job's step takes {step}{apart}{told}."


def _memory(timings: Timings) -> list[str]:
    """Peaks of the worst rank, as far as they are known."""
    peaks = [int(peak.max()) for peak in (timings.peak_allocated, timings.peak_reserved, timings.peak_process)]
    kinds = ("allocated", "reserved", "of the process")
    told = [f"{format_value(peak, Unit.BYTES)} {kind}" for peak, kind in zip(peaks, kinds, strict=True) if peak]
    worst = " of the worst rank" if len(timings.step_ns) > 1 else ""
    return [f"Peak memory{worst}: {', '.join(told)}."] if told else []


def _gigabytes(timings: Timings, kind: str) -> float | None:
    """Most bytes of any rank, in 10^9; None where that was not recorded."""
    peak = int(getattr(timings, kind).max())
    return peak * _PER_BYTE if peak else None


def _distributed(manifest: Manifest, arm: str, strategies: Sequence[str]) -> str:
    """What the recipe wrapped its model in; of a loop, which does not tell, the strategy that its trace shows."""
    return str(manifest.told_of(arm).get("wrapper", "")) or (strategies[0] if strategies else "")


def _doubts(distributed: str, timings: Timings) -> list[str]:
    """Why phases may not be what their names say."""
    blurred = [_BLURRED] if _BY_DEEPSPEED.search(distributed) else []
    return [*blurred, *([_BY_HOST] if timings.peak_allocated.any() and not timings.by_device else [])]
