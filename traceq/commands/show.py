"""`traceq show PATH`: steps, phases, syncs, collectives and copies of any Kineto trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.errors import UsageFault

if TYPE_CHECKING:
    from traceq.model import Run
    from traceq.report import Sheet

__all__ = ["command"]


def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL."),
    ],
    only: Annotated[
        list[str] | None, typer.Option(metavar="ANALYSIS", help="Only this analysis; can be repeated.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to read, like 0,8,16-31.")] = None,
    step: Annotated[
        int | None, typer.Option(metavar="K", help="Only ProfilerStep#K: its window, what it launched.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a trace that is damaged in any way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Tables to paste into an issue.")] = False,
    width: Annotated[int | None, typer.Option(min=40, help="Columns of text; else those of the terminal.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What reading many ranks may take, like 8GB; else half of what is free."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Read the ranks on this dask cluster, like tcp://host:8786.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A page with pictures, in one file that opens offline.")
    ] = None,
) -> None:
    """Show what a trace holds: the step, where its time goes, what the host waited for, what the ranks exchanged."""
    from traceq.engines.process_tuning import tune_process

    tune_process(paths)
    from traceq.commands._engine import shown_ranks, starter
    from traceq.commands._output import print_caveats, stdout
    from traceq.commands._ranks import parse_ranks
    from traceq.engines.reports import SMALL, sheet_of
    from traceq.locations import place
    from traceq.renderers.json import sheet_to_json_pieces
    from traceq.renderers.markdown import sheet_to_markdown
    from traceq.renderers.text import print_sheet

    if as_json + as_markdown + (html is not None) > 1:
        raise UsageFault("--json, --markdown and --html: choose one")
    if html is not None and len(paths) > 1:
        raise UsageFault(f"--html {html}: one file holds one path, and here are {len(paths)}")
    if memory is not None and cluster is not None:
        raise UsageFault("--memory and --cluster: the workers of a cluster have their own limits")
    chosen, start = parse_ranks(ranks), starter(memory, cluster)
    small = SMALL if cluster is None else -1
    if cluster is not None:  # its workers are elsewhere
        paths = [str(where.absolute()) if isinstance(where := place(path), Path) else path for path in paths]
    for path in paths:
        with shown_ranks() as shown:
            found, run = sheet_of(
                path, only or (), start=start, strict=strict, ranks=chosen, step=step, small=small, on_progress=shown
            )
        if html is not None:
            _write_page(html, found, run, path, strict=strict, step=step)
        elif as_json:
            for piece in sheet_to_json_pieces(found):
                typer.echo(piece, nl=False)
            typer.echo()
        elif as_markdown:
            typer.echo(sheet_to_markdown(found), nl=False)
        else:
            print_sheet(found, stdout(width))
        if not as_json:
            print_caveats(found.all_caveats)


def _write_page(html: Path, found: Sheet, run: Run, path: str, *, strict: bool, step: int | None) -> None:
    """The sheet as a page; where ranks were read one by one and let go, the first is read again, for its step."""
    from traceq.commands._file import write_page
    from traceq.renderers.html import sheet_to_html  # takes a tenth of the start, and few ask for it
    from traceq.runs.read import read
    from traceq.runs.single_step import only_step

    if not run.traces and found.source.ranks:
        run = read(path, strict=strict, ranks=set(found.source.ranks[:1]))
        run = run if step is None else only_step(run, step)
    write_page(html, sheet_to_html(found, run))
