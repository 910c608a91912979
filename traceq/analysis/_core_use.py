"""CPU time of unprofiled steps: of the training process, of its loader's workers, of everything else on the host."""

from __future__ import annotations

from collections.abc import Iterator

from traceq.facts.ranks.job import Job
from traceq.facts.ranks.loading_workers import worker_line
from traceq.frozen import frozen
from traceq.model import CoreUse
from traceq.report import Finding, Table, column, found
from traceq.units import Unit, format_value

__all__ = ["CoreUseRow", "core_findings", "core_rows", "core_view", "is_contended"]

_TRAINING, _WORKER, _OTHERS = "training", "loader worker", "outside the job"
_MIN_WAIT, _MIN_WORKER_CORES, _MIN_OTHERS = 0.05, 0.1, 0.2
"""Share of the step for which a thread waits for a core, cores that workers keep busy, and share of the cores that
others do, from which it is a finding."""
_MIN_WORKER_SHARE = 0.25
"""Workers are the reason if theirs is at least this share of what the job ran beside the thread that waits."""


@frozen
class CoreUseRow:
    """CPU time of processes of one kind in a mean step of a rank.

    Each has `cpu_ns`, is busy for a share of the step, and its threads together waited `core_wait_ns` for a core.
    """

    process: str = column("process")
    num: int | None = column("processes", Unit.COUNT)
    threads: int | None = column("torch threads", Unit.COUNT)
    cpu_ns: int = column("CPU time", Unit.NS)
    busy_pct: float = column("of a core", Unit.PERCENT)
    core_wait_ns: int | None = column("waits for a core", Unit.NS)


@frozen
class _Basis:
    """Use of the cores of a host, and the threads with which torch computes an op."""

    use: CoreUse
    num_threads: int

    @property
    def wait_ns(self) -> int:
        """Wait of the thread of the training process that waits longest."""
        return self.use.thread_core_wait_ns

    @property
    def wait_share(self) -> float:
        return self.wait_ns / self.use.timed_step_ns

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
            self.worker_cores >= max(_MIN_WORKER_CORES, self.other_cores)
            and use.ranks_per_host * self.num_threads + self.worker_cores > use.cores_available
            and workers_ns >= _MIN_WORKER_SHARE * beside_thread_ns
        )

    @property
    def training_cores(self) -> float:
        """Cores that all threads of a host's ranks would keep busy if they had them."""
        return self.use.ranks_per_host * (self.use.step_cpu_ns + self.use.step_core_wait_ns) / self.use.timed_step_ns

    @property
    def other_cores(self) -> float:
        """Cores that others keep busy; 0 where that is not known."""
        return max(self.use.other_busy_cores, 0.0)

    @property
    def wait_words(self) -> str:
        """Return `183 ms (45.0 %)`."""
        share = format_value(100 * self.wait_share, Unit.PERCENT)
        return f"{format_value(self.wait_ns, Unit.NS)} ({share})"


def core_rows(job: Job) -> list[CoreUseRow]:
    """Return a row for each kind of process; none where the recording did not read CPU clocks."""
    basis = _basis(job)
    if basis is None:
        return []
    use, num = basis.use, basis.use.loader_workers
    rows = [_row(use, _TRAINING, 1, basis.num_threads, use.step_cpu_ns, use.step_core_wait_ns)]
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
    basis = _basis(job)
    assert basis is not None
    assert job.manifest is not None
    cores, num_ranks = format_value(basis.use.cores_available, Unit.COUNT), job.manifest.num_ranks_of(job.arm)
    title = f"CPU time of an unprofiled step, by process ({cores} cores)"
    if num_ranks > 1:
        of_host = f"{cores} cores for {_counted(basis.use.ranks_per_host, 'rank')}"
        title = f"CPU time per rank of an unprofiled step, by process (mean of {num_ranks:,} ranks; {of_host})"
    note = _workers_note(job) if basis.use.loader_workers else _without_workers(job)
    return Table.of("core_use", title, CoreUseRow, rows, note=note)


def _workers_note(job: Job) -> str:
    line = worker_line(job)
    return f"{line}." if line else ""


def _without_workers(job: Job) -> str:
    environment = job.manifest.facts_for(job.arm) if job.manifest else {}
    if environment.get("num_workers") == 0:
        return "num_workers=0: the training process makes its batches itself, in the phase dataload_wait."
    return "No worker of a DataLoader ran."


def is_contended(job: Job) -> bool:
    """Return whether the loader's workers and the step's threads keep each other waiting for a core."""
    return any(finding.code == "contended_cores" for finding in core_findings(job))


def core_findings(job: Job) -> Iterator[Finding]:
    """Yield that the job's own processes, or others, keep the threads of a step waiting for a core."""
    basis = _basis(job)
    if basis is None or basis.wait_share < _MIN_WAIT:
        return
    cores = format_value(basis.use.cores_available, Unit.COUNT)
    is_busy = basis.other_cores >= _MIN_OTHERS * basis.use.cores_available
    if is_busy:
        yield found(
            "busy_machine",
            "low",  # of the recording, not of the job: below whatever the job could do
            f"busy machine: processes outside the job keep {_cores(basis.other_cores)} of {cores} cores busy; a thread "
            f"of the step waits {basis.wait_words} for a core: compare only arms in turns{_fewer_threads(basis)}",
            basis.wait_ns,
            lead=f"busy machine: other processes keep {_cores(basis.other_cores)} of {cores} cores busy",
            evidence=f"a thread of the step waits {basis.wait_words} for a core",
        )
    if basis.is_of_workers:
        yield _contended_by_workers(basis, cores, worker_line(job))
    elif basis.training_cores > basis.use.cores_available and not is_busy:
        yield _contended_by_ranks(basis, cores)


def _fewer_threads(basis: _Basis) -> str:
    """Return what to compare where the torch threads are more than the cores that others leave: ops wait for each."""
    num = basis.use.ranks_per_host * basis.num_threads
    is_too_many = basis.num_threads > 1 and num > basis.use.cores_available - basis.other_cores
    return " (fewer torch threads: --toggle @threads=default,1)" if is_too_many else ""


def _contended_by_workers(basis: _Basis, cores: str, line: str) -> Finding:
    """Return what shares the cores, how long a thread waits for one, and what to try."""
    use = basis.use
    busy, runnable = (format_value(100 * share, Unit.PERCENT) for share in (use.worker_busy, use.worker_runnable))
    workers = _counted(use.loader_workers, "loader worker")
    each = f", on each of {use.ranks_per_host} ranks," if use.ranks_per_host > 1 else ""
    threads = _counted(basis.num_threads, "torch thread")
    fewer = ", or fewer torch threads (--toggle @threads=default,1)" if basis.num_threads > 1 else ""
    text = (
        f"cores contended: {workers} ({busy} busy, {runnable} with its waits for a core) and {threads}{each} share "
        f"{cores} cores: a thread of the step waits {basis.wait_words} for a core (by the CPU clocks of unprofiled "
        f"steps): try less work per sample{f' ({line})' if line else ''}, num_workers=0{fewer}"
    )
    lead = (
        f"cores contended by loader workers: less work per sample{f' ({line})' if line else ''}, num_workers=0{fewer}"
    )
    evidence = f"a thread of the step waits {basis.wait_words} for a core"
    return found("contended_cores", "high", text, basis.wait_ns, lead=lead, evidence=evidence)


def _contended_by_ranks(basis: _Basis, cores: str) -> Finding:
    """Return what the training processes alone would use, how long a thread waits for a core, and what to try."""
    ranks = _counted(basis.use.ranks_per_host, "rank")
    workers = f", their loader workers {_cores(basis.worker_cores)} more" if basis.use.loader_workers else ""
    fewer = "fewer torch threads (--toggle @threads=default,1), or " if basis.num_threads > 1 else ""
    text = (
        f"cores contended: all threads of {ranks} would keep {_cores(basis.training_cores)} cores busy{workers}, and "
        f"there are {cores}: a thread of the step waits {basis.wait_words} for a core (by the CPU clocks of unprofiled "
        f"steps): try {fewer}more cores per rank"
    )
    lead = f"cores contended by threads of all ranks: {fewer}more cores per rank"
    evidence = f"a thread of the step waits {basis.wait_words} for a core"
    return found("contended_cores", "medium", text, basis.wait_ns, lead=lead, evidence=evidence)


def _counted(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def _cores(cores: float) -> str:
    return format_value(cores, Unit.MEAN)


def _basis(job: Job) -> _Basis | None:
    """Return what was measured of this arm; None where nothing was, as of arms that take turns with the baseline."""
    manifest = job.manifest
    if manifest is None or not (manifest.apart or job.arm == manifest.baseline):
        return None
    environment = manifest.facts_for(job.arm)
    use, num_threads = CoreUse.of(environment), environment.get("num_threads")
    return _Basis(use, num_threads) if use is not None and isinstance(num_threads, int) and num_threads > 0 else None
