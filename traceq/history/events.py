"""The history of a branch: its runs, the series of their measures, and events in which these change, with causes.

Change points are found by Apache Otava (E-divisive means, then t-tests, as Hunter has them), which sees plain numbers.
What is known of them besides is used around it: a run is left out whose interval is far wider than usual, or that both
runs beside it contradict; and a change of time has to exceed the intervals of the runs on either side and a share of
the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.compare.result import Diff
from traceq.errors import TraceqError, UnreadableInput, UsageFault
from traceq.frozen import frozen
from traceq.history.git import Commit, commits_between
from traceq.history.limits import ALONE, FEWEST_RUNS, LEAST_RUNS, MAX_P, MIN_MAGNITUDE, MOST_EXPLAINED, WIDE
from traceq.history.store import Environment, Row, read_rows, read_tags
from traceq.library import diff
from traceq.locations import Place, place
from traceq.model import Caveat
from traceq.report import BECOMES
from traceq.runs.run_folder import is_run
from traceq.units import Unit

_WINDOW, _WINDOW_OF_COUNTS = 16, 4
"""Runs that Otava splits at once. It splits the whole first: in 50 runs a regression that is reverted is not seen."""
_FEW, _RARE = 4, 0.1
"""Neighbours that differ in a series of exact counts, or their share of many runs; what differs more often is noise."""
_COUNTS = (Unit.MEAN, Unit.BYTES)


@frozen
class Series:
    """Values of one measure of one arm, in the order of the runs: `rows` and, of each, its place among all runs."""

    arm: str
    measure: str
    unit: Unit
    rows: tuple[Row, ...]
    places: tuple[int, ...]

    @property
    def values(self) -> NDArray[np.float64]:
        """float64[N]."""
        return np.array([row.value for row in self.rows])

    @property
    def half_widths(self) -> NDArray[np.float64]:
        """float64[N]: half of each interval; nan where a run has none."""
        nan = float("nan")
        return np.array([nan if row.low is None or row.high is None else (row.high - row.low) / 2 for row in self.rows])

    @property
    def is_count(self) -> bool:
        """Whether values repeat exactly: calls and what they exchange, not peaks of memory."""
        return self.unit in _COUNTS and self.measure != "peak memory"


@frozen
class Change:
    """A measure changed from the run at `place - 1` or before to that at `place`, among all runs.

    `before` and `after` are means of the runs from the change point before to this one, and on to the next.
    """

    arm: str
    measure: str
    unit: Unit
    place: int
    place_before: int
    before: float
    after: float
    p: float

    @property
    def delta(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def delta_pct(self) -> float | None:
        """Delta in percent of what was before, None where that is 0."""
        return 100 * self.delta / self.before if self.before else None


def change_points(series: Series, step: float) -> tuple[Change, ...]:
    """Return the changes of a series, in the order of the runs; `step` is the typical one in ns.

    Raises TraceqError without Otava.
    """
    values, half_widths = series.values, series.half_widths
    num_differ = int(np.count_nonzero(np.diff(values)))
    is_exact = series.is_count and num_differ <= max(_FEW, _RARE * len(values))
    kept = np.flatnonzero(~(_is_busy(half_widths) | _is_alone(values)))
    values, half_widths = values[kept], half_widths[kept]
    if len(values) < FEWEST_RUNS or np.all(values == values[0]):
        return ()
    least = 1 if is_exact else LEAST_RUNS
    points = [each for each in _split(values, is_exact) if least <= each.index <= len(values) - least]
    ends = [0, *(int(each.index) for each in points), len(values)]
    changes = []
    for number, point in enumerate(points):
        left, right = (slice(*ends[number + side : number + side + 2]) for side in (0, 1))
        before, after = float(values[left].mean()), float(values[right].mean())
        if series.unit is Unit.NS and abs(after - before) < max(
            MIN_MAGNITUDE * step, float(np.hypot(_half_width(half_widths[left]), _half_width(half_widths[right])))
        ):
            continue
        place, place_before = (series.places[kept[ends[number + 1] - back]] for back in (0, 1))
        p = float(point.stats.pvalue)
        changes.append(Change(series.arm, series.measure, series.unit, place, place_before, before, after, p))
    return tuple(changes)


def _is_busy(half_widths: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[N]: runs whose interval is far wider than the median one."""
    if not np.isfinite(half_widths).any():
        return np.zeros(len(half_widths), np.bool_)
    busy: NDArray[np.bool_] = half_widths > WIDE * np.nanmedian(half_widths)
    return busy


def _is_alone(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[N]: runs far from the one before and the one after, which are close to each other; never the last one."""
    alone = np.zeros(len(values), np.bool_)
    if len(values) > 2:
        far = ALONE * np.median(abs(np.diff(values)))
        off = abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
        alone[1:-1] = (off > far) & (off > 2 * abs(values[2:] - values[:-2]))
    return alone


def _half_width(half_widths: NDArray[np.float64]) -> float:
    """Return half of the interval of the mean of runs whose intervals are known; 0.0 without one."""
    finite = half_widths[np.isfinite(half_widths)]
    return float(np.sqrt((finite**2).sum())) / len(finite) if len(finite) else 0.0


def _split(values: NDArray[np.float64], is_exact: bool) -> Sequence[Any]:
    """Return Otava's change points; any change of what is exact is one, if it does not come and go."""
    try:
        from otava.analysis import compute_change_points
    except ImportError:
        raise TraceqError("change points need apache-otava: pip install 'traceq-torch[history]'") from None
    window, least = (_WINDOW_OF_COUNTS, 0.0) if is_exact else (_WINDOW, MIN_MAGNITUDE)
    points: Sequence[Any]
    with np.errstate(all="ignore"):  # it divides by the spread of counts, which is 0
        points, _ = compute_change_points(values.tolist(), window_len=window, max_pvalue=MAX_P, min_magnitude=least)
    return points


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
