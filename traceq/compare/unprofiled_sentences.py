"""Where the unprofiled steps of two sides differ: by phase, and in the data loader by the line of its workers."""

from __future__ import annotations

from traceq.compare.side import Side
from traceq.facts.ranks.loading_workers import worker_line
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = ["unprofiled_phase_words"]

_NOTABLE = 0.2
"""Part of the difference of the step from which a phase is named."""
_MOST_PHASES = 3


def unprofiled_phase_words(a: Side, b: Side, names: tuple[str, str], steps: Comparison | None) -> tuple[str, ...]:
    """Return `In the unprofiled steps, dataload_wait takes 1.20 ms instead of 71.4 ms.`, with the loader's line.

    Times are means over ranks and steps. Nothing where no step is unprofiled, the verdict claims no difference, no
    phase has a notable part of it, or the means differ the other way: rare long steps, which the verdict is robust to.
    """
    if steps is None or not steps.unprofiled or not steps.is_seen:
        return ()
    timings = [side.run.timings for side in (a, b)]
    of_a, of_b = ({phase.name: phase.mean for phase in unprofiled_phases(each)} if each else {} for each in timings)
    deltas = {name: of_b[name] - of_a[name] for name in of_a if name in of_b}
    least = _NOTABLE * abs(steps.delta_ns)
    notable = [name for name in sorted(deltas, key=lambda name: -abs(deltas[name])) if abs(deltas[name]) >= least]
    if len(deltas) < 2 or not notable or sum(deltas.values()) * steps.delta_ns <= 0:
        return ()
    parts = [
        f"{name} takes {format_value(of_b[name], Unit.NS)} instead of {format_value(of_a[name], Unit.NS)}"
        for name in notable[:_MOST_PHASES]
    ]
    slower, name = (b, names[1]) if deltas[notable[0]] > 0 else (a, names[0])
    line = worker_line(slower.ranks.job) if notable[0] == DATALOAD_WAIT else ""
    where = f" (in {name}, {line})" if line else ""
    return (f"In the unprofiled steps, {', '.join(parts)}{where}.",)
