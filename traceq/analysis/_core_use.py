"""CPU time of unprofiled steps: of the training process, of its loader's workers, of everything else on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from traceq.claims.claim import AT_MOST, Basis, Claim, Measure, Subject, measured
from traceq.claims.limits import BUSY_CORES, MODERATE, MUCH, WORKER_CORES
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.loading_workers import worker_line, worker_place
from traceq.frozen import frozen
from traceq.model import CoreUse
from traceq.report import Table, column
from traceq.units import Unit, format_value

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
    rows = [_row(use, _TRAINING, 1, cores.num_threads, use.step_cpu_ns, use.step_core_wait_ns)]
    if num:
        rows.append(_row(use, _WORKER, num, None, use.worker_cpu_ns // num, use.worker_core_wait_ns // num))
    if use.other_busy_cores >= 0:
        rows.append(_row(use, _OTHERS, None, None, round(use.other_busy_cores * use.timed_step_ns), None))
    return rows


def _row(
    use: CoreUse, process: str, num: int | None, threads: int | None, cpu_ns: int, core_wait_ns: int | None
) -> CoreUseRow:
    return CoreUseRow(process, num, threads, cpu_ns, 100 * cpu_ns / use.timed_step_ns, core_wait_ns)


def core_view(job: Job, rows: list[CoreUseRow]) -> Table:
    """Return the rows for people."""
    cores = _cores_of(job)
    assert cores is not None
    assert job.manifest is not None
    num_cores, num_ranks = format_value(cores.use.cores_available, Unit.COUNT), job.manifest.num_ranks_of(job.arm)
    title = f"CPU time of an unprofiled step, by process ({num_cores} cores)"
    if num_ranks > 1:
        of_host = f"{num_cores} cores for {cores.use.ranks_per_host} rank{'s' * (cores.use.ranks_per_host != 1)}"
        title = f"CPU time per rank of an unprofiled step, by process (mean of {num_ranks:,} ranks; {of_host})"
    line = worker_line(job)
    note = (f"{line}." if line else "") if cores.use.loader_workers else _without_workers(job)
    return Table.of("core_use", title, CoreUseRow, rows, note=note)


def _without_workers(job: Job) -> str:
    environment = job.manifest.facts_for(job.arm) if job.manifest else {}
    if environment.get("num_workers") == 0:
        return "num_workers=0: the training process makes its batches itself, in the phase dataload_wait."
    return "No worker of a DataLoader ran."


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
