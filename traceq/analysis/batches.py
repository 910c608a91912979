"""Which batch size is the largest that fits, and which is the fastest?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceq.analysis import sentences
from traceq.analysis.arms import batch_of, step_of
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Arm, Manifest, Processes, Trace
from traceq.report import Cell, Column, Report, Table, column
from traceq.units import Unit, format_value


@frozen
class BackendRow:
    """The batches of one backend: the largest that fits, the smallest that failed, and the fastest.

    Bytes are those of the largest batch, as recorded by the recipe; of a job, the most that any rank used.
    """

    backend: str = column("backend")
    largest: int = column("largest batch per rank", Unit.COUNT)
    refused: int | None = column("fails at", Unit.COUNT)
    fastest: int | None = column("fastest", Unit.COUNT)
    samples_per_second: float | None = column("samples", Unit.RATE)
    allocated_bytes: Cell = column("allocated", Unit.BYTES)
    fragmentation_bytes: int | None = column("reserved, unused", Unit.BYTES)
    head_room_bytes: Cell = column("headroom", Unit.BYTES)


@frozen
class _Try:
    """An arm as a try of a batch size; `rate` in samples per second, None where no step was timed.

    `peak_bytes`: most memory of any rank, None without a timed step.
    """

    arm: Arm
    size: int
    rate: float | None
    peak_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether it completed, or came far enough to have its memory recorded."""
        return not self.arm.status and ("head_room_bytes" in self.arm.facts or self.peak_bytes is not None)

    @property
    def text(self) -> str:
        """`206 /s`, or how it ended."""
        return self.arm.status or (format_value(self.rate, Unit.RATE) if self.rate else "fits" * self.fits)


def summarize(trace: Trace) -> None:
    """Return nothing: only unprofiled steps count."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return samples per second by batch and backend, then the largest batch of each backend.

    Views alone, of a job or recipe whose arms try several batches, and record their memory; `arms` has the numbers.
    """
    manifest = job.manifest
    if manifest is None or len({batch_of(manifest, arm) for arm in manifest.arms}) < 2:
        return Report("batches")
    if manifest.recipe and not any("head_room_bytes" in arm.facts for arm in manifest.arms):
        return Report("batches")
    backends = _backends(manifest, job.processes)
    rows = [_row(name, tries) for name, tries in backends.items()]
    summary = Table.of("batches", sentences.LARGEST_BATCH, BackendRow, rows, note=sentences.OF_LARGEST_BATCH)
    return Report("batches", views=(_matrix(backends), summary))


def _backends(manifest: Manifest, processes: Sequence[Processes]) -> dict[str, list[_Try]]:
    """Return tries of each backend, by ascending batch; arms that vary only in the batch are one backend."""
    timed = {each.arm: each for each in processes}
    backends: dict[str, list[_Try]] = {}
    for arm in manifest.arms:
        size, steps = batch_of(manifest, arm), timed.get(arm.name)
        if size is not None and arm.status != "skipped":
            step_ns = step_of(steps)
            rate = arm.samples_per_step * 1e9 / step_ns if step_ns else None
            peak_bytes = int(steps.peak_bytes.max()) if steps else None
            backends.setdefault(_name(arm) or "this job", []).append(_Try(arm, size, rate, peak_bytes))
    return {name: sorted(tries, key=lambda each: each.size) for name, tries in backends.items()}


def _name(arm: Arm) -> str:
    """Return `ddp, expandable segments`: what the arm varies besides the batch; "" for nothing."""
    return ", ".join(
        key.replace("_", " ") if value is True else str(value)
        for key, value in arm.varied.items()
        if key != "batch_size" and value is not False
    )


def _matrix(backends: Mapping[str, Sequence[_Try]]) -> Table:
    """Return a row for each batch size and a column for each backend."""
    sizes = sorted({each.size for tries in backends.values() for each in tries})
    texts = {(name, each.size): each.text for name, tries in backends.items() for each in tries}
    columns = (Column("batch", "batch per rank", Unit.COUNT), *(Column(name, name) for name in backends))
    rows: list[tuple[Cell, ...]] = [(size, *(texts.get((name, size), "") for name in backends)) for size in sizes]
    return Table("batches", sentences.BATCHES, columns, tuple(rows))


def _row(name: str, tries: Sequence[_Try]) -> BackendRow:
    fitting = [each for each in tries if each.fits]
    largest = fitting[-1] if fitting else None
    fastest = max((each for each in fitting if each.rate), key=lambda each: each.rate or 0, default=None)
    facts = largest.arm.facts if largest else {}
    allocated, reserved = facts.get("allocated_bytes"), facts.get("reserved_bytes")
    return BackendRow(
        backend=name,
        largest=largest.size if largest else 0,
        refused=min((each.size for each in tries if each.arm.status), default=None),
        fastest=fastest.size if fastest else None,
        samples_per_second=fastest.rate if fastest else None,
        allocated_bytes=allocated if allocated is not None or largest is None else largest.peak_bytes,
        fragmentation_bytes=reserved - allocated if isinstance(allocated, int) and isinstance(reserved, int) else None,
        head_room_bytes=facts.get("head_room_bytes"),
    )
