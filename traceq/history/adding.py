"""Adding a run to a store: what was measured, with the branch and commit that it is of."""

from __future__ import annotations

import os
from pathlib import Path

from traceq.engines.analyze_path import SMALL
from traceq.engines.engine import Start
from traceq.errors import UsageFault
from traceq.history.git import current_branch, current_commit
from traceq.history.measures import Measured, MeasuredArm, measure_run
from traceq.history.sinks import check_sink, send
from traceq.history.store import Row, append
from traceq.locations import Place, place

__all__ = ["add_run"]


def add_run(
    store: Place,
    path: str,
    branch: str | None,
    commit: str | None,
    *,
    start: Start,
    small: int = SMALL,
    sink: str | None = None,
) -> str:
    """Add what a run measured, and send it to a tracker if one is named; return a line that says so.

    Branch and commit are those of the recording, else of the working directory, where they are not given. Raises
    UsageFault where there are none, UnreadableInput for what is no run.
    """
    if sink is not None:
        check_sink(sink)
    arms = measure_run(path, start=start, small=small)
    branch = branch or current_branch()
    commit = commit or arms[0].commit or current_commit()
    for what, value in (("branch", branch), ("commit", commit)):
        if not value:
            raise UsageFault(f"no {what}: neither the run nor a git repository here says it; expected --{what}")
    where = _stored_path(store, place(path))
    run_id = arms[0].run_id or f"{place(path).name}-{os.urandom(6).hex()}"
    rows = [_row(arm, each, run_id, branch, commit, where) for arm in arms for each in arm.measured]
    append(store, rows)
    if sink is not None:
        send(sink, rows)
    return f"{store}: {len(rows)} measures of {where} at {commit[:9]} of {branch}"


def _row(arm: MeasuredArm, measured: Measured, run_id: str, branch: str, commit: str, path: str) -> Row:
    low, high = measured.interval or (None, None)
    return Row(
        run_id=run_id,
        time=arm.time,
        branch=branch,
        commit=commit,
        arm=arm.arm,
        path=path,
        measure=measured.measure,
        rank=measured.rank,
        value=measured.value,
        low=low,
        high=high,
        unit=measured.unit,
        **arm.environment,
    )


def _stored_path(store: Place, run: Place) -> str:
    """Return the path of a run, relative to the store if it is inside: a store with its runs can be moved."""
    if not isinstance(run, Path):
        return str(run)
    path = Path(os.path.abspath(run))
    folder = Path(os.path.abspath(store)) if isinstance(store, Path) else path
    return path.relative_to(folder).as_posix() if folder in path.parents else str(path)
