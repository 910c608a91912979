"""Progress on stderr: a bar on a terminal, a line each quarter elsewhere; news above it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

__all__ = ["shown_progress"]

QUARTERS = 4


@contextmanager
def shown_progress() -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """What the first is called with (steps ended, steps planned) is shown, and each line the second is given."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().show, lambda line: typer.echo(line, err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting ranks", total=None)

        def show(ended: int, planned: int) -> None:
            progress.update(task, completed=ended, total=planned or None, description="steps" if planned else None)

        yield show, lambda line: console.print(line, markup=False, highlight=False)


class _Lines:
    """Prints a line when another quarter of the steps is over."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, ended: int, planned: int) -> None:
        """Called often; prints four times."""
        quarter = QUARTERS * ended // planned if planned else 0
        if quarter > self._shown:
            self._shown = quarter
            typer.echo(f"{ended} of {planned} steps", err=True)
