"""What ranks exchange in a step of each arm, where arms share the model in different ways, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.analysis.arms import step_of
from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.comm.parallelism import issues, strategy_of
from traceq.facts.comm.predictions import EXACT, EXPLAINED, UNEXPLAINED, checks
from traceq.model import Run, Trace

__all__ = ["EXCHANGED_KINDS", "Exchange", "Moved", "exchanges"]

EXCHANGED_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
_WORST = (EXACT, EXPLAINED, UNEXPLAINED)


@dataclass(frozen=True, slots=True)
class Moved:
    """Calls of one collective and their bytes, each in a mean traced step of one rank; -1 bytes where not told."""

    name: str
    num: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """One arm: its `strategy`; `verdict` is the worst of the roles that it predicts calls for; what it moves, by KINDS.
    The unprofiled step, samples a second of all ranks and most memory of any, None where arms share a process;
    `state_bytes` what the recipe noted of weights and moments.
    """

    arm: str
    strategy: str
    verdict: str
    moved: tuple[Moved, ...]
    step_ns: int | None
    samples_per_second: float | None
    peak_bytes: int | None
    state_bytes: int | None


def exchanges(runs: Sequence[Run]) -> tuple[Exchange, ...]:
    """A row an arm, by its first rank; nothing where all arms share the model in the same way."""
    traced = [run for run in runs if run.traces]
    if len({strategy_of(run.traces[0])[0] for run in traced}) < 2:
        return ()
    return tuple(map(_exchange, traced))


def _exchange(run: Run) -> Exchange:
    trace, arm = run.traces[0], run.manifest.arm(run.arm) if run.manifest else None
    mine = next((found for found in run.processes if found.arm == run.arm), None)
    step_ns, samples = step_of(mine), arm.samples_per_step if arm else 0
    predicted = [check.verdict for check in checks(trace) if check.expected_num is not None]
    return Exchange(
        run.arm,
        strategy_of(trace)[0],
        max(predicted, key=_WORST.index, default=EXACT),
        tuple(_moved(trace, name) for name in EXCHANGED_KINDS),
        round(step_ns) if step_ns else None,
        samples * 1e9 / step_ns if samples and step_ns else None,
        int(mine.peak_bytes.max()) if mine else None,
        int(state) if (state := arm.facts.get("state_bytes") if arm else None) else None,
    )


def _moved(trace: Trace, name: str) -> Moved:
    found = issues(trace)
    sizes = found.calls.size[(found.step >= 0) & (found.calls.name == COLLECTIVE_NAMES.index(name))]
    num_bytes = -1.0 if (sizes < 0).any() else float(np.sum(sizes)) / found.num_steps
    return Moved(name, len(sizes) / found.num_steps, num_bytes)
