"""`traceq export PATH --to perfetto`: a run in another program's format, with what traceq found in it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from traceq.errors import UsageFault

__all__ = ["command", "export_name"]


class Format(StrEnum):
    """What can be written."""

    PERFETTO = "perfetto"


def command(
    path: Annotated[Path, typer.Argument(help="A trace, a folder of rank traces, a run, or RUN/ARM.")],
    to: Annotated[Format, typer.Option(help="The format.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; packed if its name ends in .gz.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to read, like 0,8,16-31.")] = None,
) -> None:
    """Write a run as a Perfetto trace: exact times, all ranks on one clock, and what traceq found as tracks."""
    from traceq.analyses.sheet import sheet
    from traceq.commands._file import written
    from traceq.commands._output import print_caveats
    from traceq.commands._ranks import parse_ranks
    from traceq.renderers.perfetto import write_perfetto
    from traceq.runs.read import read

    target = output or Path(export_name(path))
    if output is None and target.exists():
        raise UsageFault(f"{target} exists; name the file with -o to replace it")
    found = sheet(run := read(path, ranks=parse_ranks(ranks)))
    with written(target) as file:
        write_perfetto(run, found.findings, file)
    typer.echo(target)
    print_caveats(found.all_caveats)


def export_name(path: Path) -> str:
    """`trace.json.gz` -> `trace.pftrace.gz`; a run or arm by its folder's name."""
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json"):
        name = name.removesuffix(ending)
    return f"{name}.pftrace.gz"
