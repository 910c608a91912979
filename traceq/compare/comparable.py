"""Whether two sides are comparable, and what differs besides the change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceq.compare.input_shapes import dtype_difference, shape_difference
from traceq.compare.result import Comparable
from traceq.compare.side import Side
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.model import Caveat, Run

__all__ = ["comparable", "confounders", "unmatched_ranks"]

_ENVIRONMENT_KEYS = dict.fromkeys(
    ("host", "cpu", "device_name", "driver", "cuda", "nccl", "torch", "accelerate", "python", "backend", "num_threads"),
    "unknown",
) | {"wrapper": "unknown", "throttled": "no"}
"""Keys of a manifest's environment that can change the step time, and what a missing key means. Without the commit,
which can be the change itself."""

_SAME_CLOCK = 0.02


def comparable(a: Side, b: Side) -> Comparable:
    """Return whether a delta can be attributed to a change.

    It cannot where the hardware differs, or where steps do different amounts of work and the samples are unknown.
    """
    traced = bool(a.run.traces and b.run.traces)
    reasons = list(_differ({"device": _device(a.run, traced=traced)}, {"device": _device(b.run, traced=traced)}))
    if not (a.samples and b.samples):
        ours, theirs = ({"ranks of the job": _num_ranks(side.run, traced=traced), **_batch(side)} for side in (a, b))
        unknown = ", samples per step unknown" if a.run.manifest and b.run.manifest else ""
        reasons += [f"{reason}{unknown}" for reason in _differ(ours, theirs)]
    marked = [any(steps(trace).marked for trace in side.run.traces) for side in (a, b)]
    if traced and marked[0] != marked[1]:
        reasons.append("steps: one side has marked steps, the other is one whole trace")
    return Comparable(not reasons, tuple(reasons))


def _device(run: Run, *, traced: bool) -> object:
    """Return the device of the traces, else of the recording."""
    return run.traces[0].device if traced else run.manifest.environment.get("device") if run.manifest else None


def _num_ranks(run: Run, *, traced: bool) -> object:
    return run.traces[0].world_size if traced else run.manifest.num_ranks_of(run.arm) if run.manifest else None


def _batch(side: Side) -> dict[str, object]:
    """Return the parameters that set the amount of work per step."""
    return {key: value for key, value in _parameters(side.run).items() if "batch" in key}


def _parameters(run: Run) -> dict[str, object]:
    """Return the recipe's parameters with those that this arm overrides."""
    arm = run.manifest.arm(run.arm) if run.manifest else None
    return {**(run.manifest.parameters if run.manifest else {}), **(arm.varied if arm else {})}


def _differ(a: dict[str, object], b: dict[str, object]) -> Iterator[str]:
    """Yield `batch_size: 8 against 16` for each value that differs and is known on both sides."""
    return (f"{key}: {a[key]} against {b[key]}" for key in a if None not in (a[key], b.get(key)) and a[key] != b[key])


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


def confounders(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Return a caveat for each difference besides the change: parameters, versions, clocks, phases.

    Arms of one run share its manifest, so only their traces are compared.
    """
    texts: list[str] = []
    if not _is_one_recording(a, b):
        texts += _recording_differences(a, b)
        if a.run.traces and b.run.traces:
            ours, theirs = a.run.traces[0], b.run.traces[0]
            texts += filter(None, [dtype_difference(ours, theirs)])
            texts += filter(None, [shape_difference(ours, theirs)] if a.samples == b.samples else ())
    if a.run.traces and b.run.traces:
        texts += _trace_differences(a.run, b.run)
    confounded = [Caveat("confounded", f"possible confounder: {text}") for text in texts]
    reasons = {str(reason) for side in (a, b) for run in side.runs if (reason := _environment(run).get("throttled"))}
    throttled = [Caveat("throttled", f"clocks were throttled during recording: {text}") for text in sorted(reasons)]
    return (*confounded, *throttled)


def _is_one_recording(a: Side, b: Side) -> bool:
    ours, theirs = ({run.manifest.run_id for run in side.runs if run.manifest} for side in (a, b))
    return bool(ours) and ours == theirs


def _recording_differences(a: Side, b: Side) -> Iterator[str]:
    """Yield the differences between the manifests; of several processes per side, all their values."""
    if any(run.manifest is None for run in (*a.runs, *b.runs)):
        return
    keys = sorted({key for side in (a, b) for run in side.runs for key in _parameters(run)})
    declared = {key for side in (a, b) for run in side.runs for key in _varied(run)}
    for key in keys:
        if key not in declared:
            yield from _difference(key, *([_parameters(run).get(key) for run in side.runs] for side in (a, b)))
    for key, absent in _ENVIRONMENT_KEYS.items():
        yield from _difference(key, *([_environment(run).get(key) or absent for run in side.runs] for side in (a, b)))
    clocks = [max(float(_environment(run).get("sm_mhz", 0)) for run in side.runs) for side in (a, b)]
    if all(clocks) and abs(clocks[0] - clocks[1]) > _SAME_CLOCK * max(clocks):
        yield f"clocks: {clocks[0]:,.0f} MHz against {clocks[1]:,.0f} MHz"
    yield from _difference("ranks", *([run.manifest.num_ranks for run in side.runs if run.manifest] for side in (a, b)))
    yield from _difference("recipe", *([run.manifest.recipe for run in side.runs if run.manifest] for side in (a, b)))


def _varied(run: Run) -> Iterable[str]:
    arm = run.manifest.arm(run.arm) if run.manifest else None
    return arm.varied if arm else ()


def _environment(run: Run) -> dict[str, str | int | float]:
    return dict(run.manifest.facts_for(run.arm)) if run.manifest else {}


def _difference(key: str, a: Sequence[object], b: Sequence[object]) -> Iterator[str]:
    ours, theirs = (" or ".join(sorted({str(value) for value in values})) for values in (a, b))
    if ours != theirs:
        yield f"{key}: {ours} against {theirs}"


def _trace_differences(a: Run, b: Run) -> Iterator[str]:
    """Yield the differences between the traces: versions, profiler options, phases."""
    ours, theirs = (dict[str, object](run.traces[0].versions) for run in (a, b))
    yield from _differ(ours, theirs)
    phases_a, phases_b = (set(phases(run.traces[0]).names) for run in (a, b))
    if phases_a != phases_b:
        yield f"phases on one side only: {', '.join(sorted(phases_a ^ phases_b)[:4])}"
