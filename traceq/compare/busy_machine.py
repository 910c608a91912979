"""Whether other processes on the machine made the steps of one of two recordings longer."""

from __future__ import annotations

from traceq.compare.side import Side, of_one_run
from traceq.model import CoreUse
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = ["busy_machine_words", "is_by_other_processes"]

_MIN_OTHERS = 0.2
"""Share of the cores that processes outside the job keep busy."""
_MIN_PART = 0.5
"""Part of the difference for which a thread waits for a core on one side."""


def is_by_other_processes(a: Side, b: Side, steps: Comparison) -> bool:
    """Return whether processes that kept cores busy may have made one of two separate recordings slower.

    A thread then waits for a core for half of the difference or more, on a side. A busy machine costs more than these
    waits, as ranks wait for each other and caches are shared: steps may differ by the square of their factor.
    """
    ratio = max(steps.a_ns, steps.b_ns) / max(1, min(steps.a_ns, steps.b_ns))
    return any(
        use.thread_core_wait_ns >= _MIN_PART * abs(steps.delta_ns)
        and ratio * max(0.0, 1 - use.thread_core_wait_ns / use.timed_step_ns) ** 2 <= 1
        for use in _waits(a, b) or ()
        if use.other_busy_cores >= _MIN_OTHERS * use.cores_available
    )


def busy_machine_words(a: Side, b: Side, names: tuple[str, str], steps: Comparison | None) -> tuple[str, ...]:
    """Return that the machine was busy, for how long a step waited for a core on both sides, and what it computed."""
    waits = _waits(a, b)
    if waits is None or steps is None or not steps.unprofiled or not is_by_other_processes(a, b, steps):
        return ()
    of_a, of_b = (format_value(use.thread_core_wait_ns, Unit.NS) for use in waits)
    waited = f"{of_a} per step for a core in {names[0]}, {of_b} in {names[1]}"
    cpu = " and ".join(format_value(use.step_cpu_ns, Unit.NS) for use in waits)
    busy = f"The machine was busy with other processes: a thread waits {waited} (CPU time of a step: {cpu})"
    return (f"{busy}; record both on an idle one.",)


def _waits(a: Side, b: Side) -> tuple[CoreUse, CoreUse] | None:
    """Return the use of cores of both sides; None for arms that take turns, and where it was not measured."""
    if of_one_run(a, b) and not (a.is_isolated and b.is_isolated):
        return None
    of_sides = [CoreUse.of(side.run.manifest.facts_for(side.run.arm)) if side.run.manifest else None for side in (a, b)]
    return (of_sides[0], of_sides[1]) if of_sides[0] is not None and of_sides[1] is not None else None
