"""Can the input pipeline keep up: how fast is it alone, and which cores do its workers share with the step?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._wording import MOST_RANKS, more_rows
from traceq.claims.claim import AT_MOST, Basis, Claim, Measure, Subject, measured
from traceq.claims.limits import BUSY_CORES, MODERATE, MUCH, WORKER_CORES
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.loading_workers import worker_line, worker_place
from traceq.frozen import frozen
from traceq.model import CoreUse, Manifest, Timings, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

FETCH, TO_DEVICE = "fetch", "h2d"
_MIN_SHARE, _MIN_RATIO, _MIN_EXPLAINED = 0.05, 4.0, 0.8
"""Fetches are bimodal if each mode has this share, the medians differ by this factor, and the split explains this much
of the variance of their logarithms (of evenly spread ones any split explains at most 0.75)."""


@frozen
class LoaderRankRow:
    """Times of a batch: `fetch` from the loader, and `h2d`, the copy to the device, by its clock."""

    rank: int = column("rank", Unit.COUNT)
    fetch_mean_ns: int = column("fetch, mean", Unit.NS)
    fetch_median_ns: int = column("fetch, median", Unit.NS)
    fetch_p95_ns: int = column("fetch, p95", Unit.NS)
    h2d_mean_ns: int = column("h2d, mean", Unit.NS)
    h2d_median_ns: int = column("h2d, median", Unit.NS)
    h2d_p95_ns: int = column("h2d, p95", Unit.NS)
    batches_per_sec: float = column("batches/s", Unit.MEAN)


@frozen
class LoaderRow:
    """A data loader alone: its rates over ranks, and the modes of bimodal fetches."""

    warmup: int = column(unit=Unit.COUNT)
    measured: int = column(unit=Unit.COUNT)
    counted: int = column(unit=Unit.COUNT)
    """Not prefetched while the recording paused."""
    batches_per_sec_min: float = column(unit=Unit.MEAN)
    batches_per_sec_mean: float = column(unit=Unit.MEAN)
    batches_per_sec_max: float = column(unit=Unit.MEAN)
    samples_per_sec_ceiling: float | None = column(unit=Unit.MEAN)
    """All ranks at the slowest's pace."""
    bimodal: bool = column()
    ready_pct: float | None = column(unit=Unit.PERCENT)
    ready_ns: int | None = column(unit=Unit.NS)
    waited_ns: int | None = column(unit=Unit.NS)
    batches_per_wait: float | None = column(unit=Unit.MEAN)


@frozen
class Modes:
    """Median fetches of batches that were ready and of those that the loop waited for; `ready`: share of the first."""

    ready: float
    ready_ns: float
    waited_ns: float

    @property
    def batches_per_wait(self) -> float:
        """Batches for each one that is waited for, itself included."""
        return 1 / (1 - self.ready)


@frozen(eq=False)
class Loader:
    """Recording of a data loader alone on R ranks, over the S batches that count.

    `fetch_ns` and `h2d_ns` int64[R, S]; `rates` float64[R] batches per second. `samples` of a batch of all ranks
    together, 0 where unknown. `modes` None where fetches are not bimodal.
    """

    fetch_ns: NDArray[np.int64]
    h2d_ns: NDArray[np.int64]
    rates: NDArray[np.float64]
    samples: int
    modes: Modes | None

    @property
    def batch_ns(self) -> float:
        """Time of a batch on the slowest rank, ns."""
        return 1e9 / float(self.rates.min())

    @property
    def ceiling(self) -> float | None:
        """Samples per second of a job that does nothing else, at the pace of its slowest rank; None if unknown."""
        return float(self.rates.min()) * self.samples if self.samples else None


def summarize(trace: Trace) -> None:
    """Return nothing: only unprofiled batches count."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return fetches, copies and rates of each rank of a loader alone; of steps, the CPU time of their processes."""
    manifest, timings = job.manifest, job.timings
    loader = loader_of(manifest, job.arm, timings)
    if loader is None or timings is None or manifest is None:
        cores = core_rows(job)
        views = (core_view(job, cores),) if cores else ()
        return Report("loader", _tables([], [], cores), views, findings=tuple(core_claims(job)))
    rows = [_rank_row(loader, index) for index in range(len(loader.rates))]
    return Report("loader", _tables([_row(loader, timings)], rows), (_view(loader, rows, manifest),))


def _tables(
    total: Sequence[LoaderRow], ranks: Sequence[LoaderRankRow], cores: Sequence[CoreUseRow] = ()
) -> tuple[Table, ...]:
    return (
        Table.of("loader", "", LoaderRow, total, single=True),
        Table.of("loader_ranks", "", LoaderRankRow, ranks),
        Table.of("core_use", "", CoreUseRow, cores),
    )


def is_loader_alone(manifest: Manifest | None) -> bool:
    """Return whether the phases are `fetch` and `h2d` and nothing else."""
    return manifest is not None and manifest.phases == (FETCH, TO_DEVICE)


def loader_of(manifest: Manifest | None, arm_name: str, timings: Timings | None) -> Loader | None:
    """Return the recording of a loader alone; None for any other.

    Batches that could have been prefetched while the recording paused do not count.
    """
    if timings is None or manifest is None or not is_loader_alone(manifest):
        return None
    arm = manifest.arm(arm_name)
    fetch, copy = (timings.phases.index(name) for name in (FETCH, TO_DEVICE))
    counts = timings.since_pause >= _max_prefetched(manifest)
    counts = counts if counts.any() else ~counts
    fetch_ns = timings.host_phase_ns[:, counts, fetch]
    return Loader(
        fetch_ns=fetch_ns,
        h2d_ns=timings.phase_ns[:, counts, copy],
        rates=1e9 / timings.step_ns[:, counts].mean(axis=1),
        samples=arm.samples_per_step if arm else 0,
        modes=_modes(fetch_ns.ravel()),
    )


def _max_prefetched(manifest: Manifest) -> int:
    """Return the most batches that can be ready: `num_workers` times `prefetch_factor`, 0 where unknown."""
    values = (manifest.parameters.get(key) for key in ("num_workers", "prefetch_factor"))
    workers, factor = (int(value) if isinstance(value, int) else 0 for value in values)
    return workers * factor


def _modes(fetch_ns: NDArray[np.int64]) -> Modes | None:
    """Return the split of fetches in two that leaves least variance of their logarithms, if that is a clear one."""
    ordered = np.sort(fetch_ns)
    logs, num = np.log(np.maximum(ordered, 1)), len(ordered)
    sizes = np.arange(1, num)
    below = np.cumsum(logs)[:-1]
    between = sizes * (num - sizes) * (below / sizes - (logs.sum() - below) / (num - sizes)) ** 2 / num
    if not between.size or logs.var() == 0:
        return None
    split = int(between.argmax()) + 1
    ready_ns, waited_ns = float(np.median(ordered[:split])), float(np.median(ordered[split:]))
    is_clear = min(split, num - split) >= _MIN_SHARE * num and between.max() >= _MIN_EXPLAINED * num * logs.var()
    return Modes(split / num, ready_ns, waited_ns) if is_clear and waited_ns >= _MIN_RATIO * ready_ns else None


def _rank_row(loader: Loader, index: int) -> LoaderRankRow:
    fetch, h2d = loader.fetch_ns[index], loader.h2d_ns[index]
    return LoaderRankRow(
        rank=index,
        fetch_mean_ns=round(float(fetch.mean())),
        fetch_median_ns=round(float(np.median(fetch))),
        fetch_p95_ns=round(float(np.percentile(fetch, 95))),
        h2d_mean_ns=round(float(h2d.mean())),
        h2d_median_ns=round(float(np.median(h2d))),
        h2d_p95_ns=round(float(np.percentile(h2d, 95))),
        batches_per_sec=float(loader.rates[index]),
    )


def _row(loader: Loader, timings: Timings) -> LoaderRow:
    low, mean, high = _range(loader)
    modes = loader.modes
    return LoaderRow(
        warmup=timings.num_warmup,
        measured=timings.step_ns.shape[1],
        counted=loader.fetch_ns.shape[1],
        batches_per_sec_min=low,
        batches_per_sec_mean=mean,
        batches_per_sec_max=high,
        samples_per_sec_ceiling=loader.ceiling,
        bimodal=modes is not None,
        ready_pct=100 * modes.ready if modes else None,
        ready_ns=round(modes.ready_ns) if modes else None,
        waited_ns=round(modes.waited_ns) if modes else None,
        batches_per_wait=modes.batches_per_wait if modes else None,
    )


def _range(loader: Loader) -> tuple[float, float, float]:
    """Return (min, mean, max) of batches per second over ranks."""
    return float(loader.rates.min()), float(loader.rates.mean()), float(loader.rates.max())


def _view(loader: Loader, rows: Sequence[LoaderRankRow], manifest: Manifest) -> Table:
    """Return the slowest ranks, and the rate at which the job can be fed."""
    slowest = sorted(rows, key=lambda row: row.batches_per_sec)[:MOST_RANKS]
    shown = [row for row in rows if row in slowest]
    feeds = sentences.FEEDS.format(rate=format_value(loader.ceiling, Unit.COUNT)) if loader.ceiling else ""
    note = " ".join(filter(None, [feeds, *_explained(loader, manifest), more_rows(len(rows) - len(shown))]))
    title = sentences.LOADER.format(num=loader.fetch_ns.shape[1])
    view = Table.of("loader_ranks", title, LoaderRankRow, shown, note=note)
    if manifest.environment.get("device") != "cpu":
        return view
    return view.without("h2d_mean_ns", "h2d_median_ns", "h2d_p95_ns")  # nothing is copied to a device


def _explained(loader: Loader, manifest: Manifest) -> Iterator[str]:
    """Yield why fetches are bimodal, or why they are not."""
    modes, max_prefetched = loader.modes, _max_prefetched(manifest)
    if modes is None:
        if manifest.parameters.get("num_workers") == 0:
            yield sentences.NO_WORKERS
        return
    ready, waited = (format_value(ns, Unit.NS) for ns in (modes.ready_ns, modes.waited_ns))
    share = format_value(100 * modes.ready, Unit.PERCENT)
    yield sentences.BIMODAL.format(share=share, ready=ready, waited=waited, num=modes.batches_per_wait)
    if max_prefetched:
        yield sentences.PREFETCHED.format(num=max_prefetched)


_TRAINING, _WORKER, _OTHERS = "training", "loader worker", "outside the job"


@frozen
class CoreUseRow:
    """CPU time of processes of one kind in a rank's mean step."""

    process: str = column("process")
    """Training, loader worker, or outside the job."""
    num: int | None = column("processes", Unit.COUNT)
    threads: int | None = column("torch threads", Unit.COUNT)
    cpu_ns: int = column("CPU time", Unit.NS)
    busy_pct: float = column("of a core", Unit.PERCENT)
    core_wait_ns: int | None = column("waits for a core", Unit.NS)
    """Its threads waited for a core, summed."""


@frozen
class _Cores:
    """Use of the cores of a host, and the threads with which torch computes an op."""

    use: CoreUse
    num_threads: int

    @property
    def wait_share(self) -> float:
        """Part of a step for which the thread of the training process waits that waits longest."""
        return self.use.thread_core_wait_ns / self.use.timed_step_ns

    @property
    def worker_cores(self) -> float:
        """Cores that the workers of a host's ranks would keep busy if they had them."""
        return self.use.ranks_per_host * self.use.loader_workers * self.use.worker_runnable

    @property
    def is_of_workers(self) -> bool:
        """Return whether the job has more threads than cores, and its workers are a good part of what runs on these."""
        use = self.use
        workers_ns = use.ranks_per_host * use.worker_cpu_ns
        thread_ns = min(use.step_cpu_ns, use.timed_step_ns - use.thread_core_wait_ns)
        beside_thread_ns = use.ranks_per_host * use.step_cpu_ns + workers_ns - thread_ns
        return (
            self.worker_cores >= max(WORKER_CORES, self.other_cores)
            and use.ranks_per_host * self.num_threads + self.worker_cores > use.cores_available
            and workers_ns >= MUCH * beside_thread_ns
        )

    @property
    def training_cores(self) -> float:
        """Cores that all threads of a host's ranks would keep busy if they had them."""
        return self.use.ranks_per_host * (self.use.step_cpu_ns + self.use.step_core_wait_ns) / self.use.timed_step_ns

    @property
    def other_cores(self) -> float:
        """Cores that others keep busy; 0 where that is not known."""
        return max(self.use.other_busy_cores, 0.0)


def core_rows(job: Job) -> list[CoreUseRow]:
    """Return a row for each kind of process; none where the recording did not read CPU clocks."""
    cores = _cores_of(job)
    if cores is None:
        return []
    use, num = cores.use, cores.use.loader_workers
    rows = [_core_row(use, _TRAINING, 1, cores.num_threads, use.step_cpu_ns, use.step_core_wait_ns)]
    if num:
        rows.append(_core_row(use, _WORKER, num, None, use.worker_cpu_ns // num, use.worker_core_wait_ns // num))
    if use.other_busy_cores >= 0:
        rows.append(_core_row(use, _OTHERS, None, None, round(use.other_busy_cores * use.timed_step_ns), None))
    return rows


def _core_row(
    use: CoreUse, process: str, num: int | None, threads: int | None, cpu_ns: int, core_wait_ns: int | None
) -> CoreUseRow:
    return CoreUseRow(process, num, threads, cpu_ns, 100 * cpu_ns / use.timed_step_ns, core_wait_ns)


def core_view(job: Job, rows: list[CoreUseRow]) -> Table:
    """Return the rows for people."""
    cores = _cores_of(job)
    assert cores is not None
    assert job.manifest is not None
    num, num_ranks = cores.use.ranks_per_host, job.manifest.num_ranks_of(job.arm)
    title = sentences.CORES_OF_RANKS if num_ranks > 1 else sentences.CORES
    title = title.format(cores=cores.use.cores_available, num_ranks=num_ranks, num=num, s="s" * (num != 1))
    line = worker_line(job)
    note = (f"{line}." if line else "") if cores.use.loader_workers else _without_workers(job)
    return Table.of("core_use", title, CoreUseRow, rows, note=note)


def _without_workers(job: Job) -> str:
    environment = job.manifest.facts_for(job.arm) if job.manifest else {}
    return sentences.NO_WORKERS if environment.get("num_workers") == 0 else sentences.NO_LOADER


def place_of_workers(job: Job) -> tuple[Subject, dict[str, Measure]]:
    """Return the line in which a loader's workers are most of the time, and how much of it; nothing if not known."""
    place = worker_place(job)
    if place is None:
        return Subject(), {}
    return Subject(line=place.line), measured(
        function=place.function, workers_pct=place.share_pct, num_samples=place.num_samples
    )


def is_contended(job: Job) -> bool:
    """Return whether the loader's workers and the step's threads keep each other waiting for a core."""
    return any(claim.code == "contended_cores" for claim in core_claims(job))


def core_claims(job: Job) -> Iterator[Claim]:
    """Yield that the job's own processes, or others, keep the threads of a step waiting for a core."""
    cores = _cores_of(job)
    if cores is None or cores.wait_share < MODERATE:
        return
    use, has_threads, wait_ns = cores.use, cores.num_threads > 1, cores.use.thread_core_wait_ns
    measures = measured(
        wait_ns=wait_ns,
        share_pct=100 * cores.wait_share,
        num_cores=use.cores_available,
        num_threads=cores.num_threads,
    )
    steps = Basis(job.timings.step_ns.shape[1] if job.timings else 0, is_unprofiled=True)
    if cores.other_cores >= BUSY_CORES * use.cores_available:
        # ops wait for each of their threads, which are more than the cores that others leave
        is_crowded = has_threads and use.ranks_per_host * cores.num_threads > use.cores_available - cores.other_cores
        others = {**measures, "other_cores_mean": cores.other_cores}
        remedy = "fewer_threads" if is_crowded else ""
        yield Claim("busy_machine", wait_ns, Subject(), others, remedy=remedy, basis=steps)
    contended = Claim("contended_cores", wait_ns, gain=(0, wait_ns), gain_by=AT_MOST, basis=steps)
    if cores.is_of_workers:
        subject, place = place_of_workers(job)
        runnable_pct, busy_pct = 100 * use.worker_runnable, 100 * use.worker_busy
        of_workers = measured(num_workers=use.loader_workers, busy_pct=busy_pct, runnable_pct=runnable_pct, **place)
        remedy = "less_loading_or_threads" if has_threads else "less_loading"
        yield replace(contended, subject=subject, measures=measures | of_workers, remedy=remedy)
    elif cores.training_cores - cores.other_cores > use.cores_available:  # more than others take from them
        of_ranks = measured(num_ranks=use.ranks_per_host, training_cores_mean=cores.training_cores)
        of_job = replace(contended, measures=measures | of_ranks, remedy="fewer_threads_or_more_cores")
        # with one thread per rank no change of the job helps, as on a busy machine
        yield of_job if has_threads else replace(of_job, gain=None, gain_by="", remedy="more_cores")


def _cores_of(job: Job) -> _Cores | None:
    """Return what was measured of this arm; None where nothing was, as of arms that take turns with the baseline."""
    manifest = job.manifest
    if manifest is None or not (manifest.apart or job.arm == manifest.baseline):
        return None
    environment = manifest.facts_for(job.arm)
    use, num_threads = CoreUse.of(environment), environment.get("num_threads")
    return _Cores(use, num_threads) if use is not None and isinstance(num_threads, int) and num_threads > 0 else None
