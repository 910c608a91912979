"""The first screen of `traceq show`: what was read, what to gain, where a step goes, its syncs, its collectives.

Their order is fixed, and nothing below takes the place of anything above. The whole report is `--full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from textwrap import wrap
from typing import TextIO

from rich.text import Text

from traceq.claims.claim import Claim
from traceq.claims.rules import rule_of
from traceq.claims.saying import evidence_of, lead_of, rank_words
from traceq.display import RenderOptions
from traceq.escaped_console import EscapedConsole
from traceq.escaping import visible
from traceq.renderers.limits import LEAD_WIDTH, SCREEN_LINES
from traceq.renderers.text import (
    open_console,
    print_line,
    print_sheet,
    print_source,
    print_table,
    unknown_line,
    visible_text,
)
from traceq.report import MOST_LEADS, Sheet, Table
from traceq.units import Unit, format_ends

_ALWAYS = (
    *("stalled", "desync", "batches", "loader", "loader_ranks"),
    *("step_phases", "partition", "inference", "syncs", "collectives"),
    *("memory_moments", "memory_kinds", "memory_lines"),
)
"""Tables that are always there, in their order: why a job stopped, the step by phase, its syncs, its collectives."""
FIRST_TABLES = ("partition", "syncs", "collectives")
"""Tables that answer what a first screen is asked: GPU time by phase, syncs, collectives."""
_IF_ROOM = (
    *("core_use", "facts", "ranks", "clusters", "partition_ranks", "efficiency", "idle", "lines", "kernels", "host"),
    *("unprofiled", "memory_reserved"),
)
"""Tables for which there may be room."""
_OF_LEADS = {"exposed_wait": "ranks"}
"""Table that a lead of a code asks for: the first for which there may be room, if for a few rows."""
_MOST_ROWS, _FEWEST_ROWS, _ROWS_IF_ROOM = 8, 2, 5
_LAST = ("total", "all else")
"""First cells of a last row, which a shortened table keeps."""
_SIZES = ("total", "mean_ns", "caused_ns")
"""Keys of the column by which the rows of a phase, or of a rank, are kept in a shortened table."""
Print = Callable[[EscapedConsole], None]


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as text: one screen, or all if `options` say so."""
    (print_sheet if options.full else print_screen)(sheet, open_console(file, options.width))


def print_screen(sheet: Sheet, console: EscapedConsole) -> None:
    """Write the screen to a console, at its width."""
    views = _first_views(sheet)
    frame = partial(_print_head, sheet), partial(_print_foot, sheet, len(views))
    room = SCREEN_LINES - sum(num_lines(part, console) for part in frame)
    texts, num_shown = _tables(sheet, views, room, console)
    _print_head(sheet, console)
    for text in texts:
        console.file.write(text)
    _print_foot(sheet, _num_views(sheet) - num_shown, console)


def _first_views(sheet: Sheet) -> dict[str, Table]:
    """Return by key the first table for people, or that of the first screen."""
    first: dict[str, Table] = {}
    for report in sheet.reports:
        for view in (*report.first, *report.views):
            if view.rows or view in report.first:
                first.setdefault(view.key, view.non_empty_columns)
    return first


def _num_views(sheet: Sheet) -> int:
    return sum(1 for report in sheet.reports for view in report.views if view.rows)


def _tables(sheet: Sheet, views: dict[str, Table], room: int, console: EscapedConsole) -> tuple[list[str], int]:
    """Return the tables that are always there, with as many rows as fit, and others in the room that is left."""
    always = [views[key] for key in _ALWAYS if key in views]
    texts: list[str] = []
    for most in range(_MOST_ROWS, _FEWEST_ROWS - 1, -1):
        texts = [_drawn(_shortened(view, most, sheet), console) for view in always]
        if sum(text.count("\n") for text in texts) <= room:
            break
    room -= sum(text.count("\n") for text in texts)
    of_leads = {_OF_LEADS.get(lead.code) for lead in sheet.leads[:MOST_LEADS]}
    for key in sorted(filter(views.__contains__, _IF_ROOM), key=lambda key: key not in of_leads):
        for most in range(_MOST_ROWS, _FEWEST_ROWS - 1, -1) if key in of_leads else (_ROWS_IF_ROOM,):
            text = _drawn(_shortened(views[key], most, sheet), console)
            if text.count("\n") <= room:
                texts.append(text)
                room -= text.count("\n")
                break
    return texts, len(texts)


def _drawn(view: Table, console: EscapedConsole) -> str:
    with console.capture() as drawn:
        console.print()
        print_table(view, console)
    return drawn.get()


def _print_head(sheet: Sheet, console: EscapedConsole) -> None:
    print_source(sheet, console)
    leads, nothing = sheet.leads, sheet.without_gain
    if leads:
        console.print()
        for line in _lead_lines(sheet, leads[:MOST_LEADS], console.width):
            console.print(line, soft_wrap=True)
    rest = []
    if (num_left_out := len(leads) - MOST_LEADS) > 0:
        rest.append(f"{num_left_out} more with --full")
    if nothing:
        subjects = list(dict.fromkeys(lead_of(finding).partition(": ")[0] for finding in nothing))
        more = f"; and {len(subjects) - MOST_LEADS} more" if len(subjects) > MOST_LEADS else ""
        rest.append(f"Little or nothing to gain: {'; '.join(subjects[:MOST_LEADS])}{more}")
    if not leads and not nothing and not sheet.source.lacks_device_rows:
        rest.append("No lead: no rule finds time to gain here")
    if rest:
        print_line(visible_text(". ".join(rest), style="dim"), console)


def _lead_lines(sheet: Sheet, leads: Sequence[Claim], width: int) -> Iterator[Text]:
    """Yield each lead beside what it gains, on a narrow terminal above it, and below it what that rests on."""
    gains = [gain_words(sheet, finding) for finding in leads]
    has_gain, gainer = any(gain for gain, _ in gains), gainer_words(sheet, leads)
    base = "of the rest" if sheet.has_cold_start else "of it"
    of_ns, of_share = (max(map(len, column)) for column in zip((gainer, base), *gains, strict=True))
    tail = of_ns + of_share + 4 if has_gain else 0
    is_beside = width - 3 - tail >= LEAD_WIDTH
    room = width - 3 - (tail if is_beside else 0)
    room = min(room, max(len(line) for finding in leads for line in wrap(visible(lead_of(finding)), room)))
    if has_gain and is_beside:
        heading = "Gain first (gains may overlap)" if sum(bool(gain) for gain, _ in gains) > 1 else "Gain first"
        yield Text(f"{heading:<{room + 3}}  {gainer:>{of_ns}}  {base:>{of_share}}", style="dim")
    for number, (finding, (gain, share)) in enumerate(zip(leads, gains, strict=True), 1):
        first, *more = wrap(visible(lead_of(finding)), room)
        end = f"  {gain:>{of_ns}}  {share:>{of_share}}" if gain and is_beside else ""
        label = f"{number}" if len(leads) > 1 or has_gain else "*"
        for line in (f"{label}  {first:<{room}}{end}".rstrip(), *(f"   {line}" for line in more)):
            yield Text(line, style="bold")
        gained = [f"{gainer} {gain}, {share}"] if gain and not is_beside else []
        for line in (*gained, *wrap(visible(evidence_of(finding)), width - 5)):
            yield Text(f"     {line}", style="dim")


def gainer_words(sheet: Sheet, findings: Sequence[Claim]) -> str:
    """Return what gains by these: a step, a traced one where unprofiled ones are known, or a trace without steps.

    Where ranks are missing it is these alone that gain: others may do the same, and then they wait less for these.
    """
    bases = [each.basis for each in findings if each.gain and each.basis is not None]
    if bases and all(basis.num_alone for basis in bases):
        return f"{rank_words(bases[0])} gain{'s' * (bases[0].num_alone == 1)}"
    if sheet.source.traced and not sheet.source.traced.is_step:
        return "the trace gains"
    return "a traced step gains" if bases and all(basis.is_beside_unprofiled for basis in bases) else "a step gains"


def gain_words(sheet: Sheet, finding: Claim) -> tuple[str, str]:
    """Return what a step gains, and which part of it that is: `4.6 to 8.5 ms`, `10 to 19 %`; "" where unknown."""
    if (gain := finding.gain) is None:
        return "", ""
    unprofiled = sheet.source.unprofiled if finding.is_unprofiled else None
    step_ns = unprofiled.mean_ns if unprofiled else sheet.recurring_ns
    least_ns, most_ns = gain
    share = format_ends(100 * least_ns / step_ns, 100 * most_ns / step_ns, Unit.PERCENT) if step_ns else ""
    return format_ends(least_ns, most_ns, Unit.NS), share


def _print_foot(sheet: Sheet, num_more: int, console: EscapedConsole) -> None:
    lines = [unknown_line(sheet)] if sheet.unknown and not sheet.source.arm else []  # no option of a recording
    whatif = next((whatif for lead in sheet.leads[:MOST_LEADS] if (whatif := rule_of(lead).whatif)), "")
    commands = [
        f"traceq whatif PATH {whatif}" if whatif else "",
        "traceq open PATH" if sheet.source.ranks else "",
        f"--full ({num_more} more tables)" if num_more > 0 else "",
        "--only NAME" if num_more > 0 and sheet.is_selectable else "",
    ]
    if any(commands):
        lines.append(f"Next: {', '.join(filter(None, commands))}")
    if lines:
        console.print()
    for line in lines:
        print_line(visible_text(line, style="dim"), console)


def _shortened(view: Table, most: int, sheet: Sheet) -> Table:
    """Return the rows that matter most, in their order, with a note on the option for the others; a total stays."""
    rows = list(view.rows)
    total = [rows.pop()] if rows and rows[-1][0] in _LAST else []
    left_out = len(rows) - most
    if left_out > 0:
        size = next((index for index, column in enumerate(view.columns) if column.key in _SIZES), None)
        if size is not None:
            kept = sorted(range(len(rows)), key=lambda row: -float(rows[row][size] or 0))[:most]
            rows = [rows[row] for row in sorted(kept)]
        else:
            rows = rows[:most]
    shown_by = {each.key: report.name for report in sheet.reports for each in (*report.first, *report.views)}
    option = f"--only {shown_by[view.key]}" if sheet.is_selectable else "--full"
    note = f"{left_out} left out: {option}" if left_out > 0 else ""
    return replace(view, rows=(*rows, *total), note=note)


def num_lines(print_to: Print, console: EscapedConsole) -> int:
    """Return how many lines something takes on a terminal as wide as the console."""
    file = StringIO()
    print_to(open_console(file, console.width, is_terminal=console.is_terminal, wraps=console.wraps))
    return file.getvalue().count("\n")
