"""A diff for a terminal: the verdict, what a step does differently, what makes the delta, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TextIO

from rich.text import Text

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import (
    causes_table,
    counts_table,
    exchanges_table,
    facts_table,
    inference_table,
    matrix,
    ranks_table,
    waterfall,
    work_table,
)
from traceq.display import RenderOptions
from traceq.escaped_console import EscapedConsole
from traceq.renderers.limits import COMMAND_LINES, NARROW_WIDTH, SCREEN_LINES
from traceq.renderers.one_screen import num_lines
from traceq.renderers.text import open_console, print_line, print_table, visible_text
from traceq.report import Table
from traceq.stats import VerdictName

_MOST_ROWS, _FEW_ROWS = 12, 5
"""Rows of tables: all that people read, and those on one screen."""
_STYLES: dict[VerdictName, str] = {
    "material": "bold red",
    "detectable": "yellow",
    "in_the_noise": "bold green",
    "inconclusive": "yellow",
}


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as text."""
    print_diffs(diffs, open_console(file, options.width), full=options.full)


def print_diff(diff: Diff, console: EscapedConsole, num_rows: int = _FEW_ROWS) -> None:
    """Write one diff to a console: the verdict, the counts per step that differ, and what makes the delta."""
    style = _STYLES[diff.verdict_name]
    print_line(visible_text(str(diff.answer), style=style), console)
    for each in diff.basis:
        print_line(visible_text(str(each)), console)
    counts = counts_table(diff, top=num_rows) if diff.traced is not None else None
    if counts is not None and counts.rows:
        _print_table(counts, console)
        console.print()
    elif counts is not None:
        print_line(visible_text(f"{counts.title}."), console)
    for each in diff.reasons:
        print_line(visible_text(str(each)), console)


def print_diffs(diffs: Diffs, console: EscapedConsole, *, full: bool = False) -> None:
    """Write all arms of a run: the matrix, collectives and interactions, then each answer with its tables.

    Unless `full`, tables are short, as many as fit on one screen, and answers whose traced durations are no evidence
    have none. Arms that repeat the change of another never have any. Below it stands what to run next.
    """
    parts = (
        *(partial(part, diffs) for part in (_print_overview, _print_answers, _print_free)),
        partial(_print_next, 1),
    )
    room = SCREEN_LINES - COMMAND_LINES - sum(num_lines(part, console) for part in parts)
    repeated, num_left_out = {interaction.arm for interaction in diffs.interactions}, 0
    _print_overview(diffs, console)
    for diff in diffs.diffs:
        _print_answer(diffs, diff, console, _MOST_ROWS if full else _FEW_ROWS)
        if diff.b_name in repeated or (diff.doubt and not full):
            continue
        for table in _tables(diff, console.width, _MOST_ROWS if full else _FEW_ROWS):
            needed = num_lines(partial(_print_table, table), console)
            if full or needed <= room:
                _print_table(table, console)
                room -= needed
            else:
                num_left_out += 1
    _print_free(diffs, console)
    if not full and any(diff.traced for diff in diffs.diffs):
        _print_next(num_left_out, console)


def _print_overview(diffs: Diffs, console: EscapedConsole) -> None:
    """Write what is said of all arms together."""
    if len(diffs.diffs) > 1:
        _print_table(matrix(diffs, narrow=console.width < NARROW_WIDTH), console)
    if diffs.exchanges:
        _print_table(exchanges_table(diffs), console)
    facts = facts_table(diffs)
    if facts is not None and facts.rows:
        _print_table(facts, console)
    alike = (facts.note,) if facts is not None and not facts.rows else ()
    _print_lines((*alike, *(str(interaction.statement) for interaction in diffs.interactions)), console)


def _print_free(diffs: Diffs, console: EscapedConsole) -> None:
    """Write what the change costs while it is off."""
    _print_lines(tuple(dict.fromkeys(str(diff.free) for diff in diffs.diffs if diff.free)), console)


def _print_lines(lines: Sequence[str], console: EscapedConsole) -> None:
    if lines:
        console.print()
    for line in lines:
        print_line(visible_text(line), console)


def _print_answers(diffs: Diffs, console: EscapedConsole) -> None:
    for diff in diffs.diffs:
        _print_answer(diffs, diff, console)


def _print_answer(diffs: Diffs, diff: Diff, console: EscapedConsole, num_rows: int = _FEW_ROWS) -> None:
    console.print()
    if len(diffs.diffs) > 1:
        console.print(Text(f"── {diff.b_name} against {diff.a_name} ", style="bold"))
    print_diff(diff, console, num_rows)


def _print_next(num_left_out: int, console: EscapedConsole) -> None:
    more = f"--full ({num_left_out} more table{'s' * (num_left_out > 1)})" if num_left_out else "--full"
    console.print()
    console.print(Text(f"More: {more}; as a page: --html FILE", style="dim"))


def _tables(diff: Diff, width: int, num_rows: int) -> Iterator[Table]:
    """Yield the tables of a traced delta that have rows."""
    if diff.traced is None:
        return
    where, why = waterfall(diff, top=num_rows), causes_table(diff, width=width, top=num_rows)
    work = work_table(diff, top=num_rows)
    yield from (table for table in (inference_table(diff), why, where, ranks_table(diff), work) if table.rows)


def _print_table(table: Table, console: EscapedConsole) -> None:
    console.print()
    print_table(table, console)
