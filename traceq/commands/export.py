"""`traceq export PATH --to perfetto|parquet`: a run in another program's format, with what traceq found in it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.errors import TraceqError, UsageFault
from traceq.locations import place

if TYPE_CHECKING:
    from traceq.model import Caveat

__all__ = ["command", "export_name"]


class Format(StrEnum):
    """What can be written."""

    PERFETTO = "perfetto"
    PARQUET = "parquet"


def command(
    path: Annotated[str, typer.Argument(help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL.")],
    other: Annotated[
        str | None, typer.Argument(metavar="[B]", help="With a second one: both, one above the other (Perfetto).")
    ] = None,
    *,
    to: Annotated[Format, typer.Option(help="A trace for the Perfetto UI, or a folder of tables.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file, packed if its name ends in .gz; or the folder.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to read, like 0,8,16-31.")] = None,
) -> None:
    """Write a run for other programs: exact times, all ranks, and what traceq found beside what was recorded."""
    from traceq.commands._output import print_caveats
    from traceq.commands._ranks import parse_ranks

    if other is not None and to is Format.PARQUET:
        raise UsageFault("--to parquet: tables are of one run; export the two one by one")
    target = output or Path(export_name(path, other, to))
    if output is None and target.exists():
        raise UsageFault(f"{target} exists; name the file with -o to replace it")
    chosen = parse_ranks(ranks)
    caveats = _to_perfetto(path, other, chosen, target) if to is Format.PERFETTO else _to_parquet(path, chosen, target)
    typer.echo(target)
    print_caveats(caveats)


def export_name(path: str, other: str | None = None, to: Format = Format.PERFETTO) -> str:
    """`trace.json.gz` -> `trace.pftrace.gz`; a run or arm by its folder's name; a pair by both."""
    names = []
    for side in (path, other):
        name = (found.resolve() if isinstance(found := place(side), Path) else found).name if side else ""
        for ending in (".gz", ".zst", ".json"):
            name = name.removesuffix(ending)
        names.append(name)
    name = "-against-".join(name for name in reversed(names) if name)
    return f"{name}.pftrace.gz" if to is Format.PERFETTO else f"{name}.parquet"


def _to_perfetto(path: str, other: str | None, ranks: set[int] | None, target: Path) -> Iterable[Caveat]:
    from traceq.commands._file import written
    from traceq.commands._perfetto import view

    found = view(path, other, ranks)
    with written(target) as file:
        found.write(file)
    return found.caveats


def _to_parquet(path: str, ranks: set[int] | None, target: Path) -> Iterable[Caveat]:
    from traceq.frames import frames
    from traceq.renderers.parquet import write_parquet
    from traceq.runs.read import read, with_traces

    run = with_traces(read(path, ranks=ranks))
    try:
        target.mkdir(exist_ok=True)
        write_parquet(frames(run), target)
    except OSError as fault:
        raise TraceqError(f"{target}: {(fault.strerror or str(fault)).lower()}") from fault
    return run.caveats
