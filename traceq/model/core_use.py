"""How a job used the cores of its host while unprofiled steps were timed, as facts of its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from traceq.frozen import frozen

__all__ = ["CoreUse"]


@frozen
class CoreUse:
    """CPU time of a mean timed step, over ranks; the names of the fields are keys of a manifest's environment.

    `cores_available` to the processes of a host, on which at most `ranks_per_host` run. `step_cpu_ns` of all threads
    of a rank; `worker_cpu_ns` of all workers of its data loader, of which there are `loader_workers`. The core waits
    are times in which threads could have run and had no core, added up over the threads; `thread_core_wait_ns` is that
    of the thread of a rank that waits longest. `other_busy_cores`: cores that processes outside the job kept busy; -1
    where that is not known.
    """

    cores_available: int
    ranks_per_host: int
    loader_workers: int
    timed_step_ns: int
    step_cpu_ns: int
    worker_cpu_ns: int
    step_core_wait_ns: int
    thread_core_wait_ns: int
    worker_core_wait_ns: int
    other_busy_cores: float

    def facts(self) -> dict[str, str | int | float]:
        """Return the fields by name, for a manifest's environment."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @staticmethod
    def of(environment: Mapping[str, str | int | float]) -> CoreUse | None:
        """Return what an environment says; None where nothing was measured, or it is damaged."""
        values = {each.name: environment.get(each.name) for each in fields(CoreUse)}
        if not all(isinstance(value, int | float) for value in values.values()):
            return None
        use = CoreUse(**values)  # type: ignore[arg-type]
        return use if use.timed_step_ns > 0 and use.cores_available > 0 else None

    @property
    def worker_busy(self) -> float:
        """Share of the time in which a worker computes, 0 to 1; 0 without workers."""
        return self._of_worker(self.worker_cpu_ns)

    @property
    def worker_runnable(self) -> float:
        """Share of the time in which a worker computes or waits for a core, 0 to 1; 0 without workers."""
        return self._of_worker(self.worker_cpu_ns + self.worker_core_wait_ns)

    def _of_worker(self, ns: int) -> float:
        return min(ns / self.loader_workers / self.timed_step_ns, 1.0) if self.loader_workers else 0.0
