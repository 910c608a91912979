"""One side of a diff: a run, or several recordings of the same thing, each of its own process.

Several are a folder of runs (`before/`), an arm of each of them (`before/on`), or a quoted pattern (`'before-*'`).
"""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from traceq.errors import UnreadableInput
from traceq.locations import Place, place
from traceq.model import Run
from traceq.runs.layout import is_run, read_manifest
from traceq.runs.read import read, read_timing

__all__ = ["read_side", "recordings_in"]


def read_side(path: str | Place) -> tuple[Run, ...]:
    """The run at a path, whole; or several recordings of one recipe and arm, without their traces.

    Raises UnreadableInput, also where the recordings are not of one recipe and arm.
    """
    path = place(path)
    if path.exists():
        members = recordings_in(path)
    elif has_magic(str(path)):
        members = _fitting(path) or _arm_of_each(_fitting(path.parent), path.name)
        if not members:
            raise UnreadableInput(str(path), "nothing of that name", "paths that the pattern fits")
    else:
        members = _arm_of_each(recordings_in(path.parent), path.name)
    if len(members) < 2:
        return (read(*members or (path,)),)
    runs = tuple(map(read_timing, members))
    _check_alike(str(path), runs)
    return runs


def recordings_in(folder: Place) -> list[Place]:
    """The recorded runs that a folder holds, by name; none where it is a run itself."""
    if not folder.is_dir() or is_run(folder):
        return []
    return sorted(found for found in folder.iterdir() if is_run(found))


def _fitting(pattern: Place) -> list[Place]:
    return [Path(found) for found in sorted(glob(str(pattern)))]


def _arm_of_each(folders: Sequence[Place], arm: str) -> list[Place]:
    """`before/on`, where no such folder need be: that arm of every run in `before`; none where no run has it."""
    runs = [folder for folder in folders if is_run(folder)]
    has_it = any(read_manifest(run).arm(arm) for run in runs)
    return [run / arm for run in runs] if has_it else []


def _check_alike(where: str, runs: Sequence[Run]) -> None:
    """All of one thing, and no recording twice: its copies would count as processes that agree."""
    told = [_told(run) for run in runs]
    for what in told[0]:
        if len(found := sorted({str(one[what]) for one in told})) > 1:
            raise UnreadableInput(
                where, f"recordings of more than one {what}: {', '.join(found)}", f"one {what} a side"
            )
    recordings = {run.manifest.run_id if run.manifest else run.path for run in runs}
    if len(recordings) < len(runs):
        repeated = f"{len(runs)} paths, {len(runs) - len(recordings)} of them to a recording that is there already"
        raise UnreadableInput(where, repeated, "another process each; the ranks of one are RUN/ARM")


def _told(run: Run) -> dict[str, str | int | float]:
    """What recordings of one side have in common."""
    if run.manifest is None:
        return dict.fromkeys(("recipe", "arm", "device", "number of ranks", "number of samples a step"), "")
    arm = run.manifest.arm(run.arm)
    return {
        "recipe": run.manifest.recipe,
        "arm": run.arm,
        "device": run.manifest.environment.get("device_name", run.manifest.environment.get("device", "")),
        "number of ranks": run.manifest.ranks_of(run.arm),
        "number of samples a step": arm.samples_per_step if arm else 0,
    }
