"""`traceq query PATH "SQL"`: SQL over the events of a run and the facts derived from them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from traceq.commands._options import CLUSTER, MEMORY, PATH, RANKS, engine_for
from traceq.commands._output import print_caveats, print_table, shown_work
from traceq.engines.analyze_path import opened_tables
from traceq.escaping import escape_json
from traceq.frames.sql import ask_tables
from traceq.frames.tables import concat_ranks
from traceq.report import Column, Table
from traceq.runs.read import parse_ranks
from traceq.runs.run_folder import to_json_bytes
from traceq.units import Unit

_MOST_ROWS = 1000


def command(
    path: Annotated[str, PATH],
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="Over the tables events, device_ops, launches, syncs, collectives, phases, partition, steps.",
        ),
    ],
    ranks: Annotated[str | None, RANKS] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Every row, one JSON object a line.")] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Let the query use files, network, extensions and settings, too.")
    ] = False,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
) -> None:
    """Ask a run in SQL (DuckDB): `describe syncs` says what a table holds."""
    if unsafe:
        typer.echo("traceq: note: --unsafe: the query may read and write any file, and use the network", err=True)
    engine = engine_for(memory, cluster)
    with (
        shown_work("querying") as on_progress,
        opened_tables(
            engine.path(path),
            start=engine.start,
            small=engine.small,
            ranks=parse_ranks(ranks),
            on_progress=on_progress,
        ) as (run, tables),
    ):
        answer = ask_tables(lambda names: concat_ranks(tables(names)), sql, unsafe=unsafe)
    if as_json:
        for row in answer.rows:
            typer.echo(escape_json(to_json_bytes(dict(zip(answer.columns, row, strict=True))).decode()))
        return
    columns = tuple(
        Column(name, name, Unit.TEXT if is_text else Unit.MEAN)
        for name, is_text in zip(answer.columns, answer.is_text, strict=True)
    )
    rows = tuple(islice(answer.rows, _MOST_ROWS))
    note = f"More than {_MOST_ROWS:,} rows: --json has them all." if next(answer.rows, None) else ""
    print_table(Table("query", "", columns, rows, note=note))
    print_caveats(run.caveats)
