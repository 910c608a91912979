"""Can these two be compared at all, and what differs besides the change itself?"""

from __future__ import annotations

from traceq.diff.result import Comparable
from traceq.links.phases import phases
from traceq.model import Caveat, Manifest, Run

__all__ = ["comparable", "confounders"]


def comparable(a: Run, b: Run) -> Comparable:
    """Not, where the hardware or the number of ranks differs: then a difference says nothing of a change."""
    reasons = []
    if a.traces and b.traces:
        first_a, first_b = a.traces[0], b.traces[0]
        for what, x, y in (
            ("device", first_a.device, first_b.device),
            ("ranks of the job", first_a.world_size, first_b.world_size),
        ):
            if x != y:
                reasons.append(f"{what}: {x} against {y}")
    return Comparable(not reasons, tuple(reasons))


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
