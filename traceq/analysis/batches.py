"""Which batch is the largest that fits, and which is the fastest?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceq.analysis.arms import batch_of, step_of
from traceq.facts.ranks.job import Job
from traceq.model import Arm, Manifest, Processes, Trace
from traceq.report import Cell, Column, Report, Table
from traceq.units import Unit, format_value

__all__ = ["merge", "summarize"]

POSITION = 4.5

_SUMMARY = (
    Column("backend", "backend"),
    Column("largest", "largest batch a rank", Unit.COUNT),
    Column("refused", "refused", Unit.COUNT),
    Column("fastest", "fastest", Unit.COUNT),
    Column("samples_per_second", "samples", Unit.RATE),
    Column("allocated_bytes", "in use", Unit.BYTES),
    Column("fragmentation_bytes", "held beyond", Unit.BYTES),
    Column("head_room_bytes", "head-room", Unit.BYTES),
)
_NOTE = "Memory is that of the largest batch on the fullest rank; held beyond: by the allocator, not in use."


@dataclass(frozen=True, slots=True)
class _Try:
    """An arm as a try of a batch; `rate` in samples a second, None where no step was timed."""

    arm: Arm
    size: int
    rate: float | None

    @property
    def fits(self) -> bool:
        """It came to its end, or so far that its memory was noted."""
        return not self.arm.status and "head_room_bytes" in self.arm.facts

    @property
    def told(self) -> str:
        """`206 /s`, or how it ended."""
        return self.arm.status or (format_value(self.rate, Unit.RATE) if self.rate else "fits" * self.fits)


def summarize(trace: Trace) -> None:
    """Nothing: profiled steps have no part in it."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Views alone, of arms that try several batches and note what memory they take: samples a second by batch and
    backend, then the largest batch of each backend. `arms` has the numbers.
    """
    manifest = job.manifest
    noted = manifest is not None and any("head_room_bytes" in arm.facts for arm in manifest.arms)
    if manifest is None or not noted or len({batch_of(manifest, arm) for arm in manifest.arms}) < 2:
        return Report("batches")
    backends = _backends(manifest, job.processes)
    return Report("batches", views=(_matrix(backends), _summary(backends)))


def _backends(manifest: Manifest, processes: Sequence[Processes]) -> dict[str, list[_Try]]:
    """Tries of each backend, by ascending batch. Arms that vary in the same but the batch are one backend."""
    steps = {found.arm: step_of(found) for found in processes}
    found: dict[str, list[_Try]] = {}
    for arm in manifest.arms:
        size, step_ns = batch_of(manifest, arm), steps.get(arm.name)
        if size is not None and arm.status != "skipped":
            rate = arm.samples_per_step * 1e9 / step_ns if step_ns else None
            found.setdefault(_name(arm), []).append(_Try(arm, size, rate))
    return {name: sorted(tries, key=lambda one: one.size) for name, tries in found.items()}


def _name(arm: Arm) -> str:
    """`ddp, expandable segments`: what the arm varies besides the batch."""
    return ", ".join(
        key.replace("_", " ") if value is True else str(value)
        for key, value in arm.varied.items()
        if key != "batch_size" and value is not False
    )


def _matrix(backends: Mapping[str, Sequence[_Try]]) -> Table:
    sizes = sorted({one.size for tries in backends.values() for one in tries})
    cells = {(name, one.size): one.told for name, tries in backends.items() for one in tries}
    columns = (Column("batch", "batch a rank", Unit.COUNT), *(Column(name, name) for name in backends))
    rows: list[tuple[Cell, ...]] = [(size, *(cells.get((name, size), "") for name in backends)) for size in sizes]
    return Table("batches", "Samples a second of all ranks, by batch", columns, tuple(rows))


def _summary(backends: Mapping[str, Sequence[_Try]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, tries in backends.items():
        fitting = [one for one in tries if one.fits]
        largest = fitting[-1] if fitting else None
        fastest = max((one for one in fitting if one.rate), key=lambda one: one.rate or 0, default=None)
        facts = largest.arm.facts if largest else {}
        allocated, reserved = facts.get("allocated_bytes"), facts.get("reserved_bytes")
        beyond = reserved - allocated if isinstance(allocated, int) and isinstance(reserved, int) else None
        refused = min((one.size for one in tries if one.arm.status), default=None)
        rows.append(
            (
                name,
                largest.size if largest else 0,
                refused,
                fastest.size if fastest else None,
                fastest.rate if fastest else None,
                allocated,
                beyond,
                facts.get("head_room_bytes"),
            )
        )
    return Table("batches", "The largest batch that fits", _SUMMARY, tuple(rows), note=_NOTE)
