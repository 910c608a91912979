"""The history of a branch: its runs, the series of their measures, and events in which these change, with causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from traceq.compare.result import Diff
from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.frozen import frozen
from traceq.history.changes import Change, Series, change_points
from traceq.history.git import Commit, commits_between
from traceq.history.limits import MOST_EXPLAINED
from traceq.history.store import Environment, Row, read_rows, read_tags
from traceq.library import diff
from traceq.locations import Place, place
from traceq.model import Caveat
from traceq.report import BECOMES
from traceq.runs.run_folder import is_run
from traceq.units import Unit

MAIN = ("main", "master")
"""Branches that others are compared with."""
_LEADING = ("step", "traced step")
_NO_REASON = ("undecided", "all_else")
"""Statements of a comparison that name no cause."""
_ADDED = "line_changes"
"""The statement that names what was added or removed, which no noise does."""


@frozen
class HistoryRun:
    """A run of a store: its rows, of every arm, and what all of them say; `number` counts from 1 in its history."""

    number: int
    rows: tuple[Row, ...]

    @property
    def row(self) -> Row:
        """The row that says when and where."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """Abbreviated commit, with a + where files differed from it."""
        commit = self.row.commit
        return f"{commit[:9]}{'+' * commit.endswith('+dirty')}"

    def measured(self, arm: str, measure: str) -> Row | None:
        """Return the row of a measure."""
        return next((row for row in self.rows if (row.arm, row.measure) == (arm, measure)), None)

    def differences(self, other: HistoryRun) -> tuple[str, ...]:
        """Return `torch 2.12.0 → 2.13.0` for what differs in the environment of another run."""
        pairs = ((name, getattr(self.row, name), getattr(other.row, name)) for name in Environment.__annotations__)
        return tuple(f"{name} {a or 'unknown'}{BECOMES}{b or 'unknown'}" for name, a, b in pairs if a != b)


@frozen
class Event:
    """What changed from the run `before` to the run `after`; `surest` is the change that says where.

    `cause` is what a diff of the two says, "" where it says none; `why_not` says why. `commits`: those between.
    """

    before: HistoryRun
    after: HistoryRun
    changes: tuple[Change, ...]
    surest: Change
    cause: str = ""
    why_not: str = ""
    commits: tuple[Commit, ...] = ()

    @property
    def is_of_one_commit(self) -> bool:
        """Whether both runs are of the same commit: what changed is not the code."""
        return bool(self.before.row.commit) and self.before.row.commit == self.after.row.commit

    @property
    def moved(self) -> tuple[str, ...]:
        """What of the environment changed with it."""
        return self.before.differences(self.after)


@frozen
class History:
    """Runs of a branch in the order of time, series of their measures that are not always 0, and events in order."""

    store: str
    branch: str
    runs: tuple[HistoryRun, ...]
    series: tuple[Series, ...]
    events: tuple[Event, ...] = ()
    caveats: tuple[Caveat, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of arms, "" of traces."""
        return tuple(dict.fromkeys(series.arm for series in self.series))

    def title(self, series: Series) -> str:
        """Return the name of a measure, after its arm where there are several."""
        return f"{series.arm or 'trace'}: {series.measure}" if len(self.arms) > 1 else series.measure


def read_history(store: Place, branch: str | None = None) -> History:
    """Return runs and series of a branch, by default that of the latest run, without events; of branch "" of all.

    Raises UnreadableInput, also for an empty store, and UsageFault where there is no such branch.
    """
    stored = read_rows(store)
    by_run: dict[str, dict[tuple[str, str], Row]] = {}
    for row in stored.rows:
        by_run.setdefault(row.run_id, {})[row.arm, row.measure] = row
    if not by_run:
        raise UnreadableInput(str(store), "no runs", "those that `traceq history add RUN` adds")
    runs = sorted((tuple(rows.values()) for rows in by_run.values()), key=lambda rows: rows[0].time)
    branches = list(dict.fromkeys(rows[0].branch for rows in runs))
    branch = runs[-1][0].branch if branch is None else branch
    if branch and branch not in branches:
        raise UsageFault(f"{store}: no run of branch {branch}; its branches are {', '.join(branches)}")
    chosen = (rows for rows in runs if not branch or rows[0].branch == branch)
    numbered = tuple(HistoryRun(number, rows) for number, rows in enumerate(chosen, 1))
    return History(str(store), branch, numbered, _series(numbered), caveats=stored.caveats)


def history_of(store: Place, branch: str | None = None, *, bisect: bool = False) -> History:
    """Return the history of a branch with its events and their causes; `bisect` asks git for the commits between.

    Raises as `read_history` does, and UsageFault without Otava.
    """
    history = read_history(store, branch)
    changes = [
        change for series in history.series for change in change_points(series, typical_step(history, series.arm))
    ]
    groups = sorted(_together(changes), key=lambda each: each[0].place)
    events = [_event(history, each, bisect) for each in groups]
    latest = [_explained(store, each) for each in events[-MOST_EXPLAINED:]]
    return replace(history, events=(*events[:-MOST_EXPLAINED], *latest))


def find_run(store: Place, name: str) -> HistoryRun:
    """Return the latest run that a tag, a path, an identity or the begin of a commit names. Raises UsageFault."""
    name = read_tags(store).get(name, name)
    ends = name.rstrip("/")
    for run in reversed(read_history(store, "").runs):
        row = run.row
        is_path = ends == row.path.rstrip("/") or str(place(ends)) == str(_folder(store, row))
        if name == row.run_id or is_path or (len(name) >= 4 and row.commit.startswith(name)):
            return run
    raise UsageFault(f"{store}: no run, commit or tag {name}")


def run_diff(store: Place, a: HistoryRun, b: HistoryRun, arm: str) -> Diff:
    """Return the diff of run B against run A by their folders. Raises TraceqError where one is gone or unreadable."""
    sides = []
    for run in (a, b):
        folder = _folder(store, run.row)
        if not folder.exists():
            raise TraceqError(f"{folder}: the run is no longer there")
        sides.append(str(folder / arm if arm and is_run(folder) else folder))
    return diff(*sides)


def _folder(store: Place, row: Row) -> Place:
    """Return where a run is: relative paths are relative to the store."""
    where = place(row.path)
    is_inside = isinstance(where, Path) and not where.is_absolute()
    return store / row.path if is_inside else where


def _series(runs: Sequence[HistoryRun]) -> tuple[Series, ...]:
    """Return the series of each arm: the step first, then as they were measured; none of what is always 0."""
    rows: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for index, run in enumerate(runs):
        for row in run.rows:
            rows.setdefault((row.arm, row.measure), []).append((index, row))
    arms = list(dict.fromkeys(arm for arm, _ in rows))
    made = [
        Series(arm, measure, Unit(of[-1][1].unit), tuple(row for _, row in of), tuple(index for index, _ in of))
        for (arm, measure), of in rows.items()
        if any(row.value for _, row in of)
    ]
    return tuple(sorted(made, key=lambda series: (arms.index(series.arm), series.measure not in _LEADING)))


def typical_step(history: History, arm: str) -> float:
    """Return the typical step of an arm in ns, 0.0 if none was measured."""
    values = (series.values for series in history.series if series.arm == arm and series.measure in _LEADING)
    return float(max((sorted(each)[len(each) // 2] for each in values), default=0.0))


def _together(changes: Iterable[Change]) -> list[list[Change]]:
    """Return groups of changes of one arm that are one event: those of times may be found a run beside it.

    The place is that of the first, which is the surest: counts are exact, then by chance.
    """
    groups: list[list[Change]] = []
    for change in sorted(changes, key=lambda each: (each.unit not in (Unit.MEAN, Unit.BYTES), each.p)):
        near = (of for of in groups if of[0].arm == change.arm and abs(of[0].place - change.place) <= 1)
        for group in near:
            if all(each.measure != change.measure for each in group):
                group.append(change)
                break
        else:
            groups.append([change])
    return groups


def _cause(diff: Diff, measure: str) -> str:
    """Return what explains a change of a measure, with its line: what a step waits for or exchanges, work, or times."""
    for each in diff.counts:
        if each.is_change and each.name in measure.split():
            where = "".join(f" {word} {text}" for word, text in (("at", each.line), ("in", each.phase)) if text)
            return f"{each.what}{where}: {each.a_num:g}{BECOMES}{each.b_num:g} per step"
    reasons = [each for each in diff.reasons if each.code not in _NO_REASON]
    return next((each.lead for each in sorted(reasons, key=lambda each: each.code != _ADDED)), "")


def _pair(runs: Sequence[HistoryRun], change: Change) -> tuple[HistoryRun, HistoryRun]:
    """Return the runs around a change. Of several runs of a commit it is at the first, where noise says the second."""
    if runs[change.place_before].row.commit == runs[change.place].row.commit:
        for place in (change.place - 1, change.place + 1):
            if 0 < place < len(runs) and runs[place - 1].row.commit != runs[place].row.commit:
                return runs[place - 1], runs[place]
    return runs[change.place_before], runs[change.place]


def _event(history: History, changes: list[Change], bisect: bool) -> Event:
    """Return an event without its cause, its changes in the order of the series."""
    before, after = _pair(history.runs, changes[0])
    commits = commits_between(before.row.commit, after.row.commit) if bisect else ()
    order = [(series.arm, series.measure) for series in history.series]
    ordered = sorted(changes, key=lambda each: order.index((each.arm, each.measure)))
    why_not = f"not of the latest {MOST_EXPLAINED} changes: traceq diff {before.row.path} {after.row.path}"
    return Event(before, after, tuple(ordered), changes[0], why_not=why_not, commits=commits)


def _explained(store: Place, event: Event) -> Event:
    """Return an event with its cause, or why there is none."""
    try:
        cause = _cause(run_diff(store, event.before, event.after, event.surest.arm), event.surest.measure)
    except TraceqError as fault:
        return replace(event, why_not=str(fault))
    return replace(event, cause=cause, why_not="both runs issue the same work")
