"""`traceq history add|show|compare|tag`: what runs measured, kept in a folder or bucket, and where it changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.commands._options import CLUSTER, HTML, JSON, MARKDOWN, MEMORY, WIDTH, engine_for
from traceq.commands._output import chosen_form, print_caveats, shown_work, write_result, write_sheet
from traceq.compare.result import Diffs
from traceq.display import RenderOptions
from traceq.history.adding import add_run
from traceq.history.comparing import compare_runs
from traceq.history.events import find_run, history_of
from traceq.history.store import append_tag
from traceq.history.tables import history_sheet
from traceq.locations import place

_STORE = typer.Option(metavar="DIR", help="The store: a folder, or the URL of a bucket.")
_BRANCH = typer.Option(help="The branch; else that of the latest run.")
_DEFAULT_STORE = "traceq-history"


def command(ctx: typer.Context) -> None:
    """Keep what runs measured, and say where that changed; alone it shows the store traceq-history."""
    if ctx.invoked_subcommand is None:
        show()


def add(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="A recorded run, one arm of it, or a trace; or its URL."),
    ],
    store: Annotated[str, _STORE] = _DEFAULT_STORE,
    branch: Annotated[str | None, typer.Option(help="The branch of the runs; else that of git, or of CI.")] = None,
    commit: Annotated[str | None, typer.Option(help="The commit; else the recorded one, or that of git.")] = None,
    to: Annotated[str | None, typer.Option(metavar="wandb|mlflow|otlp", help="Who gets the measures, too.")] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Add what runs measured. Several programs may add at once."""
    engine = engine_for(memory, cluster)
    for path in paths:
        with shown_work("analysing"):
            added = add_run(place(store), path, branch, commit, start=engine.start, small=engine.small, sink=to)
        typer.echo(added)


def show(
    store: Annotated[str, _STORE] = _DEFAULT_STORE,
    branch: Annotated[str | None, _BRANCH] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="List the commits between the runs of a change.")] = False,
    as_json: Annotated[bool, JSON] = False,
    as_markdown: Annotated[bool, MARKDOWN] = False,
    html: Annotated[Path | None, HTML] = None,
    width: Annotated[int | None, WIDTH] = None,
) -> None:
    """Show the measures of a branch. Where one changed, tell at which commit, and why."""
    form = chosen_form(as_json=as_json, as_markdown=as_markdown, html=html, to=None)
    with shown_work("looking for changes"):
        history = history_of(place(store), branch, bisect=bisect)
    if form.renderer in ("json", "markdown"):
        write_sheet(history_sheet(history), form, RenderOptions())
        return
    write_result("history", history, form, RenderOptions(width))
    print_caveats(history.caveats)


def compare(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run by its path, commit or tag; else the latest.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TAG", help="A tag, commit or path; else the newest run of main.")
    ] = None,
    store: Annotated[str, _STORE] = _DEFAULT_STORE,
    as_json: Annotated[bool, JSON] = False,
    as_markdown: Annotated[bool, MARKDOWN] = False,
    width: Annotated[int | None, WIDTH] = None,
) -> None:
    """Compare a run with a baseline. Each measure has a verdict; the diff follows if both runs are still there."""
    form = chosen_form(as_json=as_json, as_markdown=as_markdown, html=None, to=None)
    with shown_work("comparing"):
        comparison = compare_runs(place(store), run, to)
    write_sheet(comparison.sheet, form, RenderOptions(width, full=True))
    for diff in comparison.diffs if form.renderer != "json" else ():
        write_result("diffs", Diffs(diff.a_name, (diff,)), form, RenderOptions(width))


def tag(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name, like v1.4.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run by its path, commit or another tag.")],
    store: Annotated[str, _STORE] = _DEFAULT_STORE,
) -> None:
    """Name a run to compare others with. A name can be given again, and the last one counts."""
    tagged = find_run(place(store), run)
    append_tag(place(store), name, tagged.row.run_id)
    typer.echo(f"{name}: {tagged.row.run_id} at {tagged.name} of {tagged.row.branch}")


SUBCOMMANDS = {"add": add, "show": show, "compare": compare, "tag": tag}
"""Commands below this one, by name."""
