"""`traceq show PATH`: steps, phases, syncs, collectives and copies of any Kineto trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.errors import UsageFault

__all__ = ["command"]


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="A trace, a folder of rank traces, a run, or RUN/ARM.")
    ],
    only: Annotated[
        list[str] | None, typer.Option(metavar="ANALYSIS", help="Only this analysis; can be repeated.")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to read, like 0,8,16-31.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a trace that is damaged in any way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Tables to paste into an issue.")] = False,
) -> None:
    """Show what a trace holds: the step, where its time goes, what the host waited for, what the ranks exchanged."""
    from traceq.analyses.sheet import sheet
    from traceq.commands._output import print_caveats, stdout
    from traceq.commands._ranks import parse_ranks
    from traceq.renderers.json import sheet_to_json
    from traceq.renderers.markdown import sheet_to_markdown
    from traceq.renderers.text import print_sheet
    from traceq.runs.read import read

    if as_json and as_markdown:
        raise UsageFault("--json and --markdown: choose one")
    chosen = parse_ranks(ranks)
    for path in paths:
        found = sheet(read(path, strict=strict, ranks=chosen), only or ())
        if as_json:
            typer.echo(sheet_to_json(found))
        elif as_markdown:
            typer.echo(sheet_to_markdown(found), nl=False)
        else:
            print_sheet(found, stdout())
        if not as_json:
            print_caveats(found.all_caveats)
