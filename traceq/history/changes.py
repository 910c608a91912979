"""Change points of a series of runs, by Apache Otava (E-divisive means, then t-tests, as Hunter has them).

Otava sees plain numbers. What is known of them besides is used around it: a run is left out whose interval is far wider
than usual, or that both runs beside it contradict; and a change of time has to exceed the intervals of the runs on
either side and a share of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from traceq.errors import TraceqError
from traceq.frozen import frozen
from traceq.units import Unit

if TYPE_CHECKING:
    from traceq.history.store import Row
from traceq.history.limits import ALONE, FEWEST_RUNS, LEAST_RUNS, MAX_P, MIN_MAGNITUDE, WIDE

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
