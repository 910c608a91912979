"""Whether other processes on the machine made the steps of one of two recordings longer."""

from __future__ import annotations

from collections.abc import Iterator

from traceq.claims.limits import BUSY_CORES, MOST
from traceq.compare.side import Side, of_one_run
from traceq.compare.statement import Statement, state
from traceq.model import CoreUse
from traceq.stats import Comparison


def is_by_other_processes(a: Side, b: Side, steps: Comparison) -> bool:
    """Return whether processes that kept cores busy may have made one of two separate recordings slower.

    A thread then waits for a core for half of the difference or more, on a side. A busy machine costs more than these
    waits, as ranks wait for each other and caches are shared: steps may differ by the square of their factor.
    """
    ratio = max(steps.a_ns, steps.b_ns) / max(1, min(steps.a_ns, steps.b_ns))
    return any(
        use.thread_core_wait_ns >= MOST * abs(steps.delta_ns)
        and ratio * max(0.0, 1 - use.thread_core_wait_ns / use.timed_step_ns) ** 2 <= 1
        for use in _waits(a, b) or ()
        if use.other_busy_cores >= BUSY_CORES * use.cores_available
    )


def busy_machine(a: Side, b: Side, steps: Comparison | None) -> Iterator[Statement]:
    """Yield that the machine was busy, for how long a step waited for a core on both sides, and what it computed."""
    waits = _waits(a, b)
    if waits is None or steps is None or not steps.unprofiled or not is_by_other_processes(a, b, steps):
        return
    of_a, of_b = waits
    yield state(
        "busy_machine",
        core_wait_a_ns=round(of_a.thread_core_wait_ns),
        core_wait_b_ns=round(of_b.thread_core_wait_ns),
        cpu_a_ns=round(of_a.step_cpu_ns),
        cpu_b_ns=round(of_b.step_cpu_ns),
    )


def _waits(a: Side, b: Side) -> tuple[CoreUse, CoreUse] | None:
    """Return the use of cores of both sides; None for arms that take turns, and where it was not measured."""
    if of_one_run(a, b) and not (a.is_isolated and b.is_isolated):
        return None
    of_sides = [CoreUse.of(side.run.manifest.facts_for(side.run.arm)) if side.run.manifest else None for side in (a, b)]
    return (of_sides[0], of_sides[1]) if of_sides[0] is not None and of_sides[1] is not None else None
