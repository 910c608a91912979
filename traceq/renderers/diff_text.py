"""A diff for a terminal: the answer first, then the waterfall, then the causes."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.text import Text

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import causes_table, exchanges_table, matrix, ranks_table, waterfall
from traceq.display import RenderOptions
from traceq.renderers.text import open_console, print_line, print_table, visible_text
from traceq.report import Table
from traceq.stats import VerdictName

__all__ = ["print_diff", "print_diffs", "write_diffs"]

_NARROW = 100
_STYLES: dict[VerdictName, str] = {
    "material": "bold red",
    "detectable": "yellow",
    "in_the_noise": "bold green",
    "inconclusive": "yellow",
}


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as text."""
    print_diffs(diffs, open_console(file, options.width), full=options.full)


def print_diff(diff: Diff, console: Console, *, tables: bool = True) -> None:
    """Write one diff to a console; without `tables` only its sentences."""
    style = _STYLES[diff.verdict_name]
    for index, line in enumerate(diff.words):
        print_line(visible_text(line, style=style if index == 0 else ""), console)
    if diff.traced is not None and tables:
        for table in (waterfall(diff), ranks_table(diff), causes_table(diff, width=console.width)):
            if table.rows:
                _print_table(table, console)


def print_diffs(diffs: Diffs, console: Console, *, full: bool = False) -> None:
    """Write all arms of a run: the matrix, collectives and interactions, then each answer with its tables.

    Arms that repeat the change of another have only sentences, and unless `full` those whose traced durations are no
    evidence.
    """
    repeated = {interaction.arm for interaction in diffs.interactions}
    if len(diffs.diffs) > 1:
        _print_table(matrix(diffs, narrow=console.width < _NARROW), console)
    if diffs.exchanges:
        _print_table(exchanges_table(diffs), console)
    free = dict.fromkeys(diff.free for diff in diffs.diffs if diff.free)
    for line in (*(interaction.words for interaction in diffs.interactions), *free):
        console.print()
        print_line(visible_text(line), console)
    for diff in diffs.diffs:
        console.print()
        if len(diffs.diffs) > 1:
            console.print(Text(f"── {diff.b_name} against {diff.a_name} ", style="bold"))
        print_diff(diff, console, tables=diff.b_name not in repeated and (full or not diff.doubt))


def _print_table(table: Table, console: Console) -> None:
    console.print()
    print_table(table, console)
