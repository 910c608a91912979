"""A run against a baseline of the store: a verdict for each measure, and the diff of both where their folders exist."""

from __future__ import annotations

import numpy as np

from traceq.compare.result import Diff
from traceq.errors import TraceqError, UsageFault
from traceq.frozen import frozen
from traceq.history.events import MAIN, History, HistoryRun, Series, find_run, read_history, run_diff, typical_step
from traceq.history.limits import FEWEST_NOISE, MIN_MAGNITUDE, NOISE, NUM_NOISE
from traceq.history.store import Row
from traceq.locations import Place
from traceq.model import Caveat
from traceq.report import Report, Sheet, Source, Table, column
from traceq.units import Unit, format_value

COMPARE_SCHEMA = "traceq.history_compare/1"
_MAD_TO_SD = 1.4826


@frozen
class Verdict:
    """A measure of both runs: `noise` is how far two runs of the same code may be apart, None if it is not known.

    `verdict`: same, more or less of a count; else more, less, in the noise, or not known.
    """

    arm: str = column("arm")
    measure: str = column("measure")
    unit: str = column("unit")
    baseline: float = column("baseline", Unit.NUMBER)
    run: float = column("run", Unit.NUMBER)
    delta: float = column("delta", Unit.NUMBER)
    delta_pct: float | None = column("delta", Unit.DELTA_PERCENT)
    noise: float | None = column("noise", Unit.NUMBER)
    verdict: str = column("verdict")


@frozen
class _Shown:
    measure: str = column("measure")
    baseline: str = column("baseline")
    run: str = column("run")
    delta: float | None = column("delta", Unit.DELTA_PERCENT)
    noise: str = column("noise")
    verdict: str = column("verdict")


@frozen
class RunComparison:
    """Verdicts of a run against a baseline, and their diffs by arm; `caveats` say why there is none."""

    store: str
    baseline: HistoryRun
    run: HistoryRun
    verdicts: tuple[Verdict, ...]
    diffs: tuple[Diff, ...]
    caveats: tuple[Caveat, ...] = ()

    @property
    def sheet(self) -> Sheet:
        """The verdicts as a sheet."""
        shown = [_shown(verdict, len({each.arm for each in self.verdicts})) for verdict in self.verdicts]
        view = Table.of("verdicts", "Measures", _Shown, shown)
        title = f"{_named(self.run)} against {_named(self.baseline)}"
        report = Report("verdicts", (Table.of("verdicts", "Measures", Verdict, self.verdicts),), (view,))
        return Sheet(Source(self.store, 0, (), 0, title, ""), (report,), self.caveats, COMPARE_SCHEMA, False)


def compare_runs(store: Place, run: str | None = None, to: str | None = None) -> RunComparison:
    """Return a run (by path, commit or tag; the latest by default) against the newest of main, or a tag or commit.

    Raises UsageFault where there is no such run, or only one.
    """
    runs = read_history(store, "").runs
    subject = find_run(store, run) if run is not None else runs[-1]
    baseline = find_run(store, to) if to is not None else _newest_of_main(store, runs, subject)
    history = read_history(store, baseline.row.branch)
    verdicts = tuple(verdict for series in history.series for verdict in _verdicts(history, series, baseline, subject))
    diffs, caveats = [], []
    for arm in dict.fromkeys(verdict.arm for verdict in verdicts):
        try:
            diffs.append(run_diff(store, baseline, subject, arm))
        except TraceqError as fault:
            caveats.append(Caveat("no_diff", f"no diff of the two: {fault}"))
    return RunComparison(str(store), baseline, subject, verdicts, tuple(diffs), tuple(caveats))


def _newest_of_main(store: Place, runs: tuple[HistoryRun, ...], subject: HistoryRun) -> HistoryRun:
    earlier = [run for run in runs if run.row.branch in MAIN and run.row.run_id != subject.row.run_id]
    before = [run for run in earlier if run.number < subject.number] or earlier
    if not before:
        raise UsageFault(f"{store}: no other run of {' or '.join(MAIN)} to compare with; expected --to TAG or COMMIT")
    return before[-1]


def _verdicts(history: History, series: Series, baseline: HistoryRun, subject: HistoryRun) -> list[Verdict]:
    """Return the verdict on a measure; none where one of the runs lacks it."""
    a, b = (run.measured(series.arm, series.measure) for run in (baseline, subject))
    if a is None or b is None:
        return []
    noise = 0.0 if series.is_count else _noise(series, a, b)
    delta = b.value - a.value
    base = typical_step(history, series.arm) if series.unit is Unit.NS else abs(a.value)
    least = 0.0 if series.is_count else MIN_MAGNITUDE * base
    if noise is None:
        verdict = "not known"
    elif abs(delta) <= max(noise, least):
        verdict = "same" if series.is_count else "in the noise"
    else:
        verdict = "more" if delta > 0 else "less"
    pct = 100 * delta / a.value if a.value else None
    unit = series.unit.value
    return [Verdict(series.arm, series.measure, unit, a.value, b.value, delta, pct, noise, verdict)]


def _noise(series: Series, a: Row, b: Row) -> float | None:
    """Return how far two runs of the same code may be apart, None where too few runs say.

    It is by the spread of runs, and by the intervals of these two where they are wider: steps of one process agree more
    than processes do.
    """
    values = np.array([row.value for row in series.rows if row.time <= a.time][-NUM_NOISE:])
    if len(values) < FEWEST_NOISE:
        return None
    by_runs = NOISE * _MAD_TO_SD * float(np.median(abs(values - np.median(values))))
    halves = [(row.high - row.low) / 2 for row in (a, b) if row.low is not None and row.high is not None]
    return max(by_runs, float(np.linalg.norm(halves)))


def _shown(verdict: Verdict, num_arms: int) -> _Shown:
    unit = Unit(verdict.unit)
    a, b = (format_value(value, unit) for value in (verdict.baseline, verdict.run))
    noise = "" if verdict.noise is None or unit is Unit.MEAN else format_value(verdict.noise, unit)
    name = f"{verdict.arm}: {verdict.measure}" if num_arms > 1 else verdict.measure
    return _Shown(name, a, b, verdict.delta_pct, noise, verdict.verdict)


def _named(run: HistoryRun) -> str:
    return f"{run.name} of {run.row.branch}"
