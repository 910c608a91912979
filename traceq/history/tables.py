"""Tables of a history, complete ones for programs and short ones for people, and what is said of its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from traceq.frozen import frozen
from traceq.history.events import Change, Event, History, Series
from traceq.history.limits import FEWEST_RUNS
from traceq.history.store import Row
from traceq.report import BECOMES, Report, Sheet, Source, Table, column
from traceq.units import Unit, format_ends, format_value, sparkline

HISTORY_SCHEMA = "traceq.history/1"
_WIDTH = 24
"""Columns of a sparkline: with the others a terminal of 80."""
_FLOOR = 0.8
"""Part of the largest value below which a sparkline need not begin: noise of a percent stays flat."""


@frozen
class _Run:
    """A run of the branch, in the order of time."""

    run: int = column("run", Unit.COUNT)
    run_id: str = column("identity")
    time: str = column("recorded (UTC)")
    branch: str = column("branch")
    commit: str = column("commit")
    path: str = column("path")
    device: str = column("device")
    torch: str = column("torch")
    driver: str = column("driver")
    clock_mhz: int = column("clock", Unit.COUNT)
    host: str = column("host")
    cpu: str = column("CPU")
    num_ranks: int = column("ranks", Unit.COUNT)


@frozen
class _Value:
    """A measure of one arm of a run, with the ends of its 95 % interval."""

    arm: str = column("arm")
    measure: str = column("measure")
    unit: str = column("unit")
    run: int = column("run", Unit.COUNT)
    rank: int | None = column("rank", Unit.COUNT)
    value: float = column("value", Unit.NUMBER)
    low: float | None = column("low", Unit.NUMBER)
    high: float | None = column("high", Unit.NUMBER)


@frozen
class _ChangeRow:
    """A change of a measure between two runs."""

    arm: str = column("arm")
    measure: str = column("measure")
    unit: str = column("unit")
    run_before: int = column("run before", Unit.COUNT)
    run: int = column("run", Unit.COUNT)
    commit_before: str = column("commit before")
    commit: str = column("commit")
    before: float = column("before", Unit.NUMBER)
    after: float = column("after", Unit.NUMBER)
    delta: float = column("delta", Unit.NUMBER)
    delta_pct: float | None = column("delta", Unit.DELTA_PERCENT)
    p: float = column("p", Unit.NUMBER)
    cause: str = column("cause")
    environment: str = column("environment")


@frozen
class _EventRow:
    commit: str = column("commit")
    changed: str = column("changed")
    cause: str = column("cause")


@frozen
class _Measure:
    measure: str = column("measure")
    runs: str = column("runs")
    latest: str = column("latest")
    interval: str = column("95 % interval")
    changed: str = column("changed")


def history_sheet(history: History) -> Sheet:
    """Return everything as a sheet."""
    changes = [(event, change) for event in history.events for change in event.changes]
    tables = (
        Table.of("runs", "Runs", _Run, [_run(run.number, run.rows[0]) for run in history.runs]),
        Table.of("values", "Values", _Value, [row for series in history.series for row in _values(series)]),
        Table.of("changes", "Changes", _ChangeRow, [_change(event, change) for event, change in changes]),
    )
    source = Source(history.store, 0, (), 0, f"branch {history.branch}, {len(history.runs)} runs", "")
    events = [_EventRow(each.after.name, _changed(each), each.cause or each.why_not) for each in history.events]
    views = (measures_view(history), Table.of("events", "Changes", _EventRow, events))
    return Sheet(source, (Report("history", tables, views),), history.caveats, HISTORY_SCHEMA, is_selectable=False)


def measures_view(history: History) -> Table:
    """Return a row for each measure: its course, the latest value, and where it changed last."""
    last = {(change.arm, change.measure): (event, change) for event in history.events for change in event.changes}
    rows = [
        _measure(series, history.title(series), last.get((series.arm, series.measure))) for series in history.series
    ]
    return Table.of("measures", "Measures", _Measure, rows)


def event_words(event: Event) -> str:
    """Return `4c1f9aa: step 40.1 ms → 41.4 ms (+3.1 %), forward +12.0 %`."""
    return f"{event.after.name}: {_changed(event)}"


def _change_words(change: Change) -> str:
    """Return `40.1 ms → 41.4 ms (+3.1 %)`."""
    before, after = (format_value(value, change.unit) for value in (change.before, change.after))
    has_share = change.delta_pct is not None and change.unit is not Unit.MEAN
    share = f" ({format_value(change.delta_pct, Unit.DELTA_PERCENT)})" if has_share else ""
    return f"{before}{BECOMES}{after}{share}"


def _changed(event: Event) -> str:
    return ", ".join(f"{change.measure} {_change_words(change)}" for change in event.changes)


def _measure(series: Series, title: str, changed: tuple[Event, Change] | None) -> _Measure:
    latest, values = series.rows[-1], series.values
    ends = "" if latest.low is None or latest.high is None else format_ends(latest.low, latest.high, series.unit)
    where = ""
    if changed is not None:
        event, change = changed
        pct = change.delta_pct
        size = _change_words(change) if pct is None or series.is_count else format_value(pct, Unit.DELTA_PERCENT)
        where = f"{size} at {event.after.name}"
    floor = min(float(values.min()), _FLOOR * float(values.max()))
    course = sparkline((values - floor).tolist(), _WIDTH)
    return _Measure(title, course, format_value(latest.value, series.unit), ends, where)


def _run(number: int, row: Row) -> _Run:
    shared = {each.name: getattr(row, each.name) for each in fields(_Run) if each.name not in ("run", "time")}
    return _Run(run=number, time=row.time.isoformat(" ", "seconds"), **shared)


def _values(series: Series) -> Iterator[_Value]:
    for place, row in zip(series.places, series.rows, strict=True):
        unit = series.unit.value
        yield _Value(series.arm, series.measure, unit, place + 1, row.rank, row.value, row.low, row.high)


def _change(event: Event, change: Change) -> _ChangeRow:
    return _ChangeRow(
        arm=change.arm,
        measure=change.measure,
        unit=change.unit.value,
        run_before=event.before.number,
        run=event.after.number,
        commit_before=event.before.row.commit,
        commit=event.after.row.commit,
        before=change.before,
        after=change.after,
        delta=change.delta,
        delta_pct=change.delta_pct,
        p=change.p,
        cause=event.cause,
        environment="; ".join(event.moved),
    )


def history_summary(history: History) -> str:
    """Return `traceq-history · main · 12 runs, 2026-11-02 to 2026-11-29`."""
    days = [f"{run.row.time:%Y-%m-%d}" for run in history.runs]
    of_days = f", {days[0]} to {days[-1]}" if days else ""
    num = len(history.runs)
    return f"{history.store} · {history.branch or 'all branches'} · {num} run{'s' * (num != 1)}{of_days}"


def no_events(history: History) -> str:
    """Return what is said without an event."""
    return "No measure has changed." if len(history.runs) >= FEWEST_RUNS else f"{FEWEST_RUNS} runs tell what changes."


def event_lines(event: Event) -> list[str]:
    """Return what is told of an event below its first line: why, what else differs, the commits between."""
    lines = [event.cause or f"No cause is told: {event.why_not}"]
    if event.is_of_one_commit:
        lines.append("Both runs are of one commit: the machine or the data changed, not the code.")
    if event.moved:
        lines.append(f"Changed with it: {', '.join(event.moved)}")
    lines += [f"{commit} {subject}" for commit, subject in event.commits]
    return lines
