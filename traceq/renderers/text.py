"""A sheet for a terminal: findings first, then tables."""

from __future__ import annotations

from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from traceq.report import Sheet, Source, Table
from traceq.units import Unit, format_value

__all__ = ["print_sheet", "print_table", "source_line"]

_GAP = 2
_NARROWEST = 10
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "dim"}


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Write a sheet to a console, at the console's width."""
    console.print(Text(source_line(sheet.source), style="bold"))
    for finding in sheet.findings:
        console.print(Text("* ", style=_SEVERITY[finding.severity]) + Text(finding.text))
    for report in sheet.reports:
        for view in report.views:
            console.print()
            print_table(view, console)


def source_line(source: Source) -> str:
    """`path · device · ranks · torch · events`, without what is not known."""
    ranks = ", ".join(map(str, source.ranks)) if len(source.ranks) <= 8 else f"{len(source.ranks)} ranks"
    parts = [
        source.path,
        source.device,
        f"rank {ranks} of {source.world_size}" if source.ranks else "",
        f"torch {source.torch}" if source.torch else "",
        f"{source.num_events:,} events" if source.num_events else "",
    ]
    return " · ".join(part for part in parts if part)


def print_table(table: Table, console: Console) -> None:
    """Write a title, a table and its note."""
    console.print(Text(table.title, style="bold"))
    console.print(_drawn(table, console.width))
    if table.note:
        console.print(Text(f"  {table.note}", style="dim"))


def _drawn(table: Table, width: int) -> RichTable:
    """A table of a report; numbers to the right, long texts cut so that a row is a line."""
    texts = [[format_value(v, c.unit) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
    widths = _column_widths(table, texts, width)
    drawn = RichTable(box=None, padding=(0, _GAP, 0, 0))
    for column in table.columns:
        justify: JustifyMethod = "left" if column.unit is Unit.TEXT else "right"
        drawn.add_column(Text(column.title, style="dim"), justify=justify, no_wrap=True)
    for row in texts:
        cells = (Text(_cut(text, widest)) for text, widest in zip(row, widths, strict=True))
        drawn.add_row(*cells, style="bold" if row and row[0] == "total" else "")
    return drawn


def _column_widths(table: Table, texts: list[list[str]], width: int) -> list[int]:
    """Width of each column: as wide as its text, the widest text columns giving way until the table fits."""
    widths = [max([len(column.title), *(len(row[at]) for row in texts)]) for at, column in enumerate(table.columns)]
    yielding = [at for at, column in enumerate(table.columns) if column.unit is Unit.TEXT]
    while yielding and (excess := sum(widths) + _GAP * len(widths) - width) > 0:
        at = max(yielding, key=lambda column: widths[column])
        others = max((widths[other] for other in yielding if other != at), default=0)
        cut = min(excess, max(1, widths[at] - others))
        if widths[at] <= _NARROWEST:
            break
        widths[at] = max(_NARROWEST, widths[at] - cut)
    return widths


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
