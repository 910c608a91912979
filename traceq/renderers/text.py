"""A sheet for a terminal: findings first, then tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from traceq.report import Column, Sheet, Source, Table
from traceq.units import Unit, format_value

__all__ = ["plain", "print_sheet", "print_table", "source_line"]

_GAP = 2
_NARROW, _NARROWEST = 10, 4
_VISIBLE = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "dim"}


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Write a sheet to a console, at the console's width."""
    console.print(plain(source_line(sheet.source), style="bold"))
    for finding in sheet.findings:
        console.print(Text("* ", style=_SEVERITY[finding.severity]) + plain(finding.text))
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
    console.print(plain(table.title, style="bold"))
    texts = [[format_value(v, c.unit) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
    shown, widths = _fit(table.columns, texts, console.width)
    console.print(_drawn(table.columns, texts, shown, widths))
    if left_out := len(table.columns) - len(shown):
        console.print(Text(f"  {left_out} columns need a wider terminal.", style="dim"))
    if table.note:
        console.print(plain(f"  {table.note}", style="dim"))


def plain(text: str, style: str = "") -> Text:
    """Text as it is, with control characters made visible: a kernel's name cannot steer the terminal."""
    return Text(text.translate(_VISIBLE), style=style)


def _drawn(columns: Sequence[Column], texts: list[list[str]], shown: list[int], widths: list[int]) -> RichTable:
    """Some columns of a table; numbers to the right, long texts cut so that a row is a line."""
    drawn = RichTable(box=None, padding=(0, _GAP, 0, 0))
    for at in shown:
        justify: JustifyMethod = "left" if columns[at].unit is Unit.TEXT else "right"
        drawn.add_column(Text(columns[at].title, style="dim"), justify=justify, no_wrap=True)
    for row in texts:
        cells = (plain(_cut(row[at], widths[at])) for at in shown)
        drawn.add_row(*cells, style="bold" if row and row[0] == "total" else "")
    return drawn


def _fit(columns: Sequence[Column], texts: list[list[str]], width: int) -> tuple[list[int], list[int]]:
    """(columns to show, width of every column): the widest text gives way first, down to a few letters; then text
    columns are left out, the widest first and never the first one. Numbers are never cut."""
    widths = [max([len(column.title), *(len(row[at]) for row in texts)]) for at, column in enumerate(columns)]
    shown = list(range(len(columns)))
    for narrowest in (_NARROW, _NARROWEST):
        yielding = [at for at in shown if columns[at].unit is Unit.TEXT]
        while (excess := _excess(shown, widths, width)) > 0:
            at = max(yielding, key=lambda column: widths[column], default=-1)
            if at < 0 or widths[at] <= narrowest:
                break
            others = max((widths[other] for other in yielding if other != at), default=0)
            widths[at] = max(narrowest, widths[at] - min(excess, max(1, widths[at] - others)))
    while _excess(shown, widths, width) > 0:
        dispensable = [at for at in shown[1:] if columns[at].unit is Unit.TEXT] or shown[1:]
        if not dispensable:
            break
        shown.remove(max(dispensable, key=lambda column: widths[column]))
    return shown, widths


def _excess(shown: list[int], widths: list[int], width: int) -> int:
    return sum(widths[at] + _GAP for at in shown) - width


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
