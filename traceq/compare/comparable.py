"""Can these two be compared at all, and what differs besides the change itself?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceq.compare.input_shapes import shapes_apart, types_apart
from traceq.compare.result import Comparable
from traceq.compare.side import Side
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.model import Caveat, Run

__all__ = ["comparable", "confounders", "ranks_apart"]

_SURROUNDINGS = dict.fromkeys(
    ("host", "cpu", "device_name", "driver", "cuda", "nccl", "torch", "accelerate", "python", "backend", "num_threads"),
    "unknown",
) | {"wrapper": "unknown", "throttled": "no"}
"""What a manifest's environment says of a recording that can change a step, and what its absence means. The commit is
left out, as it can be the change that is asked about."""

_SAME_CLOCK = 0.02


def comparable(a: Side, b: Side) -> Comparable:
    """Not, where the hardware differs, or how much a step does and nobody said how much: then a difference says nothing
    of a change.
    """
    traced = bool(a.run.traces and b.run.traces)
    reasons = list(_differ({"device": _device(a.run, traced=traced)}, {"device": _device(b.run, traced=traced)}))
    if not (a.samples and b.samples):
        ours, theirs = ({"ranks of the job": _num_ranks(side.run, traced=traced), **_batch(side)} for side in (a, b))
        unknown = ", samples of a step unknown" if a.run.manifest and b.run.manifest else ""
        reasons += [f"{reason}{unknown}" for reason in _differ(ours, theirs)]
    marked = [any(steps(trace).marked for trace in side.run.traces) for side in (a, b)]
    if traced and marked[0] != marked[1]:
        reasons.append("steps: those of one side are marked, the other is one whole trace")
    return Comparable(not reasons, tuple(reasons))


def _device(run: Run, *, traced: bool) -> object:
    """What it ran on: as the traces say, else as the recording does."""
    return run.traces[0].device if traced else run.manifest.environment.get("device") if run.manifest else None


def _num_ranks(run: Run, *, traced: bool) -> object:
    return run.traces[0].world_size if traced else run.manifest.ranks_of(run.arm) if run.manifest else None


def _batch(side: Side) -> dict[str, object]:
    """Parameters that say how much a step does."""
    return {key: value for key, value in _parameters(side.run).items() if "batch" in key}


def _parameters(run: Run) -> dict[str, object]:
    """The recipe's, as this arm ran with them."""
    arm = run.manifest.arm(run.arm) if run.manifest else None
    return {**(run.manifest.parameters if run.manifest else {}), **(arm.varied if arm else {})}


def _differ(a: dict[str, object], b: dict[str, object]) -> Iterator[str]:
    """`batch_size: 8 against 16`, of what both sides tell."""
    return (f"{key}: {a[key]} against {b[key]}" for key in a if None not in (a[key], b.get(key)) and a[key] != b[key])


def ranks_apart(a: Run, b: Run) -> tuple[Caveat, ...]:
    """Ranks that only one side has: one is set against another, or left out."""
    ours, theirs = set(a.ranks), set(b.ranks)
    if not a.traces or not b.traces or ours == theirs:
        return ()
    if common := ours & theirs:
        noun, verb = ("rank", "stands") if len(common) == 1 else ("ranks", "stand")
        text = f"only {noun} {_listed(common)} of {len(ours | theirs)} {verb} on both sides; the others are left out"
    elif len(a.traces) == len(b.traces) == 1:
        text = f"rank {a.ranks[0]} is set against rank {b.ranks[0]}: ranks of one job differ, too"
    else:
        text = f"ranks {_listed(ours)} against {_listed(theirs)}: no rank stands on both sides, so nothing is explained"
    return (Caveat("ranks_apart", text),)


def _listed(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:8])) + (" and more" if len(ranks) > 8 else "")


def confounders(a: Side, b: Side) -> tuple[Caveat, ...]:
    """What else differs: parameters, versions, clocks, phases. Arms of one run differ by their arm alone."""
    found: list[str] = []
    if not _of_one_recording(a, b):
        found += _recordings(a, b)
        if a.run.traces and b.run.traces:
            ours, theirs = a.run.traces[0], b.run.traces[0]
            found += filter(None, [types_apart(ours, theirs)])
            found += filter(None, [shapes_apart(ours, theirs)] if a.samples == b.samples else ())
    if a.run.traces and b.run.traces:
        found += _traces(a.run, b.run)
    told = [Caveat("confounded", f"differs besides the change: {text}") for text in found]
    held = {str(slowed) for side in (a, b) for run in side.runs if (slowed := _environment(run).get("throttled"))}
    throttled = [Caveat("throttled", f"clocks were held down while this was recorded: {text}") for text in sorted(held)]
    return (*told, *throttled)


def _of_one_recording(a: Side, b: Side) -> bool:
    ours, theirs = ({run.manifest.run_id for run in side.runs if run.manifest} for side in (a, b))
    return bool(ours) and ours == theirs


def _recordings(a: Side, b: Side) -> Iterator[str]:
    """What two recordings say of themselves. Of several processes a side, all that they say."""
    if any(run.manifest is None for run in (*a.runs, *b.runs)):
        return
    keys = sorted({key for side in (a, b) for run in side.runs for key in _parameters(run)})
    declared = {key for side in (a, b) for run in side.runs for key in _varied(run)}
    for key in keys:
        if key not in declared:
            yield from _told_apart(key, *([_parameters(run).get(key) for run in side.runs] for side in (a, b)))
    for key, absent in _SURROUNDINGS.items():
        yield from _told_apart(key, *([_environment(run).get(key) or absent for run in side.runs] for side in (a, b)))
    clocks = [max(float(_environment(run).get("sm_mhz", 0)) for run in side.runs) for side in (a, b)]
    if all(clocks) and abs(clocks[0] - clocks[1]) > _SAME_CLOCK * max(clocks):
        yield f"clocks: {clocks[0]:,.0f} MHz against {clocks[1]:,.0f} MHz"
    yield from _told_apart("ranks", *([run.manifest.num_ranks for run in side.runs if run.manifest] for side in (a, b)))
    yield from _told_apart("recipe", *([run.manifest.recipe for run in side.runs if run.manifest] for side in (a, b)))


def _varied(run: Run) -> Iterable[str]:
    arm = run.manifest.arm(run.arm) if run.manifest else None
    return arm.varied if arm else ()


def _environment(run: Run) -> dict[str, str | int | float]:
    return dict(run.manifest.told_of(run.arm)) if run.manifest else {}


def _told_apart(key: str, a: Sequence[object], b: Sequence[object]) -> Iterator[str]:
    ours, theirs = (" or ".join(sorted({str(value) for value in values})) for values in (a, b))
    if ours != theirs:
        yield f"{key}: {ours} against {theirs}"


def _traces(a: Run, b: Run) -> Iterator[str]:
    """What the traces say: versions, what the profiler recorded, phases."""
    ours, theirs = (dict[str, object](run.traces[0].versions) for run in (a, b))
    yield from _differ(ours, theirs)
    phases_a, phases_b = (set(phases(run.traces[0]).names) for run in (a, b))
    if phases_a != phases_b:
        yield f"phases: on one side only: {', '.join(sorted(phases_a ^ phases_b)[:4])}"
