"""Progress on stderr: a bar on a terminal, a line each quarter elsewhere; messages above it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from traceq.commands import _typer as typer

__all__ = ["shown_progress"]

QUARTERS = 4


@contextmanager
def shown_progress(
    what: str = "steps", before: str = "starting ranks"
) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Yield two functions: one shows (`what` ended, planned), the other prints a line above that."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from traceq.escaped_console import EscapedConsole

    console = EscapedConsole(sys.stderr)
    if not console.is_terminal:
        yield _Lines(what).show, lambda line: typer.echo(line, err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(before, total=None)

        def show(ended: int, planned: int) -> None:
            progress.update(task, completed=ended, total=planned or None, description=what if planned else None)

        yield show, lambda line: console.print(line, markup=False)


class _Lines:
    """Progress as four lines, where there is no terminal."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, 0

    def show(self, ended: int, planned: int) -> None:
        """Print a line when another quarter has ended; it is called often."""
        quarter = QUARTERS * ended // planned if planned else 0
        if quarter > self._shown:
            self._shown = quarter
            typer.echo(f"{ended} of {planned} {self._what}", err=True)
