"""One side of a diff: a run, or several recordings of the same arm, each by a separate process.

Several are a folder of runs (`before/`), an arm of each of them (`before/on`), or a quoted pattern (`'before-*'`).
"""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from traceq.errors import UnreadableInput
from traceq.locations import Place, place
from traceq.model import Run
from traceq.runs.read import is_trace_file, read_timing
from traceq.runs.run_folder import is_run, read_manifest


def members_of_side(path: str | Place) -> tuple[Place, ...]:
    """Return the path of a side, or the paths of its several recordings. Raises UnreadableInput."""
    path = place(path)
    if path.exists():
        members = recordings_in(path)
    elif has_magic(str(path)):
        members = _matching(path) or _arm_of_each(_matching(path.parent), path.name)
        if not members:
            raise UnreadableInput(str(path), "no path matches the pattern")
    else:
        members = _arm_of_each(recordings_in(path.parent), path.name)
    return tuple(members) or (path,)


def read_recordings(path: str | Place, members: Sequence[Place]) -> tuple[Run, ...]:
    """Return the recordings of a side without their traces.

    Raises UnreadableInput, also if they are not of one recipe and arm.
    """
    runs = tuple(map(read_timing, members))
    _check_comparable(str(path), runs)
    return runs


def recordings_in(folder: Place) -> list[Place]:
    """Return the recorded runs in a folder, by name; none if it is a run itself."""
    if not folder.is_dir() or is_run(folder):
        return []
    return sorted(path for path in folder.iterdir() if is_run(path))


def holds_runs(folder: Place) -> bool:
    """Return whether a folder of this machine holds recorded runs, and no traces beside them."""
    if not isinstance(folder, Path) or not folder.is_dir() or is_run(folder):
        return False
    children = list(folder.iterdir())
    return not any(map(is_trace_file, children)) and any(map(is_run, children))


def _matching(pattern: Place) -> list[Place]:
    return [Path(path) for path in sorted(glob(str(pattern)))]


def _arm_of_each(folders: Sequence[Place], arm: str) -> list[Place]:
    """Return an arm of every run in a folder, for `before/on`; none if no run has it."""
    runs = [folder for folder in folders if is_run(folder)]
    has_it = any(read_manifest(run).arm(arm) for run in runs)
    return [run / arm for run in runs] if has_it else []


def _check_comparable(where: str, runs: Sequence[Run]) -> None:
    """Raise UnreadableInput if runs differ in recipe, arm or size, or if a recording occurs twice.

    Copies of one recording would count as processes that agree.
    """
    properties = [_shared_properties(run) for run in runs]
    for name in properties[0]:
        if len(values := sorted({str(of_run[name]) for of_run in properties})) > 1:
            raise UnreadableInput(
                where, f"recordings of more than one {name}: {', '.join(values)}", f"one {name} per side"
            )
    recordings = {run.manifest.run_id if run.manifest else run.path for run in runs}
    if len(recordings) < len(runs):
        repeated = f"{len(runs) - len(recordings)} of its {len(runs)} paths repeat a recording"
        raise UnreadableInput(where, repeated, "a different process for each; the ranks of one process are RUN/ARM")


def _shared_properties(run: Run) -> dict[str, str | int | float]:
    """Return the properties that all recordings of one side have in common."""
    if run.manifest is None:
        return dict.fromkeys(("recipe", "arm", "device", "number of ranks", "number of samples per step"), "")
    arm = run.manifest.arm(run.arm)
    return {
        "recipe": run.manifest.recipe,
        "arm": run.arm,
        "device": run.manifest.environment.get("device_name", run.manifest.environment.get("device", "")),
        "number of ranks": run.manifest.num_ranks_of(run.arm),
        "number of samples per step": arm.samples_per_step if arm else 0,
    }
