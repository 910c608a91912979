"""How many batches can the input pipeline deliver, if nothing else is to be done?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._wording import MOST_RANKS, more_rows
from traceq.facts.ranks.job import Job
from traceq.model import Manifest, Timings, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value

__all__ = ["Loader", "is_loader_alone", "loader_of", "merge", "summarize"]

POSITION = 7

FETCH, TO_DEVICE = "fetch", "h2d"
_TIMES = ("mean", "median", "p95")
_RANKS = (
    Column("rank", "rank", Unit.COUNT),
    *(Column(f"fetch_{kind}_ns", f"fetch, {kind}", Unit.NS) for kind in _TIMES),
    *(Column(f"h2d_{kind}_ns", f"h2d, {kind}", Unit.NS) for kind in _TIMES),
    Column("batches_per_sec", "batches/s", Unit.MEAN),
)
_FIGURES = tuple(
    Column(key)
    for key in (
        "warmup",
        "measured",
        "counted",
        "batches_per_sec_min",
        "batches_per_sec_mean",
        "batches_per_sec_max",
        "samples_per_sec_ceiling",
        "bimodal",
        "ready_pct",
        "ready_ns",
        "waited_ns",
        "batches_per_wait",
    )
)
_FEWEST, _APART, _EXPLAINED = 0.05, 4.0, 0.8
"""Two kinds of fetches: each at least this share, medians this many times apart, and the parting explains as much of
the variance of their logarithms (of evenly spread ones any parting explains at most 0.75)."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Batches that lay ready and those that were waited for: their medians, ns, and the share of the first."""

    ready: float
    ready_ns: float
    waited_ns: float

    @property
    def batches_per_wait(self) -> float:
        """How many come for one that is waited for, itself included."""
        return 1 / (1 - self.ready)


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """A loader alone on R ranks over the S batches that count: `fetch_ns` and `h2d_ns` int64[R, S]; `rates` float64[R]
    batches a second. `samples`: of a batch of all ranks together, 0 where nobody said. `modes`: None where batches take
    alike.
    """

    fetch_ns: NDArray[np.int64]
    h2d_ns: NDArray[np.int64]
    rates: NDArray[np.float64]
    samples: int
    modes: Modes | None

    @property
    def batch_ns(self) -> float:
        """Time of a batch on the slowest rank."""
        return 1e9 / float(self.rates.min())

    @property
    def ceiling(self) -> float | None:
        """Samples a second of a job that does nothing else, at the pace of its slowest rank; None if unknown."""
        return float(self.rates.min()) * self.samples if self.samples else None


def summarize(trace: Trace) -> None:
    """Nothing: what counts was not profiled."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Fetches, copies and batches a second of each rank of a recording of a loader alone; nothing for other runs."""
    manifest, timings = job.manifest, job.timings
    loader = loader_of(manifest, job.arm, timings)
    if loader is None or timings is None or manifest is None:
        return Report("loader", (_figures(()), Table("loader_ranks", "", _RANKS, ())))
    rows = tuple(_row(loader, rank) for rank in range(len(loader.rates)))
    figures = _figures((_values(loader, timings),))
    return Report("loader", (figures, Table("loader_ranks", "", _RANKS, rows)), (_view(loader, rows, manifest),))


def is_loader_alone(manifest: Manifest | None) -> bool:
    """Its phases are `fetch` and `h2d` and nothing else."""
    return manifest is not None and manifest.phases == (FETCH, TO_DEVICE)


def loader_of(manifest: Manifest | None, arm_name: str, timings: Timings | None) -> Loader | None:
    """What a recording of a loader alone says of it; None for any other.

    Batches that can have been made while the recording paused do not count.
    """
    if timings is None or manifest is None or not is_loader_alone(manifest):
        return None
    arm = manifest.arm(arm_name)
    fetch, copy = (timings.phases.index(name) for name in (FETCH, TO_DEVICE))
    counts = timings.since_pause >= _in_hand(manifest)
    counts = counts if counts.any() else ~counts
    fetch_ns = timings.host_phase_ns[:, counts, fetch]
    return Loader(
        fetch_ns=fetch_ns,
        h2d_ns=timings.phase_ns[:, counts, copy],
        rates=1e9 / timings.step_ns[:, counts].mean(axis=1),
        samples=arm.samples_per_step if arm else 0,
        modes=_modes(fetch_ns.ravel()),
    )


def _in_hand(manifest: Manifest) -> int:
    """Most batches that lie ready: `num_workers` times `prefetch_factor`, 0 where the recipe tells neither."""
    known = (manifest.parameters.get(key) for key in ("num_workers", "prefetch_factor"))
    workers, factor = (int(value) if isinstance(value, int) else 0 for value in known)
    return workers * factor


def _modes(fetch_ns: NDArray[np.int64]) -> Modes | None:
    """The parting of fetches in two that leaves least variance of their logarithms, if that is a clear one."""
    ordered = np.sort(fetch_ns)
    logs, num = np.log(np.maximum(ordered, 1)), len(ordered)
    first = np.arange(1, num)
    below = np.cumsum(logs)[:-1]
    between = first * (num - first) * (below / first - (logs.sum() - below) / (num - first)) ** 2 / num
    if not between.size or logs.var() == 0:
        return None
    at = int(between.argmax()) + 1
    ready_ns, waited_ns = float(np.median(ordered[:at])), float(np.median(ordered[at:]))
    clear = min(at, num - at) >= _FEWEST * num and between.max() >= _EXPLAINED * num * logs.var()
    return Modes(at / num, ready_ns, waited_ns) if clear and waited_ns >= _APART * ready_ns else None


def _row(loader: Loader, rank: int) -> tuple[Cell, ...]:
    times = (value for ns in (loader.fetch_ns[rank], loader.h2d_ns[rank]) for value in _three(ns))
    return (rank, *times, float(loader.rates[rank]))


def _three(ns: NDArray[np.int64]) -> tuple[int, int, int]:
    return round(float(ns.mean())), round(float(np.median(ns))), round(float(np.percentile(ns, 95)))


def _figures(rows: tuple[tuple[Cell, ...], ...]) -> Table:
    return Table("loader", "", _FIGURES, rows, single=True)


def _values(loader: Loader, timings: Timings) -> tuple[Cell, ...]:
    rates, modes = loader.rates, loader.modes
    known = (timings.num_warmup, timings.step_ns.shape[1], loader.fetch_ns.shape[1])
    speeds = (float(rates.min()), float(rates.mean()), float(rates.max()), loader.ceiling)
    if modes is None:
        return (*known, *speeds, False, None, None, None, None)
    return (
        *known,
        *speeds,
        True,
        100 * modes.ready,
        round(modes.ready_ns),
        round(modes.waited_ns),
        modes.batches_per_wait,
    )


def _view(loader: Loader, rows: Sequence[tuple[Cell, ...]], manifest: Manifest) -> Table:
    """The slowest ranks, and what follows for the job."""
    slowest = sorted(rows, key=lambda row: float(row[-1] or 0))[:MOST_RANKS]
    shown = tuple(row for row in rows if row in slowest)
    note = " ".join([_pace(loader), _explained(loader, manifest), more_rows(len(rows) - len(shown))]).strip()
    title = f"A loader alone, by rank (batches of each: {loader.fetch_ns.shape[1]:,})"
    return Table("loader_ranks", title, _RANKS, shown, note=note)


def _pace(loader: Loader) -> str:
    """`Batches a second: 163 to 171 over ranks, mean 167: the job is fed 1,304 samples/s at most.`"""
    low, mean, high = (format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN) for rate in _spread(loader))
    spread = f"{low} to {high} over ranks, mean {mean}" if len(loader.rates) > 1 else mean
    ceiling = f": the job is fed {format_value(loader.ceiling, Unit.COUNT)} samples/s at most" if loader.ceiling else ""
    return f"Batches a second: {spread}{ceiling}."


def _spread(loader: Loader) -> tuple[float, float, float]:
    return float(loader.rates.min()), float(loader.rates.mean()), float(loader.rates.max())


def _explained(loader: Loader, manifest: Manifest) -> str:
    """Why fetches are of two kinds, or that they are not."""
    workers, in_hand = manifest.parameters.get("num_workers"), _in_hand(manifest)
    if loader.modes is None:
        return "All batches take alike: the loop makes them itself." if workers == 0 else ""
    modes = loader.modes
    ready, waited = (format_value(ns, Unit.NS) for ns in (modes.ready_ns, modes.waited_ns))
    hand = f"; up to {in_hand} (num_workers x prefetch_factor) can lie ready" if in_hand else ""
    bursts = f", as {workers} workers deliver in bursts" if isinstance(workers, int) and workers > 1 else ""
    return (
        f"Bimodal: {format_value(100 * modes.ready, Unit.PERCENT)} of the batches lay ready ({ready}), for the others "
        f"the loop waited ({waited}): {modes.batches_per_wait:.1f} batches a wait{bursts}{hand}."
    )
