"""Whether two sides are comparable: on the same device, with the same work per step."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from traceq.compare.result import Comparable
from traceq.compare.sentences import DIFFERS, NOT_RECORDED, UNKNOWN_SAMPLES, WHY_NOT
from traceq.compare.side import Side
from traceq.facts.ranks.rank_outline import counted_names
from traceq.facts.timeline.phases import annotated_phases, with_phases
from traceq.model import OPTIMIZER_STEPS, Run

_AMD = re.compile("AMD|Instinct|Radeon")
_UNNAMED = ("cuda", "rocm")
"""Devices of traces that name none, by their calls."""


def comparable(a: Side, b: Side) -> Comparable:
    """Return whether a delta can be attributed to a change.

    It cannot where the hardware differs, or where steps do different amounts of work and the samples are unknown; nor
    where what a trace shows is not known.
    """
    traced = bool(a.run.traces and b.run.traces)
    devices = ({"device": _device(side.run, traced=traced)} for side in (a, b))
    foreign = [name for name, side in (("A", a), ("B", b)) if side.ranks.job.is_foreign]
    reasons = [WHY_NOT["foreign"].format(sides=" or ".join(foreign))] if foreign else []
    reasons += list(_lost_rows(a, b))
    reasons += [] if unrecorded_device(a, b) else list(differences(*devices))
    if not (a.samples and b.samples):
        ours, theirs = (
            {"ranks of the job": _num_ranks(side.run, traced=traced), **_work_of_step(side)} for side in (a, b)
        )
        unknown = f", {UNKNOWN_SAMPLES}" if a.run.manifest and b.run.manifest else ""
        reasons += [f"{reason}{unknown}" for reason in differences(ours, theirs)]
    marked = [any(rank.steps.marked for rank in side.ranks.job.ranks) for side in (a, b)]
    if traced and marked[0] != marked[1]:
        names = ("marked" if each else "one whole trace" for each in marked)
        reasons.append(_differs("steps", *names))
    return Comparable(not reasons, tuple(reasons))


def _lost_rows(a: Side, b: Side) -> Iterator[str]:
    """Yield that the traces of a side lack much of the device's work, by how many launches of kernels have no row."""
    lost = [side.ranks.job.lost_launches for side in (a, b)]
    if any(num for num, _ in lost):
        texts = (f"{num:,} of {launches:,}" if num else "none" for num, launches in lost)
        yield _differs("launches without a row of the device", *texts)


def unrecorded_device(a: Side, b: Side) -> str:
    """Return `device: not recorded against Tesla V100` where the trace of one side names none, and it may be this one.

    "" elsewhere: a device whose calls are those of another vendor is another one.
    """
    if not (a.run.traces and b.run.traces):
        return ""
    ours, theirs = (str(_device(side.run, traced=True)) for side in (a, b))
    if _may_be(ours, theirs):
        return _differs("device", NOT_RECORDED, theirs)
    return _differs("device", ours, NOT_RECORDED) if _may_be(theirs, ours) else ""


def _may_be(unnamed: str, device: str) -> bool:
    """Return whether the calls of a device without a recorded name are those of a named one."""
    is_named = device not in (*_UNNAMED, "cpu")
    return unnamed in _UNNAMED and is_named and bool(_AMD.search(device)) == (unnamed == "rocm")


def are_ranks_of_one_job(a: Side, b: Side) -> bool:
    """Return whether the sides are traces of different ranks that ran side by side: no change is between them."""
    if a.run.manifest or b.run.manifest or not (a.run.traces and b.run.traces):
        return False
    ours, theirs = a.ranks.job.ranks, b.ranks.job.ranks
    if {rank.rank for rank in ours} & {rank.rank for rank in theirs}:
        return False
    starts, ends = ([rank.extent[side] + rank.base_time_ns for rank in (*ours, *theirs)] for side in (0, 1))
    return a.run.traces[0].world_size == b.run.traces[0].world_size > 1 and max(starts) < min(ends)


def on_common_steps(a: Side, b: Side) -> tuple[Side, Side]:
    """Return sides that are ranks of one job with the steps alone that both count: they took these together.

    Sides whose events are not in memory are returned as they are.
    """
    if not (are_ranks_of_one_job(a, b) and uncommon_steps(a, b)) or not _are_in_memory(a, b):
        return a, b
    ours, theirs = _counted(a), _counted(b)
    return _without_steps(a, ours - theirs), _without_steps(b, theirs - ours)


def in_common_phases(a: Side, b: Side) -> tuple[Side, Side]:
    """Return the sides, of which one takes an annotation around all of its steps for a phase if the other one does.

    Sides whose events are not in memory are returned as they are.
    """
    if a.run.manifest or b.run.manifest or not _are_in_memory(a, b):
        return a, b
    of_a, of_b = ({name for trace in side.run.traces for name in annotated_phases(trace)} for side in (a, b))
    return _with_phases(a, of_b), _with_phases(b, of_a)


def _are_in_memory(a: Side, b: Side) -> bool:
    """Return whether the events of all ranks are, of which outlines keep one at most, without names."""
    return all(trace.events.strings for side in (a, b) for trace in side.run.traces)


def _with_phases(side: Side, names: Collection[str]) -> Side:
    traces = tuple(with_phases(trace, names) for trace in side.run.traces)
    is_same = all(new is old for new, old in zip(traces, side.run.traces, strict=True))
    return side if is_same else Side.of(replace(side.run, traces=traces))


def _without_steps(side: Side, names: Collection[str]) -> Side:
    traces = tuple(replace(trace, left_out=trace.left_out.union(names)) for trace in side.run.traces)
    return Side.of(replace(side.run, traces=traces))


def uncommon_steps(a: Side, b: Side) -> str:
    """Return the steps that count on one side only, of sides with the same steps; "" where all count on both."""
    ours, theirs = _counted(a), _counted(b)
    apart = sorted(ours ^ theirs)
    return ", ".join(apart) if ours & theirs else ""


def _counted(side: Side) -> set[str]:
    """Return the names of the steps that any rank of a side counts."""
    return {name for rank in side.ranks.job.ranks for name in counted_names(rank.steps)}


def _device(run: Run, *, traced: bool) -> object:
    """Return the device of the traces, else of the recording."""
    return run.traces[0].device if traced else run.manifest.environment.get("device") if run.manifest else None


def _num_ranks(run: Run, *, traced: bool) -> object:
    return run.traces[0].world_size if traced else run.manifest.num_ranks_of(run.arm) if run.manifest else None


def _work_of_step(side: Side) -> dict[str, object]:
    """Return what tells the amount of work of a step: parameters, and how many iterations of a loop it holds."""
    batch = {key: value for key, value in parameters_of(side.run).items() if "batch" in key}
    arm = side.run.manifest.arm(side.run.arm) if side.run.manifest else None
    facts = {} if arm is None else arm.facts
    optimizers = {name: num for name, num in facts.items() if name.startswith(OPTIMIZER_STEPS)}
    return batch | {f"steps of {name.removeprefix(OPTIMIZER_STEPS)} in a step": n for name, n in optimizers.items()}


def parameters_of(run: Run) -> dict[str, object]:
    """Return the recipe's parameters with those that this arm overrides."""
    arm = run.manifest.arm(run.arm) if run.manifest else None
    return {**(run.manifest.parameters if run.manifest else {}), **(arm.varied if arm else {})}


def differences(a: dict[str, object], b: dict[str, object]) -> Iterator[str]:
    """Yield `batch_size: 8 against 16` for each value that differs and is known on both sides."""
    return (_differs(key, a[key], b[key]) for key in a if None not in (a[key], b.get(key)) and a[key] != b[key])


def _differs(what: str, a: object, b: object) -> str:
    return DIFFERS.format(what=what, a=a, b=b)
