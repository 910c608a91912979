"""`traceq export PATH --to perfetto|parquet`: a run in another program's format, with traceq's findings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from traceq.commands._engine import CLUSTER, MEMORY, Reading, engine_for
from traceq.commands._output import open_replacing, print_caveats, refuse_input, shown_work
from traceq.commands._run_or_pair import export_name, read_subject
from traceq.engines.read_ranks import opened_tables
from traceq.errors import TraceqError, UsageFault
from traceq.frames import NAMES
from traceq.frames.tables import concat_ranks
from traceq.model import Caveat
from traceq.renderers import export_suffix, find_renderer, renders
from traceq.runs.read import parse_ranks


def command(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL.")
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="B", help="With a second one: both, one above the other (Perfetto).")
    ] = None,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="perfetto|parquet|NAME", help="A trace for the Perfetto UI, a folder of tables, or a plugin's form."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file, packed if its name ends in .gz; or the folder.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to read, like 0,8,16-31.")] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Write a run for other programs: exact times, all ranks, and traceq's findings beside the recorded events."""
    is_folder = renders(to, "tables")
    if other is not None and is_folder:
        raise UsageFault(f"--to {to}: tables are of one run; export the two one by one")
    find_renderer(to, "tables" if is_folder else "run" if other is None else "pair")  # or refuse, before reading
    target = output or Path(export_name(path, other, export_suffix(to)))
    if output is None and target.exists():
        raise UsageFault(f"{target} exists; name the file with -o to replace it")
    refuse_input(target, (path, other))
    chosen = parse_ranks(ranks)
    if is_folder:
        caveats = _write_folder(path, chosen, to, target, engine_for(memory, cluster))
    else:
        caveats = _write_file(path, other, chosen, to, target)
    typer.echo(target)
    print_caveats(caveats)


def _write_file(path: str, other: str | None, ranks: set[int] | None, to: str, target: Path) -> Iterable[Caveat]:
    subject = read_subject(path, other, ranks)
    refuse_input(target, subject.files)
    with open_replacing(target) as file:
        subject.write(to, file)
    return subject.caveats


def _write_folder(path: str, ranks: set[int] | None, to: str, target: Path, engine: Reading) -> Iterable[Caveat]:
    with (
        shown_work("writing") as on_progress,
        opened_tables(
            engine.path(path), start=engine.start, small=engine.small, ranks=ranks, on_progress=on_progress
        ) as (run, tables),
    ):
        try:
            target.mkdir(exist_ok=True)
            if odd := [file for file in target.iterdir() if not (file.is_file() or file.is_dir())]:
                raise TraceqError(f"{odd[0]}: not a regular file; expected a folder of tables, or none")
            of_ranks = tables(NAMES)
            rows = chain.from_iterable(of_ranks) if to == "parquet" else concat_ranks(of_ranks)  # a plugin's are whole
            find_renderer(to, "tables")(rows, target)
        except OSError as fault:
            raise TraceqError(f"{target}: {(fault.strerror or str(fault)).lower()}") from fault
    return run.caveats
