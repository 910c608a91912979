"""Render a sheet for a terminal: findings first, then tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import StringIO
from itertools import repeat
from operator import add
from pathlib import PurePath
from shutil import get_terminal_size
from typing import TextIO

from rich.console import JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.display import RenderOptions
from traceq.escaped_console import EscapedConsole
from traceq.escaping import visible
from traceq.frozen import frozen
from traceq.model import Caveat
from traceq.renderers.limits import FINDINGS, GAP, LINE_WIDTH, PIPED_WIDTH
from traceq.report import BECOMES, Column, Report, Sheet, Source, Table
from traceq.short_texts import cut_apart
from traceq.units import Unit, format_ends, format_ranks, format_value

_NARROW, _NARROWEST = 20, 16
"""Columns to which texts are cut before headings are broken, and after: of less, names of ops are not recognised."""
_LINE = "line"
"""Key of columns with `path/file.py:LINE function`."""
_AND_MORE, _FEWEST = re.compile(r" \(and \d+ more\)$"), 6
"""End of a name that stands for several, and the characters of the name that are left before it."""
_CUT_BEFORE = re.compile(r"…[ (]*$")
_NO_BOTTLENECK = (
    "What the device does is not recorded: no bottleneck of it can be named. The times below are the host's."
)
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "dim"}


def open_console(
    file: TextIO, width: int | None = None, *, is_terminal: bool = False, wraps: bool | None = None
) -> EscapedConsole:
    """Return a console that writes to a file.

    Its width is `width`, else that of the terminal or COLUMNS, else 140 columns, enough for every table. Sentences are
    wrapped on a terminal and where a `width` was chosen, unless `wraps` says otherwise. Text in memory has no colours,
    and is that of a terminal if it `is_terminal`.
    """
    chosen, in_memory = width is not None, is_terminal if isinstance(file, StringIO) else None
    width = width or get_terminal_size((PIPED_WIDTH, 24)).columns
    console = EscapedConsole(file, width=width, force_terminal=in_memory)
    console.wraps = console.wraps or chosen if wraps is None else wraps
    return console


def write_report(report: Report, file: TextIO, options: RenderOptions) -> None:
    """Write one report as text: its findings, then its tables."""
    console = open_console(file, options.width)
    print_findings(report.findings, console)
    for index, view in enumerate(report.views):
        if index or report.findings:
            console.print()
        print_table(view.non_empty_columns, console)


def write_table(table: Table, file: TextIO, options: RenderOptions) -> None:
    """Write one table as text; columns that only JSON has are headed by their keys."""
    columns = tuple(replace(column, title=column.title or column.key) for column in table.columns)
    print_table(replace(table, columns=columns), open_console(file, options.width))


def write_caveats(caveats: Iterable[Caveat], file: TextIO, options: RenderOptions) -> None:
    """Write a line for each doubt; a terminal wraps it."""
    console = EscapedConsole(file, soft_wrap=True)
    for caveat in caveats:
        console.print(Text("traceq: note: ", style="yellow") + visible_text(caveat.text))


def print_sheet(sheet: Sheet, console: EscapedConsole) -> None:
    """Write a sheet to a console, at the console's width."""
    print_source(sheet, console)
    print_findings(sheet.top_findings[:FINDINGS], console)
    if (num_left_out := len(sheet.top_findings) - FINDINGS) > 0:
        print_line(visible_text(f"  {num_left_out} more in --json", style="dim"), console)
    for report in sheet.reports:
        for view in report.views:
            console.print()
            print_table(view.non_empty_columns, console)
    if sheet.unknown:
        console.print()
        print_line(visible_text(unknown_line(sheet), style="dim"), console)


def print_source(sheet: Sheet, console: EscapedConsole) -> None:
    """Write what was read and how long a step is.

    That no bottleneck can be named, too, where the rows of the device are missing and nothing is found.
    """
    print_line(visible_text(source_summary(sheet.source), style="bold"), console)
    if steps := step_words(sheet.source):
        print_line(visible_text(steps), console)
    for caveat in sheet.caveats:
        if caveat.code == "several_windows":
            print_line(visible_text(caveat.text, style="yellow"), console)
    if sheet.source.lacks_device_rows and not sheet.top_findings:
        print_line(visible_text(_NO_BOTTLENECK, style="bold"), console)


def print_findings(findings: Sequence[Claim], console: EscapedConsole) -> None:
    """Write a line for each finding, with a dot as red as it is severe."""
    for finding in findings:
        print_line(Text("* ", style=_SEVERITY[finding.severity]) + visible_text(text_of(finding)), console)


def unknown_line(sheet: Sheet) -> str:
    """Return a sentence on what was not recorded, with the options of a profiler that record it."""
    if sheet.source.arm:
        arguments = ", ".join(dict.fromkeys(unknown.argument for unknown in sheet.unknown))
        what = " and ".join(unknown.what for unknown in sheet.unknown)
        return f"Not in a recording of traceq: {what}; a torch.profiler of your own has them ({arguments})."
    by_argument: dict[str, list[str]] = {}
    for unknown in sheet.unknown:
        by_argument.setdefault(unknown.argument, []).append(unknown.what)
    return "Not recorded: " + "; ".join(f"{' and '.join(what)} ({key})" for key, what in by_argument.items()) + "."


def source_summary(source: Source) -> str:
    """Return `path · window · step · ranks · device · torch · events`, without unknown parts."""
    parts = [
        source.path,
        _window_read(source),
        f"step {source.step}" if source.step is not None else "",
        _ranks_read(source),
        source.device,
        "no kernels recorded" if source.lacks_device_rows else "",
        f"torch {source.torch}" if source.torch else "",
        f"{source.num_events:,} events" if source.num_events else "",
    ]
    return " · ".join(part for part in parts if part)


def _window_read(source: Source) -> str:
    """Return `latest of 16 windows: w15.json`, of several ranks the first one's file; "" where there is only one."""
    if source.window is None:
        return ""
    of_ranks = " of each rank" if len(source.ranks) > 1 else ""
    return f"latest of {source.window.num} windows{of_ranks}: {PurePath(source.window.path).name}"


def _ranks_read(source: Source) -> str:
    """Return `8 of 8 ranks`, `1 of 8 ranks (3)`, of several what that means; "" without a trace, or without a group."""
    if not source.ranks:
        return ""
    num, size = len(source.ranks), source.world_size
    if size <= 1:
        return "1 of 1 rank" if source.is_distributed and num == 1 else ""
    if num >= size:
        return f"{num} of {size} ranks"
    waits = ": waits for the others look like transfers" if num > 1 else ""
    return f"{num} of {size} ranks ({format_ranks(source.ranks)}){waits}"


def step_words(source: Source) -> str:
    """Return `step 44.0 ms (41.1 to 48.4 ms), mean of 3 traced steps and 8 ranks`, or of unprofiled ones; or ""."""
    parts = []
    for time, kind in ((source.unprofiled, "unprofiled"), (source.traced, "traced")):
        if time is None:
            continue
        if not time.is_step:
            parts.append(f"{format_value(time.mean_ns, Unit.NS)}, no whole step is marked (profiler.step())")
        else:
            mean, ends = format_value(time.mean_ns, Unit.NS), format_ends(time.least_ns, time.most_ns, Unit.NS)
            num = f"{time.num:,} of {time.num + time.num_partial:,}" if time.num_partial else f"{time.num:,}"
            ranks = len(source.ranks) if kind == "traced" else 1
            of_ranks = f" and {ranks:,} ranks" if ranks > 1 else ""
            of_several = f"{f' ({ends})' if ends != mean else ''}, mean of {num} {kind} steps{of_ranks}"
            of_one = (f", {num} {kind} steps" if time.num_partial else f", {kind}") + of_ranks.replace(
                " and", ", mean of"
            )
            parts.append(f"step {mean}{of_several if time.num > 1 else of_one}")
    return "; ".join(parts)


def print_table(table: Table, console: EscapedConsole) -> None:
    """Write a title, a table and its note; on a narrow terminal the least important columns are hidden and listed."""
    if table.title:
        console.print(visible_text(table.title, style="bold"))
    shown = list(range(len(table.columns)))
    layout = _layout(table, shown, console.width)
    if not layout.fits:  # names of generated files are longer than tables are wide
        layout = _layout(table, shown, console.width, most_of_line=LINE_WIDTH)
    while not layout.fits and (hideable := _hideable(table, shown)):
        shown.remove(hideable[0])
        layout = _layout(table, shown, console.width, most_of_line=LINE_WIDTH)
    if table.rows or (table.columns and not table.note):
        console.print(_rich_table(layout))
    hidden = [column.heading for index, column in enumerate(table.columns) if index not in shown and column.heading]
    if hidden:
        console.print(Text(f"  Hidden at this width: {', '.join(hidden)}.", style="dim"))
    if table.note:
        print_line(visible_text(f"  {table.note}", style="dim"), console)


def print_line(text: Text, console: EscapedConsole) -> None:
    """Write a sentence, wrapped where the console wraps."""
    console.print(text, soft_wrap=not console.wraps)


def visible_text(text: str, style: str = "") -> Text:
    """Return the text with control characters made visible, so that a kernel's name stays on its line."""
    return Text(visible(text), style=style)


@frozen
class _Layout:
    """Columns of a table as printed: headings, texts by row, widths, and whether the terminal is wide enough."""

    columns: tuple[Column, ...]
    headings: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    fits: bool


def _layout(table: Table, shown: Sequence[int], width: int, *, most_of_line: int = sys.maxsize) -> _Layout:
    """Return the layout of the `shown` columns for a terminal of `width` columns.

    If they do not fit, headings are broken into a line per word, then the widest texts are cut; numbers are never cut,
    nor `file.py:LINE`, of which the last `most_of_line` characters stay.
    """
    columns = [table.columns[index] for index in shown]
    texts = [tuple(format_value(row[index], table.columns[index].unit) for index in shown) for row in table.rows]
    whole = [visible(column.heading) for column in columns]
    broken = [heading.replace(" ", "\n") for heading in whole]
    for headings, narrowest_text in ((whole, _NARROW), (broken, _NARROW), (broken, _NARROWEST)):
        widths = [
            max([*map(len, heading.split("\n")), *(len(row[index]) for row in texts)])
            for index, heading in enumerate(headings)
        ]
        cuttable = [index for index, column in enumerate(columns) if column.unit is Unit.TEXT]
        narrowest = [
            max([narrowest_text, *(_least_of_line(row[index], most_of_line) for row in texts if column.key == _LINE)])
            for index, column in enumerate(columns)
        ]
        while (excess := sum(widths) + GAP * len(widths) - width) > 0:
            wide = [index for index in cuttable if widths[index] > narrowest[index]]
            widest = max(wide, key=lambda column: widths[column], default=-1)
            if widest < 0:
                break
            second = max((widths[other] for other in wide if other != widest), default=0)
            widths[widest] = max(narrowest[widest], widths[widest] - min(excess, max(1, widths[widest] - second)))
        if excess <= 0:
            break
    return _Layout(tuple(columns), tuple(headings), tuple(texts), tuple(widths), excess <= 0)


def _hideable(table: Table, shown: Sequence[int]) -> list[int]:
    """Return columns to hide, in order: shares, texts from the right, of these the line last, numbers by ascending sum.

    The first column and a total are always shown, and a text without which two rows would look like one.
    """
    rest = [
        index for index in shown[1:] if table.columns[index].key != "total" and not _tells_apart(table, shown, index)
    ]
    lines = [index for index in rest if table.columns[index].key == _LINE]
    texts = [index for index in reversed(rest) if table.columns[index].unit is Unit.TEXT and index not in lines]
    shares = [index for index in rest if table.columns[index].unit in (Unit.PERCENT, Unit.DELTA_PERCENT)]
    numbers = [index for index in rest if index not in (*texts, *shares, *lines)]

    def size(index: int) -> float:
        return sum(abs(value) for row in table.rows if isinstance(value := row[index], int | float))

    return [*shares, *texts, *lines, *sorted(numbers, key=size)]


def _tells_apart(table: Table, shown: Sequence[int], index: int) -> bool:
    """Return whether a column of texts is the only one in which some rows differ."""
    texts = [each for each in shown if table.columns[each].unit is Unit.TEXT]
    if index not in texts:
        return False
    with_it, without = (
        len({tuple(row[each] for each in texts if each != left_out) for row in table.rows})
        for left_out in (None, index)
    )
    return without < with_it


def _rich_table(layout: _Layout) -> RichTable:
    """Return a table with a line per row and numbers aligned right.

    The gap before a column is a part of its texts: rich takes a third less time than to pad cells.
    """
    rich_table = RichTable(box=None, padding=0)
    gaps = ("", *repeat(" " * GAP, len(layout.columns)))
    for column, heading, gap in zip(layout.columns, layout.headings, gaps, strict=False):
        justify: JustifyMethod = "left" if column.unit is Unit.TEXT else "right"
        text = Text(gap + heading.replace("\n", f"\n{gap}"), style="dim")
        rich_table.add_column(text, justify=justify, no_wrap=True, vertical="bottom")
    by_column = [
        [_cut_line(text, width) for text in texts] if column.key == _LINE else cut_apart(texts, width, _cut)
        for texts, width, column in zip(zip(*layout.texts, strict=True), layout.widths, layout.columns, strict=False)
    ]
    for row, cells in zip(layout.texts, zip(*by_column, strict=True), strict=True):
        rich_table.add_row(*map(visible_text, map(add, gaps, cells)), style="bold" if row and row[0] == "total" else "")
    return rich_table


def _cut(text: str, width: int) -> str:
    """Cut a text to a width, of two names each, but not how many more there are; no mark of a cut stands twice."""
    if len(text) <= width:
        return text
    old, becomes, new = text.partition(BECOMES)
    if becomes:
        room = max(0, width - len(becomes))
        of_old = max(room // 2, room - len(new))
        return f"{_cut(old, of_old)}{becomes}{_cut(new, room - min(of_old, len(old)))}"
    more = _AND_MORE.search(text)
    if more and (room := width - len(more[0])) >= _FEWEST:
        return _cut(text.removesuffix(more[0]), room) + more[0]
    return _CUT_BEFORE.sub("", text[: max(0, width - 1)]) + "…"


def _cut_line(text: str, width: int) -> str:
    """Cut `path/file.py:LINE function` to a width: first the function, then the path from the left."""
    place = text.partition(" ")[0]
    return _cut(text, width) if len(place) < width else place if len(place) == width else f"…{place[1 - width :]}"


def _least_of_line(text: str, most: int) -> int:
    """Return how wide the `file.py:LINE` of `path/file.py:LINE function` is, at most `most`, with a mark of the cut."""
    return min(len(text.partition(" ")[0].rpartition("/")[2]), most) + 1
