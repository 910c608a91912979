"""Collectives per step of each arm where arms use different sharding strategies, with step time and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis.arms import step_of
from traceq.compare.side import Side
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.comm.parallelism import issued_calls, strategy_of
from traceq.facts.comm.predictions import EXACT, EXPLAINED, UNEXPLAINED, checks
from traceq.frozen import frozen
from traceq.model import Run, Trace

EXCHANGED_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
_WORST = (EXACT, EXPLAINED, UNEXPLAINED)


@frozen
class CollectiveVolume:
    """Calls of one collective and their bytes, per traced step of a rank."""

    name: str
    num: float
    bytes: float
    """-1 if unknown."""


@frozen
class Exchange:
    """Sharding strategy of one arm and its cost; None where arms share a process."""

    arm: str
    strategy: str
    verdict: str
    """The worst: `exact`, `explained`, `unexplained`."""
    moved: tuple[CollectiveVolume, ...]
    """All-gathers, reduce-scatters and all-reduces."""
    step_ns: int | None
    samples_per_second: float | None
    peak_bytes: int | None
    state_bytes: int | None


def exchanges(sides: Sequence[Side]) -> tuple[Exchange, ...]:
    """Return one row per arm, from its first rank; nothing where all arms use the same strategy."""
    traced = [(side.run, side.first_trace()) for side in sides if side.run.traces]
    if len({strategy_of(trace)[0] for _, trace in traced}) < 2:
        return ()
    return tuple(_exchange(run, trace) for run, trace in traced)


def _exchange(run: Run, trace: Trace) -> Exchange:
    arm = run.manifest.arm(run.arm) if run.manifest else None
    processes = next((processes for processes in run.processes if processes.arm == run.arm), None)
    step_ns, samples = step_of(processes), arm.samples_per_step if arm else 0
    predicted = [check.verdict for check in checks(trace) if check.expected_num is not None]
    return Exchange(
        run.arm,
        strategy_of(trace)[0],
        max(predicted, key=_WORST.index, default=EXACT),
        tuple(_volume(trace, name) for name in EXCHANGED_KINDS),
        round(step_ns) if step_ns else None,
        samples * 1e9 / step_ns if samples and step_ns else None,
        int(processes.peak_bytes.max()) if processes else None,
        int(state) if (state := arm.facts.get("state_bytes") if arm else None) else None,
    )


def _volume(trace: Trace, name: str) -> CollectiveVolume:
    issued = issued_calls(trace)
    sizes = issued.calls.size[(issued.calls.step >= 0) & (issued.calls.name == COLLECTIVE_NAMES.index(name))]
    num_bytes = -1.0 if (sizes < 0).any() else float(np.sum(sizes)) / issued.num_steps
    return CollectiveVolume(name, len(sizes) / issued.num_steps, num_bytes)
