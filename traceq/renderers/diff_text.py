"""A diff for a terminal: the answer first, then the waterfall, then the causes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import causes_table, exchanges_table, matrix, ranks_table, waterfall
from traceq.renderers.text import print_line, print_table, visible_text
from traceq.report import Table

__all__ = ["print_diff", "print_diffs"]

_NARROW = 100
_STYLES = {"material": "bold red", "detectable": "yellow", "in_the_noise": "bold green", "inconclusive": "yellow"}


def print_diff(diff: Diff, console: Console, *, tables: bool = True) -> None:
    """Write one diff to a console, or its words alone."""
    style = _STYLES[diff.comparison.verdict.name] if diff.comparison else "yellow"
    for at, line in enumerate(diff.words):
        print_line(visible_text(line, style=style if at == 0 else ""), console)
    if diff.traced is not None and tables:
        for table in (waterfall(diff), ranks_table(diff), causes_table(diff, width=console.width)):
            if table.rows:
                _print_table(table, console)


def print_diffs(diffs: Diffs, console: Console) -> None:
    """Write all arms of a run: the matrix of the arms, what they exchange, what the same change costs in two places,
    then each answer and its explanation; of a change that was explained before, words alone.
    """
    repeated = {one.arm for one in diffs.joint}
    if len(diffs.diffs) > 1:
        _print_table(matrix(diffs, narrow=console.width < _NARROW), console)
    if diffs.exchanges:
        _print_table(exchanges_table(diffs), console)
    for line in (*(one.words for one in diffs.joint), *dict.fromkeys(diff.free for diff in diffs.diffs if diff.free)):
        console.print()
        print_line(visible_text(line), console)
    for diff in diffs.diffs:
        console.print()
        if len(diffs.diffs) > 1:
            console.print(Text(f"── {diff.b_name} against {diff.a_name} ", style="bold"))
        print_diff(diff, console, tables=diff.b_name not in repeated)


def _print_table(table: Table, console: Console) -> None:
    console.print()
    print_table(table, console)
