"""The sentences of onsets, by kind."""

from __future__ import annotations

from traceq.long_runs.onsets import (
    COLLECTOR,
    GROWING_MEMORY,
    GROWING_STEPS,
    LESS_CPU,
    SLOW_JOB,
    SLOW_LOADER,
    SLOW_RANK,
    THROTTLED,
    Onset,
)
from traceq.units import Unit, format_value, name_ranks

_SENTENCES = {
    SLOW_RANK: "{ranks} became slower, most in {phase}, and the others wait in backward",
    SLOW_JOB: "steps became slower on all ranks, most in {phase}",
    SLOW_LOADER: "the data loader of {ranks} became slower",
    COLLECTOR: "garbage collections became longer or more frequent on {ranks}",
    LESS_CPU: "{ranks} got less CPU: threads wait longer for a core",
    GROWING_STEPS: "steps grow longer and longer, most in {phase}",
    GROWING_MEMORY: "the memory of {ranks} grows with every step",
    THROTTLED: "the device of {ranks} is throttled, for power or temperature",
}
_MEASURES = {
    "wall": "a step",
    "compute": "computing",
    "cpu": "CPU time",
    "loader": "waiting for it",
    "gc": "collecting",
    "queued": "waiting for cores",
    "memory": "memory",
    "clock": "its clock",
}
_SINCE = (
    "{kind}: {what}, since step {step:,}: {measure} {before} → {after}, "
    "{growth:+.1f} % of {whole} (95 % CI {low:+.1f} to {high:+.1f} %)"
)


def onset_text(onset: Onset) -> str:
    """Return what began, since when, and by how much it grew, as one line."""
    is_memory = onset.kind == GROWING_MEMORY
    unit, scale = (Unit.BYTES, 1.0) if is_memory else (Unit.NS, 1e9)
    before, after = (format_value(round(value * scale), unit) for value in (onset.before, onset.after))
    if onset.kind == THROTTLED:
        before, after = (f"{value * 1e-6:,.0f} MHz" for value in (onset.before, onset.after))
    growth, low, high = (100 * value for value in (onset.growth, onset.low, onset.high))
    return _SINCE.format(
        kind=onset.kind,
        what=_SENTENCES[onset.kind].format(ranks=name_ranks(onset.ranks), phase=onset.phase),
        step=onset.step,
        measure=_MEASURES[onset.measure],
        before=before,
        after=after,
        growth=growth,
        whole="it" if is_memory else "a step",
        low=low,
        high=high,
    )
