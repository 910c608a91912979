"""`traceq export PATH --to perfetto|parquet`: a run in another program's format, with what traceq found in it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.errors import TraceqError, UsageFault

if TYPE_CHECKING:
    from traceq.model import Run

__all__ = ["command", "export_name"]


class Format(StrEnum):
    """What can be written."""

    PERFETTO = "perfetto"
    PARQUET = "parquet"


def command(
    path: Annotated[Path, typer.Argument(help="A trace, a folder of rank traces, a run, or RUN/ARM.")],
    to: Annotated[Format, typer.Option(help="A trace for the Perfetto UI, or a folder of tables.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file, packed if its name ends in .gz; or the folder.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to read, like 0,8,16-31.")] = None,
) -> None:
    """Write a run for other programs: exact times, all ranks, and what traceq found beside what was recorded."""
    from traceq.commands._output import print_caveats
    from traceq.commands._ranks import parse_ranks
    from traceq.runs.read import read, with_traces

    target = output or Path(export_name(path, to))
    if output is None and target.exists():
        raise UsageFault(f"{target} exists; name the file with -o to replace it")
    run = with_traces(read(path, ranks=parse_ranks(ranks)))
    (_to_perfetto if to is Format.PERFETTO else _to_parquet)(run, target)
    typer.echo(target)
    print_caveats(run.caveats)


def export_name(path: Path, to: Format = Format.PERFETTO) -> str:
    """`trace.json.gz` -> `trace.pftrace.gz`; a run or arm by its folder's name."""
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json"):
        name = name.removesuffix(ending)
    return f"{name}.pftrace.gz" if to is Format.PERFETTO else f"{name}.parquet"


def _to_perfetto(run: Run, target: Path) -> None:
    from traceq.analyses.sheet import sheet
    from traceq.commands._file import written
    from traceq.renderers.perfetto import write_perfetto

    findings = sheet(run).findings
    with written(target) as file:
        write_perfetto(run, findings, file)


def _to_parquet(run: Run, target: Path) -> None:
    from traceq.frames import frames
    from traceq.renderers.parquet import write_parquet

    try:
        target.mkdir(exist_ok=True)
        write_parquet(frames(run), target)
    except OSError as fault:
        raise TraceqError(f"{target}: {(fault.strerror or str(fault)).lower()}") from fault
