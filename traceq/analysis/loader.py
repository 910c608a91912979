"""Can the input pipeline keep up: how fast is it alone, and which cores do its workers share with the step?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._core_use import CoreUseRow, core_claims, core_rows, core_view
from traceq.analysis._wording import MOST_RANKS, more_rows
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Manifest, Timings, Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

FETCH, TO_DEVICE = "fetch", "h2d"
_MIN_SHARE, _MIN_RATIO, _MIN_EXPLAINED = 0.05, 4.0, 0.8
"""Fetches are bimodal if each mode has this share, the medians differ by this factor, and the split explains this much
of the variance of their logarithms (of evenly spread ones any split explains at most 0.75)."""


@frozen
class LoaderRankRow:
    """Times of a batch: `fetch` from the loader, and `h2d`, the copy to the device, by its clock."""

    rank: int = column("rank", Unit.COUNT)
    fetch_mean_ns: int = column("fetch, mean", Unit.NS)
    fetch_median_ns: int = column("fetch, median", Unit.NS)
    fetch_p95_ns: int = column("fetch, p95", Unit.NS)
    h2d_mean_ns: int = column("h2d, mean", Unit.NS)
    h2d_median_ns: int = column("h2d, median", Unit.NS)
    h2d_p95_ns: int = column("h2d, p95", Unit.NS)
    batches_per_sec: float = column("batches/s", Unit.MEAN)


@frozen
class LoaderRow:
    """A data loader alone: its rates over ranks, and the modes of bimodal fetches."""

    warmup: int = column(unit=Unit.COUNT)
    measured: int = column(unit=Unit.COUNT)
    counted: int = column(unit=Unit.COUNT)
    """Not prefetched while the recording paused."""
    batches_per_sec_min: float = column(unit=Unit.MEAN)
    batches_per_sec_mean: float = column(unit=Unit.MEAN)
    batches_per_sec_max: float = column(unit=Unit.MEAN)
    samples_per_sec_ceiling: float | None = column(unit=Unit.MEAN)
    """All ranks at the slowest's pace."""
    bimodal: bool = column()
    ready_pct: float | None = column(unit=Unit.PERCENT)
    ready_ns: int | None = column(unit=Unit.NS)
    waited_ns: int | None = column(unit=Unit.NS)
    batches_per_wait: float | None = column(unit=Unit.MEAN)


@frozen
class Modes:
    """Median fetches of batches that were ready and of those that the loop waited for; `ready`: share of the first."""

    ready: float
    ready_ns: float
    waited_ns: float

    @property
    def batches_per_wait(self) -> float:
        """Batches for each one that is waited for, itself included."""
        return 1 / (1 - self.ready)


@frozen(eq=False)
class Loader:
    """Recording of a data loader alone on R ranks, over the S batches that count.

    `fetch_ns` and `h2d_ns` int64[R, S]; `rates` float64[R] batches per second. `samples` of a batch of all ranks
    together, 0 where unknown. `modes` None where fetches are not bimodal.
    """

    fetch_ns: NDArray[np.int64]
    h2d_ns: NDArray[np.int64]
    rates: NDArray[np.float64]
    samples: int
    modes: Modes | None

    @property
    def batch_ns(self) -> float:
        """Time of a batch on the slowest rank, ns."""
        return 1e9 / float(self.rates.min())

    @property
    def ceiling(self) -> float | None:
        """Samples per second of a job that does nothing else, at the pace of its slowest rank; None if unknown."""
        return float(self.rates.min()) * self.samples if self.samples else None


def summarize(trace: Trace) -> None:
    """Return nothing: only unprofiled batches count."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return fetches, copies and rates of each rank of a loader alone; of steps, the CPU time of their processes."""
    manifest, timings = job.manifest, job.timings
    loader = loader_of(manifest, job.arm, timings)
    if loader is None or timings is None or manifest is None:
        cores = core_rows(job)
        views = (core_view(job, cores),) if cores else ()
        return Report("loader", _tables([], [], cores), views, findings=tuple(core_claims(job)))
    rows = [_rank_row(loader, index) for index in range(len(loader.rates))]
    return Report("loader", _tables([_row(loader, timings)], rows), (_view(loader, rows, manifest),))


def _tables(
    total: Sequence[LoaderRow], ranks: Sequence[LoaderRankRow], cores: Sequence[CoreUseRow] = ()
) -> tuple[Table, ...]:
    return (
        Table.of("loader", "", LoaderRow, total, single=True),
        Table.of("loader_ranks", "", LoaderRankRow, ranks),
        Table.of("core_use", "", CoreUseRow, cores),
    )


def is_loader_alone(manifest: Manifest | None) -> bool:
    """Return whether the phases are `fetch` and `h2d` and nothing else."""
    return manifest is not None and manifest.phases == (FETCH, TO_DEVICE)


def loader_of(manifest: Manifest | None, arm_name: str, timings: Timings | None) -> Loader | None:
    """Return the recording of a loader alone; None for any other.

    Batches that could have been prefetched while the recording paused do not count.
    """
    if timings is None or manifest is None or not is_loader_alone(manifest):
        return None
    arm = manifest.arm(arm_name)
    fetch, copy = (timings.phases.index(name) for name in (FETCH, TO_DEVICE))
    counts = timings.since_pause >= _max_prefetched(manifest)
    counts = counts if counts.any() else ~counts
    fetch_ns = timings.host_phase_ns[:, counts, fetch]
    return Loader(
        fetch_ns=fetch_ns,
        h2d_ns=timings.phase_ns[:, counts, copy],
        rates=1e9 / timings.step_ns[:, counts].mean(axis=1),
        samples=arm.samples_per_step if arm else 0,
        modes=_modes(fetch_ns.ravel()),
    )


def _max_prefetched(manifest: Manifest) -> int:
    """Return the most batches that can be ready: `num_workers` times `prefetch_factor`, 0 where unknown."""
    values = (manifest.parameters.get(key) for key in ("num_workers", "prefetch_factor"))
    workers, factor = (int(value) if isinstance(value, int) else 0 for value in values)
    return workers * factor


def _modes(fetch_ns: NDArray[np.int64]) -> Modes | None:
    """Return the split of fetches in two that leaves least variance of their logarithms, if that is a clear one."""
    ordered = np.sort(fetch_ns)
    logs, num = np.log(np.maximum(ordered, 1)), len(ordered)
    sizes = np.arange(1, num)
    below = np.cumsum(logs)[:-1]
    between = sizes * (num - sizes) * (below / sizes - (logs.sum() - below) / (num - sizes)) ** 2 / num
    if not between.size or logs.var() == 0:
        return None
    split = int(between.argmax()) + 1
    ready_ns, waited_ns = float(np.median(ordered[:split])), float(np.median(ordered[split:]))
    is_clear = min(split, num - split) >= _MIN_SHARE * num and between.max() >= _MIN_EXPLAINED * num * logs.var()
    return Modes(split / num, ready_ns, waited_ns) if is_clear and waited_ns >= _MIN_RATIO * ready_ns else None


def _rank_row(loader: Loader, index: int) -> LoaderRankRow:
    fetch, h2d = loader.fetch_ns[index], loader.h2d_ns[index]
    return LoaderRankRow(
        rank=index,
        fetch_mean_ns=round(float(fetch.mean())),
        fetch_median_ns=round(float(np.median(fetch))),
        fetch_p95_ns=round(float(np.percentile(fetch, 95))),
        h2d_mean_ns=round(float(h2d.mean())),
        h2d_median_ns=round(float(np.median(h2d))),
        h2d_p95_ns=round(float(np.percentile(h2d, 95))),
        batches_per_sec=float(loader.rates[index]),
    )


def _row(loader: Loader, timings: Timings) -> LoaderRow:
    low, mean, high = _range(loader)
    modes = loader.modes
    return LoaderRow(
        warmup=timings.num_warmup,
        measured=timings.step_ns.shape[1],
        counted=loader.fetch_ns.shape[1],
        batches_per_sec_min=low,
        batches_per_sec_mean=mean,
        batches_per_sec_max=high,
        samples_per_sec_ceiling=loader.ceiling,
        bimodal=modes is not None,
        ready_pct=100 * modes.ready if modes else None,
        ready_ns=round(modes.ready_ns) if modes else None,
        waited_ns=round(modes.waited_ns) if modes else None,
        batches_per_wait=modes.batches_per_wait if modes else None,
    )


def _range(loader: Loader) -> tuple[float, float, float]:
    """Return (min, mean, max) of batches per second over ranks."""
    return float(loader.rates.min()), float(loader.rates.mean()), float(loader.rates.max())


def _view(loader: Loader, rows: Sequence[LoaderRankRow], manifest: Manifest) -> Table:
    """Return the slowest ranks, and the rate at which the job can be fed."""
    slowest = sorted(rows, key=lambda row: row.batches_per_sec)[:MOST_RANKS]
    shown = [row for row in rows if row in slowest]
    note = " ".join([_pace(loader), _explained(loader, manifest), more_rows(len(rows) - len(shown))]).strip()
    title = f"Data loader alone, by rank (batches per rank: {loader.fetch_ns.shape[1]:,})"
    view = Table.of("loader_ranks", title, LoaderRankRow, shown, note=note)
    if manifest.environment.get("device") != "cpu":
        return view
    return view.without("h2d_mean_ns", "h2d_median_ns", "h2d_p95_ns")  # nothing is copied to a device


def _pace(loader: Loader) -> str:
    """Return `Batches per second: 163 to 171 over ranks, mean 167; feeds at most 1,304 samples/s.`."""
    low, mean, high = (format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN) for rate in _range(loader))
    rates = f"{low} to {high} over ranks, mean {mean}" if len(loader.rates) > 1 else mean
    ceiling = f"; feeds at most {format_value(loader.ceiling, Unit.COUNT)} samples/s" if loader.ceiling else ""
    return f"Batches per second: {rates}{ceiling}."


def _explained(loader: Loader, manifest: Manifest) -> str:
    """Return why fetches are bimodal, or why they are not."""
    workers, max_prefetched = manifest.parameters.get("num_workers"), _max_prefetched(manifest)
    if loader.modes is None:
        return (
            "The loop makes its batches itself (num_workers=0): none is ready before it is needed."
            if workers == 0
            else ""
        )
    modes = loader.modes
    ready, waited = (format_value(ns, Unit.NS) for ns in (modes.ready_ns, modes.waited_ns))
    limit = f"; up to {max_prefetched} (num_workers x prefetch_factor) can be ready" if max_prefetched else ""
    bursts = f", as {workers} workers deliver in bursts" if isinstance(workers, int) and workers > 1 else ""
    return (
        f"Bimodal: {format_value(100 * modes.ready, Unit.PERCENT)} of the batches were ready ({ready}), for the others "
        f"the loop waited ({waited}): {modes.batches_per_wait:.1f} batches per wait{bursts}{limit}."
    )
