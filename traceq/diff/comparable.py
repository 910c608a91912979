"""Can these two be compared at all, and what differs besides the change itself?"""

from __future__ import annotations

from traceq.diff.result import Comparable
from traceq.links.phases import phases
from traceq.model import Caveat, Manifest, Run

__all__ = ["comparable", "confounders", "ranks_apart"]


def comparable(a: Run, b: Run) -> Comparable:
    """Not, where the hardware or the number of ranks differs: then a difference says nothing of a change."""
    ours, theirs = _job(a, traced=bool(a.traces and b.traces)), _job(b, traced=bool(a.traces and b.traces))
    reasons = tuple(
        f"{what}: {ours[what]} against {theirs[what]}" for what in ours if what in theirs and ours[what] != theirs[what]
    )
    return Comparable(not reasons, reasons)


def _job(run: Run, *, traced: bool) -> dict[str, str | int | float]:
    """What it ran on: as the traces say, else as the recording does."""
    if traced:
        return {"device": run.traces[0].device, "ranks of the job": run.traces[0].world_size}
    if run.manifest is None:
        return {}
    known = run.manifest.environment.get("device")
    return {"ranks of the job": run.manifest.num_ranks} | ({} if known is None else {"device": known})


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


def confounders(a: Run, b: Run) -> tuple[Caveat, ...]:
    """What else differs: parameters, versions, phases. Arms of one run differ by their arm alone."""
    found = []
    if a.manifest is not None and b.manifest is not None and a.manifest.run_id != b.manifest.run_id:
        found += _manifests(a.manifest, b.manifest)
    if a.traces and b.traces:
        ours, theirs = (set(phases(run.traces[0]).names) for run in (a, b))
        if ours != theirs:
            only = ", ".join(sorted(ours ^ theirs)[:4])
            found.append(f"phases: on one side only: {only}")
    return tuple(Caveat("confounded", f"differs besides the change: {text}") for text in found)


def _manifests(a: Manifest, b: Manifest) -> list[str]:
    found = [
        f"{key}: {a.parameters.get(key)} against {b.parameters.get(key)}"
        for key in sorted(a.parameters.keys() | b.parameters.keys())
        if a.parameters.get(key) != b.parameters.get(key)
    ]
    for key in ("torch", "device", "host"):
        if a.environment.get(key) != b.environment.get(key):
            found.append(f"{key}: {a.environment.get(key)} against {b.environment.get(key)}")
    if a.recipe != b.recipe:
        found.append(f"recipe: {a.recipe} against {b.recipe}")
    return found
