"""Metrics that rules can be about, with the columns they come from, and their statistics over steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from statistics import mean, median

from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.events.copies import DIRECTIONS
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.time_partition import BUSY, TimeCategory
from traceq.frozen import frozen


class Measure(Enum):
    """Kind of number that a rule compares with, by its unit; the value reads after "expected"."""

    COUNT = "a number without a unit (0)"
    BYTES = "a size (2 GiB)"
    NS = "a time (3 ms)"
    SHARE = "a share of the step (5 %)"


class Needs(Enum):
    """Content that a trace must have to answer: without it every number would be 0 and every `== 0` would pass."""

    NOTHING = "nothing"
    DEVICE = "device work"
    CPU_ONLY = "no device work"


@frozen
class Metric:
    """Rows of `table` whose `key` is one of `values` (all rows without a key), and the column to sum for each measure.

    `phase_key` is the column that names the phase, "" where rows have none. `is_ratio`: the only row has the value
    itself, in percent, and a bound without a unit is a share of 1.
    """

    table: str
    columns: Mapping[Measure, str]
    key: str = ""
    values: tuple[str, ...] = ()
    needs: Needs = Needs.NOTHING
    phase_key: str = "phase"
    is_ratio: bool = False

    @property
    def by_step(self) -> bool:
        """Whether the table has rows for each step, so that a median or a maximum over steps exists."""
        return self.table == "partition"

    @property
    def accepts(self) -> str:
        """Numbers a rule can compare it with."""
        return " or ".join(measure.value for measure in self.columns)


_SIZED = {Measure.COUNT: "num", Measure.BYTES: "bytes"}
_TIMED = {Measure.NS: "dur_ns", Measure.SHARE: "dur_ns"}
_ON_CPU_ONLY = (TimeCategory.CPU_COMPUTE, TimeCategory.DATALOAD_WAIT, TimeCategory.PYTHON)


def _sync(kind: str) -> Metric:
    return Metric("syncs", _SIZED, "kind", (kind,), Needs.CPU_ONLY if kind == "scalar" else Needs.DEVICE)


def _utilisation(column: str) -> Metric:
    return Metric("efficiency", {Measure.SHARE: column}, phase_key="", is_ratio=True)


def _time(*categories: TimeCategory) -> Metric:
    """Return the time of each step in some categories; exposed communication and compiling need no device."""
    needs = Needs.CPU_ONLY if set(categories) <= set(_ON_CPU_ONLY) else Needs.DEVICE
    names = tuple(category.name.lower() for category in categories)
    if categories == (TimeCategory.EXPOSED_COMM,):
        needs, names = Needs.NOTHING, (*names, EXPOSED_WAIT, EXPOSED_TRANSFER)  # its two parts, of several ranks
    if categories == (TimeCategory.COMPILING,):
        needs = Needs.NOTHING
    return Metric("partition", _TIMED, "category", names, needs)


METRICS: Mapping[str, Metric] = {
    **{kind: _sync(kind) for kind in SYNC_KINDS},
    "syncs": Metric("syncs", _SIZED),
    "sync_cost": Metric("syncs", {Measure.NS: "cost_ns", Measure.SHARE: "cost_ns"}, needs=Needs.DEVICE),
    **{name: Metric("collectives", _SIZED, "name", (name,)) for name in COLLECTIVE_NAMES},
    "collectives": Metric("collectives", _SIZED),
    **{
        f"{kind.lower()}_copies": Metric("memcpy", _SIZED, "kind", (kind,), Needs.DEVICE, phase_key="")
        for kind in DIRECTIONS
    },
    "copies": Metric("memcpy", _SIZED, needs=Needs.DEVICE, phase_key=""),
    "kernels": Metric("kernels", {Measure.COUNT: "num"}, needs=Needs.DEVICE),
    "gpu_ops": Metric("phases", {Measure.COUNT: "num_gpu_ops"}, needs=Needs.DEVICE, phase_key="name"),
    "mfu": _utilisation("mfu_pct"),
    "hfu": _utilisation("hfu_pct"),
    "step": Metric("partition", _TIMED),
    "gpu_busy": _time(*BUSY),
    **{category.name.lower(): _time(category) for category in TimeCategory},
}
"""All metrics by name. Copies are those the device carried out; `dtoh` and `htod` those the host waited for."""


def over_steps(statistic: str, ns: Mapping[int, int], windows: Mapping[int, int], *, is_share: bool) -> Fraction:
    """Return a statistic over steps of their times, or of their shares of the steps' windows; both ns by step.

    A mean share is the share of all steps together.
    """
    if is_share and statistic == "mean":
        return Fraction(sum(ns.values()), sum(windows.values()))
    divisors = windows if is_share else dict.fromkeys(windows, 1)
    return STATISTICS[statistic](sorted(Fraction(ns[index], divisors[index]) for index in windows))


def _p95(values: Sequence[Fraction]) -> Fraction:
    """Return the nearest rank of sorted values, which is their maximum where there are fewer than 20."""
    return values[-(-95 * len(values) // 100) - 1]


STATISTICS: Mapping[str, Callable[[Sequence[Fraction]], Fraction]] = {
    "mean": mean,
    "median": median,
    "p95": _p95,
    "max": max,
    "min": min,
}
"""Statistics of sorted values, by the word in a rule."""
