"""What `open` and `export` put into a Perfetto trace: a run, or two traces one above the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from traceq.errors import UsageFault

if TYPE_CHECKING:
    from traceq.model import Caveat
    from traceq.renderers.perfetto import WorstPlace

__all__ = ["View", "view"]


@dataclass(frozen=True, slots=True)
class View:
    """A trace to be written, what the viewer does with it, and what is worth a look in it."""

    write: Callable[[BinaryIO], None]
    commands: Sequence[tuple[str, tuple[str, ...]]]
    place: WorstPlace
    caveats: Iterable[Caveat]


def view(path: str, other: str | None, ranks: set[int] | None) -> View:
    """Of one path its run, of two their diff. Raises UnreadableInput, UsageFault."""
    return _of_run(path, ranks) if other is None else _of_pair(path, other, ranks)


def _of_run(path: str, ranks: set[int] | None) -> View:
    from traceq.analysis.registry import sheet
    from traceq.renderers.perfetto import startup_commands, worst_place, write_perfetto
    from traceq.runs.read import read, with_traces

    found = sheet(run := with_traces(read(path, ranks=ranks)))
    place = worst_place(run, found.findings)
    return View(partial(write_perfetto, run, found.findings), startup_commands(place), place, found.all_caveats)


def _of_pair(path: str, other: str, ranks: set[int] | None) -> View:
    from traceq.compare.diff import diff_runs
    from traceq.renderers.perfetto import pair_commands, pair_place, write_pair
    from traceq.runs.read import read, with_traces

    a, b = (with_traces(read(side, ranks=ranks)) for side in (path, other))
    found = diff_runs(a, b)
    if found.traced is None:
        raise UsageFault(f"{path} and {other}: no rank was traced on both sides, so there is no pair to show")
    return View(partial(write_pair, a, b, found), pair_commands(), pair_place(a, b, found), found.caveats)
