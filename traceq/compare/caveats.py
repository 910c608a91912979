"""All caveats of a diff but two kinds: `confounders`, and those of the measurement, which are in `traceq.stats`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from traceq.compare.side import Side, of_one_run
from traceq.compare.statement import Statement, state
from traceq.facts.ranks.lost_device import lost_device_caveats
from traceq.facts.ranks.run_ranks import RunRanks
from traceq.facts.ranks.unrecorded_share import unrecorded_caveats
from traceq.model import BUILT_APART, Caveat, Run
from traceq.runs.read import arm_failure
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = [
    "PROFILED_STEPS",
    "arm_ended",
    "lost_device",
    "not_interleaved",
    "not_paired",
    "other_loader",
    "other_step_ends",
    "separate_builds",
    "side_caveats",
    "unmatched_ranks",
    "unrecorded_work",
]

PROFILED_STEPS = Caveat("profiled_steps", "step times come from the traced windows: profiled, few, and not interleaved")

_UNEVEN, _MOST_LISTED = 1.5, 8
"""Factor by which steps of the processes of a side differ if some were disturbed, and how many are listed."""

LAYOUT_PCT = 2.0
"""Percent of a step by which identical models in one process may differ: above what `benchmarks/layout.py` measures."""

_LOADER_SETTINGS = ("size", "batch_size", "num_workers", "prefetch_factor", "load_us")


def side_caveats(side: Side) -> tuple[Caveat, ...]:
    """Return the caveats of every recording; of several, each names its recording."""
    if not side.is_repeated:
        return (*side.run.caveats, *_uneven_processes(side), *_traced_process(side.run))
    named = [Caveat(caveat.code, f"{run.path}: {caveat.text}") for run in side.runs for caveat in run.caveats]
    empty = [run.path for run, medians in zip(side.runs, side.processes, strict=True) if not medians]
    left_out = [Caveat("no_steps", f"{path}: no unprofiled steps; this process is ignored") for path in empty]
    if side.run.traces:
        text = f"{side.run.path}: the median of {len(side.runs)} recordings; only its trace is looked at"
        left_out.append(Caveat("one_process_explains", text))
    of_recordings = {caveat for run in side.runs for caveat in run.caveats}
    return (
        *named,
        *left_out,
        *_uneven_processes(side),
        *(caveat for caveat in side.run.caveats if caveat not in of_recordings),
    )


def _uneven_processes(side: Side) -> Iterator[Caveat]:
    """Yield a caveat for a side whose processes, which ran the same code, have steps of very different length."""
    timed = side.steps_ns.tolist()
    if len(timed) > 1 and max(timed) > _UNEVEN * min(timed):
        listed = ", ".join(format_value(ns, Unit.NS) for ns in timed[:_MOST_LISTED])
        listed += ", ..." if len(timed) > _MOST_LISTED else ""
        text = (
            f"{side.path}: its {len(timed)} processes have median steps of {listed}: something disturbed some of them, "
            "which may decide size and sign of the difference; record again"
        )
        yield Caveat("uneven_processes", text)


def _traced_process(run: Run) -> tuple[Caveat, ...]:
    """Return a caveat for an arm of several processes of which one was traced, the last."""
    timed = next((each for each in run.processes if each.arm == run.arm), None)
    if timed is None or len(timed.median_ns) < 2 or not run.traces:
        return ()
    last, middle = (format_value(ns, Unit.NS) for ns in (timed.median_ns[-1], np.median(timed.median_ns)))
    text = (
        f"arm {run.arm}: the last of its {len(timed.median_ns)} processes is traced (median step {last}; of all "
        f"{middle}), so that traced times are those of that process alone; record again to trace another"
    )
    return (Caveat("one_process_explains", text),)


def arm_ended(run: Run) -> tuple[Caveat, ...]:
    """Return a caveat for an arm that was not recorded to its end."""
    why = arm_failure(run)
    return (Caveat("arm_ended", f"arm {run.arm}: {why}"),) if why else ()


def not_paired(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Return a caveat for two arms of one process that were never paired."""
    if not of_one_run(a, b) or a.is_isolated:
        return ()
    names = f"{a.run.arm} and {b.run.arm}"
    return (Caveat("not_paired", f"{names} were never paired with each other: their median steps are compared"),)


def not_interleaved(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Return a caveat where all processes of one side ran before all of the other: the delta includes drift."""
    times = [[run.manifest.started if run.manifest else "" for run in side.runs] for side in (a, b)]
    if not (a.is_repeated and b.is_repeated and all(times[0]) and all(times[1])):
        return ()
    if max(times[0]) >= min(times[1]) and max(times[1]) >= min(times[0]):
        return ()
    text = "all processes of one side ran before the other's: the delta includes drift in between; alternate the sides"
    return (Caveat("not_interleaved", text),)


def separate_builds(a: Side, b: Side, *comparisons: Comparison | None) -> tuple[Caveat, ...]:
    """Return a caveat for arms of one process that build a model each and differ by little: it may be memory layout."""
    names = a.run.manifest.environment.get(BUILT_APART, "") if a.run.manifest else ""
    if not of_one_run(a, b) or a.run.arm == b.run.arm:
        return ()
    if not {a.run.arm, b.run.arm} <= set(str(names).split()):
        return ()
    claims = (comparison for comparison in comparisons if comparison and comparison.verdict.is_difference)
    if all(abs(claim.delta_pct) > LAYOUT_PCT for claim in claims):
        return ()
    text = (
        f"{a.run.arm} and {b.run.arm} are separate builds, and identical builds differ by up to {LAYOUT_PCT:g} % "
        "through memory layout: this delta may be layout; record several runs per side to tell"
    )
    return (Caveat("built_apart", text),)


def unrecorded_work(a: RunRanks, b: RunRanks) -> tuple[Caveat, ...]:
    """Return a caveat for each side whose traces wait for work that they do not show; no step begins before it."""
    caveats = []
    for name, side in (("A", a), ("B", b)):
        shares = [totals.unrecorded_share for totals in side.totals]
        caveats += _of_side(name, unrecorded_caveats(side.job.ranks, shares))
    return tuple(caveats)


def lost_device(a: RunRanks, b: RunRanks) -> tuple[Caveat, ...]:
    """Return a caveat for each side whose traces lack the rows of its device: its host waits there for unknown work."""
    caveats = []
    for name, side in (("A", a), ("B", b)):
        caveats += _of_side(name, lost_device_caveats(side.job.ranks))
    return tuple(caveats)


def _of_side(name: str, caveats: Iterable[Caveat]) -> list[Caveat]:
    return [Caveat(each.code, f"{name}: {each.text}") for each in caveats]


def other_step_ends(a: RunRanks, b: RunRanks) -> Iterator[Statement]:
    """Yield that steps end with the device's work on one side alone, as traces of few steps may show it."""
    ranks = [side.job.ranks[0] for side in (a, b) if side.job.ranks]
    ends = [rank.steps for rank in ranks if rank.has_device and rank.steps.marked]
    if len(ends) == 2 and ends[0].by_device != ends[1].by_device:
        by_device, by_host = "AB" if ends[0].by_device else "BA"
        yield state("other_step_ends", by_device=by_device, by_host=by_host)


def unmatched_ranks(a: Run, b: Run) -> tuple[Caveat, ...]:
    """Return a caveat where ranks are on one side only: they are ignored, or compared with another rank."""
    ours, theirs = set(a.ranks), set(b.ranks)
    if not a.traces or not b.traces or ours == theirs:
        return ()
    if common := ours & theirs:
        noun, verb = ("rank", "is") if len(common) == 1 else ("ranks", "are")
        text = f"only {noun} {_listed(common)} of {len(ours | theirs)} {verb} on both sides; the others are ignored"
    elif len(a.traces) == len(b.traces) == 1:
        text = f"rank {a.ranks[0]} is compared with rank {b.ranks[0]}: ranks of one job differ as well"
    else:
        text = (
            f"ranks {_listed(ours)} against {_listed(theirs)}: no rank is on both sides, so the delta is not explained"
        )
    return (Caveat("ranks_apart", text),)


def _listed(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:8])) + (" and more" if len(ranks) > 8 else "")


def other_loader(a: Run, b: Run) -> Iterator[Caveat]:
    """Yield a caveat for each loader setting in which the two recordings differ."""
    ours, theirs = (run.manifest.parameters if run.manifest else {} for run in (a, b))
    for key in _LOADER_SETTINGS:
        if key in ours and key in theirs and ours[key] != theirs[key]:
            text = f"{key}: {ours[key]} against {theirs[key]}: loader and steps were recorded with different settings"
            yield Caveat("other_loader", text)
