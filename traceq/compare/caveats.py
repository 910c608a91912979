"""All caveats of a diff but two kinds: `confounders`, and those of the measurement, which are in `traceq.stats`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from traceq.compare.limits import EVEN, LAYOUT
from traceq.compare.side import Side, of_one_run
from traceq.compare.statement import doubtful
from traceq.facts.ranks.job import RunRanks
from traceq.facts.ranks.unrecorded_share import lost_device_caveats, unrecorded_caveats
from traceq.model import BUILT_APART, Caveat, Run
from traceq.runs.read import arm_failure
from traceq.stats import Comparison
from traceq.units import Unit, format_ranks, format_value, name_ranks

_MOST_LISTED = 8
_LOADER_SETTINGS = ("size", "batch_size", "num_workers", "prefetch_factor", "load_us")


def side_caveats(side: Side) -> tuple[Caveat, ...]:
    """Return the caveats of every recording; of several, each names its recording."""
    if not side.is_repeated:
        return (*side.run.caveats, *_uneven_processes(side), *_traced_process(side.run))
    named = [Caveat(caveat.code, f"{run.path}: {caveat.text}") for run in side.runs for caveat in run.caveats]
    empty = [run.path for run, medians in zip(side.runs, side.processes, strict=True) if not medians]
    left_out = [doubtful("no_steps", path=path) for path in empty]
    if side.run.traces:
        left_out.append(doubtful("one_process_explains", path=side.run.path, num_recordings=len(side.runs)))
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
    if len(timed) > 1 and max(timed) > EVEN * min(timed):
        listed = ", ".join(format_value(ns, Unit.NS) for ns in timed[:_MOST_LISTED])
        listed += ", ..." if len(timed) > _MOST_LISTED else ""
        yield doubtful("uneven_processes", path=side.path, num_processes=len(timed), medians=listed)


def _traced_process(run: Run) -> tuple[Caveat, ...]:
    """Return a caveat for an arm of several processes of which one was traced, the last."""
    timed = next((each for each in run.processes if each.arm == run.arm), None)
    if timed is None or len(timed.median_ns) < 2 or not run.traces:
        return ()
    times = {"traced_ns": timed.median_ns[-1], "median_ns": float(np.median(timed.median_ns))}
    return (doubtful("one_process_explains", arm=run.arm, num_processes=len(timed.median_ns), **times),)


def arm_ended(run: Run) -> tuple[Caveat, ...]:
    """Return a caveat for an arm that was not recorded to its end."""
    why = arm_failure(run)
    return (doubtful("arm_ended", arm=run.arm, why=why),) if why else ()


def not_paired(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Return a caveat for two arms of one process that were never paired."""
    if not of_one_run(a, b) or a.is_isolated:
        return ()
    return (doubtful("not_paired", arms=f"{a.run.arm} and {b.run.arm}"),)


def not_interleaved(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Return a caveat where all processes of one side ran before all of the other: the delta includes drift."""
    times = [[run.manifest.started if run.manifest else "" for run in side.runs] for side in (a, b)]
    if not (a.is_repeated and b.is_repeated and all(times[0]) and all(times[1])):
        return ()
    if max(times[0]) >= min(times[1]) and max(times[1]) >= min(times[0]):
        return ()
    return (doubtful("not_interleaved"),)


def separate_builds(a: Side, b: Side, *comparisons: Comparison | None) -> tuple[Caveat, ...]:
    """Return a caveat for arms of one process that build a model each and differ by little: it may be memory layout."""
    names = a.run.manifest.environment.get(BUILT_APART, "") if a.run.manifest else ""
    if not of_one_run(a, b) or a.run.arm == b.run.arm:
        return ()
    if not {a.run.arm, b.run.arm} <= set(str(names).split()):
        return ()
    claims = (comparison for comparison in comparisons if comparison and comparison.verdict.is_difference)
    if all(abs(claim.delta_pct) > LAYOUT for claim in claims):
        return ()
    return (doubtful("built_apart", arms=f"{a.run.arm} and {b.run.arm}", layout_pct=LAYOUT),)


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


def unmatched_ranks(a: Run, b: Run) -> tuple[Caveat, ...]:
    """Return a caveat where ranks are on one side only: they are ignored, or compared with another rank."""
    ours, theirs = set(a.ranks), set(b.ranks)
    if not a.traces or not b.traces or ours == theirs:
        return ()
    if common := ours & theirs:
        return (doubtful("ranks_apart", common_ranks=name_ranks([*common]), num_ranks=len(ours | theirs)),)
    if len(a.traces) == len(b.traces) == 1:
        return (doubtful("ranks_apart", rank_a=f"{a.ranks[0]}", rank_b=f"{b.ranks[0]}"),)
    return (doubtful("ranks_apart", ranks_a=format_ranks([*ours]), ranks_b=format_ranks([*theirs])),)


def other_loader(a: Run, b: Run) -> Iterator[Caveat]:
    """Yield a caveat for each loader setting in which the two recordings differ."""
    ours, theirs = (run.manifest.parameters if run.manifest else {} for run in (a, b))
    for key in _LOADER_SETTINGS:
        if key in ours and key in theirs and ours[key] != theirs[key]:
            yield doubtful("other_loader", difference=f"{key}: {ours[key]} against {theirs[key]}")
