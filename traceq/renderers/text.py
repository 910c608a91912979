"""A sheet for a terminal: findings first, then tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from traceq.report import Column, Sheet, Source, Table
from traceq.units import Unit, format_ranks, format_value

__all__ = [
    "MOST_FINDINGS",
    "print_line",
    "print_sheet",
    "print_table",
    "source_summary",
    "unknown_line",
    "visible_text",
]

MOST_FINDINGS = 8
_GAP = 2
_NARROWEST = 10
_VISIBLE = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "dim"}


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Write a sheet to a console, at the console's width."""
    print_line(visible_text(source_summary(sheet.source), style="bold"), console)
    for finding in sheet.top_findings[:MOST_FINDINGS]:
        print_line(Text("* ", style=_SEVERITY[finding.severity]) + visible_text(finding.text), console)
    if (num_left_out := len(sheet.top_findings) - MOST_FINDINGS) > 0:
        print_line(visible_text(f"  {num_left_out} more in --json", style="dim"), console)
    for report in sheet.reports:
        for view in report.views:
            console.print()
            print_table(view.non_empty_columns, console)
    if sheet.unknown:
        console.print()
        print_line(visible_text(unknown_line(sheet), style="dim"), console)


def unknown_line(sheet: Sheet) -> str:
    """What was not recorded, and what would have."""
    wanted: dict[str, list[str]] = {}
    for unknown in sheet.unknown:
        wanted.setdefault(unknown.argument, []).append(unknown.what)
    return "Not recorded: " + "; ".join(f"{' and '.join(what)} ({key})" for key, what in wanted.items()) + "."


def source_summary(source: Source) -> str:
    """`path · step · device · ranks · torch · events`, without what is not known."""
    ranks = f"rank{'s' if len(source.ranks) > 1 else ''} {format_ranks(source.ranks)} of {source.world_size}"
    parts = [
        source.path,
        f"step {source.step}" if source.step is not None else "",
        source.device,
        ranks if source.ranks else "",
        f"torch {source.torch}" if source.torch else "",
        f"{source.num_events:,} events" if source.num_events else "",
    ]
    return " · ".join(part for part in parts if part)


def print_table(table: Table, console: Console) -> None:
    """Write a title, a table and its note. For a narrow terminal what matters least is left out, and said so."""
    if table.title:
        console.print(visible_text(table.title, style="bold"))
    shown = list(range(len(table.columns)))
    layout = _layout(table, shown, console.width)
    while not layout.fits and (rest := _dispensable(table, shown)):
        shown.remove(rest[0])
        layout = _layout(table, shown, console.width)
    console.print(_drawn(layout))
    if left_out := [column.title for at, column in enumerate(table.columns) if at not in shown and column.title]:
        console.print(Text(f"  For a wider terminal: {', '.join(left_out)}.", style="dim"))
    if table.note:
        print_line(visible_text(f"  {table.note}", style="dim"), console)


def print_line(text: Text, console: Console) -> None:
    """Write a sentence; only a terminal wraps it."""
    console.print(text, soft_wrap=not console.is_terminal)


def visible_text(text: str, style: str = "") -> Text:
    """Text as it is, with control characters made visible: a kernel's name cannot steer the terminal."""
    return Text(text.translate(_VISIBLE), style=style)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns of a table as they are drawn: headings, texts by row, and whether the terminal is wide enough."""

    columns: tuple[Column, ...]
    headings: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    fits: bool


def _layout(table: Table, shown: Sequence[int], width: int) -> _Layout:
    """Some columns of a table: headings of several words stand on several lines where that helps, then the widest
    texts are cut. Numbers never are.
    """
    columns = [table.columns[at] for at in shown]
    texts = [tuple(format_value(row[at], table.columns[at].unit) for at in shown) for row in table.rows]
    for headings in ([column.title for column in columns], [column.title.replace(" ", "\n") for column in columns]):
        widths = [
            max([*map(len, heading.split("\n")), *(len(row[at]) for row in texts)])
            for at, heading in enumerate(headings)
        ]
        yielding = [at for at, column in enumerate(columns) if column.unit is Unit.TEXT]
        while (excess := sum(widths) + _GAP * len(widths) - width) > 0:
            at = max(yielding, key=lambda column: widths[column], default=-1)
            if at < 0 or widths[at] <= _NARROWEST:
                break
            others = max((widths[other] for other in yielding if other != at), default=0)
            widths[at] = max(_NARROWEST, widths[at] - min(excess, max(1, widths[at] - others)))
        if excess <= 0:
            break
    return _Layout(tuple(columns), tuple(headings), tuple(texts), tuple(widths), excess <= 0)


def _dispensable(table: Table, shown: Sequence[int]) -> list[int]:
    """Columns that can go, the next one first: shares, texts from the right, then the numbers that add up to least.

    The first column and a total stay.
    """
    rest = [at for at in shown[1:] if table.columns[at].key != "total"]
    texts = [at for at in reversed(rest) if table.columns[at].unit is Unit.TEXT]
    shares = [at for at in rest if table.columns[at].unit in (Unit.PERCENT, Unit.DELTA_PERCENT)]
    numbers = [at for at in rest if at not in (*texts, *shares)]

    def size(at: int) -> float:
        return sum(abs(value) for row in table.rows if isinstance(value := row[at], int | float))

    return [*shares, *texts, *sorted(numbers, key=size)]


def _drawn(layout: _Layout) -> RichTable:
    """Numbers to the right, one row a line."""
    drawn = RichTable(box=None, padding=(0, _GAP, 0, 0))
    for column, heading in zip(layout.columns, layout.headings, strict=True):
        justify: JustifyMethod = "left" if column.unit is Unit.TEXT else "right"
        drawn.add_column(Text(heading, style="dim"), justify=justify, no_wrap=True, vertical="bottom")
    for row in layout.texts:
        cells = (visible_text(_cut(text, width)) for text, width in zip(row, layout.widths, strict=True))
        drawn.add_row(*cells, style="bold" if row and row[0] == "total" else "")
    return drawn


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
