"""What `traceq show` prints on one screen: findings, where the time goes, its costliest rows, and where there is more.

The whole report is `--full`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import TextIO

from traceq.display import RenderOptions
from traceq.escaped_console import EscapedConsole
from traceq.renderers.text import (
    open_console,
    print_findings,
    print_line,
    print_sheet,
    print_table,
    print_unnamed_bottleneck,
    source_summary,
    unknown_line,
    visible_text,
)
from traceq.report import Finding, Sheet, Table

__all__ = ["MOST_LINES", "num_lines", "print_screen", "write_sheet"]

MOST_LINES = 40
_MOST_FINDING_LINES = 12
_UNPROFILED = "step_phases"
_FIRST = (
    "stalled desync batches loader loader_ranks "
    f"{_UNPROFILED} core_use facts inference steps partition clusters ranks efficiency whatif syncs collectives idle "
    "lines kernels host unprofiled memory_moments memory_kinds memory_lines memory_reserved"
).split()
"""Tables in the order in which they are chosen, as far as there is room: why it stopped, what was asked, the step."""
_MOST_ROWS = {_UNPROFILED: 8, "partition": 8, "steps": 2, "ranks": 4, "efficiency": 3, "memory_kinds": 8}
_ROWS = 5
_LAST = ("total", "all else")
"""First cells of a last row, which a shortened table keeps."""

Print = Callable[[EscapedConsole], None]


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as text: one screen, or all if `options` say so."""
    (print_sheet if options.full else print_screen)(sheet, open_console(file, options.width))


def print_screen(sheet: Sheet, console: EscapedConsole) -> None:
    """Write the screen to a console, at its width."""
    findings = _as_fits(sheet.top_findings, console)
    views = [view.non_empty_columns for report in sheet.reports for view in report.views if view.rows]
    first: dict[str, Table] = {}
    for view in views:
        first.setdefault(view.key, _shortened(view, f"--only {view.key}" if sheet.is_selectable else "--full"))
    if _UNPROFILED in first:
        first.pop("steps", None)  # a few profiled steps are no result beside those
    frame = partial(_print_head, sheet, findings), partial(_print_foot, sheet, len(views))
    room, chosen = MOST_LINES - sum(num_lines(part, console) for part in frame), []
    for view in (first[key] for key in _in_order(sheet) if key in first):
        with console.capture() as drawn:
            _print_view(view, console)
        needed = drawn.get().count("\n")
        if needed <= room:
            chosen.append(drawn.get())
            room -= needed
    _print_head(sheet, findings, console)
    for text in chosen:
        console.file.write(text)
    _print_foot(sheet, len(views) - len(chosen), console)


def _in_order(sheet: Sheet) -> Sequence[str]:
    """Return the tables in their order: of a CPU, lines say more than categories, of which there are few."""
    if sheet.source.device != "cpu":
        return _FIRST
    before = _FIRST.index("partition")
    return *_FIRST[:before], "lines", *(key for key in _FIRST[before:] if key != "lines")


def _as_fits(findings: Sequence[Finding], console: EscapedConsole) -> Sequence[Finding]:
    """Return the first findings, as many as the screen has room for; at least one."""
    shown = findings
    while len(shown) > 1 and num_lines(partial(print_findings, shown), console) > _MOST_FINDING_LINES:
        shown = shown[:-1]
    return shown


def _print_head(sheet: Sheet, findings: Sequence[Finding], console: EscapedConsole) -> None:
    print_line(visible_text(source_summary(sheet.source), style="bold"), console)
    print_unnamed_bottleneck(sheet, console)
    print_findings(findings, console)
    if (num_left_out := len(sheet.top_findings) - len(findings)) > 0:
        print_line(visible_text(f"  {num_left_out} more with --full", style="dim"), console)


def _print_foot(sheet: Sheet, num_more: int, console: EscapedConsole) -> None:
    lines = [unknown_line(sheet)] if sheet.unknown and not sheet.source.arm else []  # no option of a recording
    path = sheet.source.path
    if num_more:
        only = ", --only NAME" if sheet.is_selectable else ""
        timeline = f"; the timeline: traceq open {path}" if sheet.source.ranks else ""
        lines.append(f"More: --full ({num_more} more tables){only}{timeline}")
    if lines:
        console.print()
    for line in lines:
        print_line(visible_text(line, style="dim"), console)


def _print_view(view: Table, console: EscapedConsole) -> None:
    console.print()
    print_table(view, console)


def _shortened(view: Table, option: str) -> Table:
    """Return the rows that matter most, in their order, with a note on the option for the others; a total stays."""
    most = _MOST_ROWS.get(view.key, _ROWS)
    rows = list(view.rows)
    total = [rows.pop()] if rows and rows[-1][0] in _LAST else []
    left_out = len(rows) - most
    if left_out > 0:
        size = next((index for index, column in enumerate(view.columns) if column.key == "total"), None)
        if size is not None:
            kept = sorted(range(len(rows)), key=lambda row: -float(rows[row][size] or 0))[:most]
            rows = [rows[row] for row in sorted(kept)]
        else:
            rows = rows[:most]
    note = f"{left_out} more with {option}" if left_out > 0 else ""
    return replace(view, rows=(*rows, *total), note=note)


def num_lines(print_to: Print, console: EscapedConsole) -> int:
    """Return how many lines something takes on a terminal as wide as the console."""
    file = StringIO()
    print_to(open_console(file, console.width, is_terminal=console.is_terminal, wraps=console.wraps))
    return file.getvalue().count("\n")
