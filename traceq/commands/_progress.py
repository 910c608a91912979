"""Progress on stderr: a bar on a terminal, a line each quarter elsewhere; messages above it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import typer

from traceq.escaping import visible
from traceq.stages import Stage, watched
from traceq.units import Unit, format_value

QUARTERS = 4
_AFTER_S, _EVERY_S = 1.0, 0.1
"""Seconds that work takes before it is shown, and between two looks at it."""


@contextmanager
def shown_progress() -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Yield two functions: one shows (steps ended, planned), the other prints a line above that."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from traceq.escaped_console import EscapedConsole

    console = EscapedConsole(sys.stderr)
    if not console.is_terminal:
        yield _Lines("steps").show, lambda line: typer.echo(line, err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting ranks", total=None)

        def show(ended: int, planned: int) -> None:
            progress.update(task, completed=ended, total=planned or None, description="steps" if planned else None)

        yield show, lambda line: console.print(line, markup=False)


@contextmanager
def shown_work(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is told (traces read, traces planned), and show what the block does.

    That is the stage that it is at (`traceq.stages`), or `what` where it is at none: on a terminal as a bar for what
    takes longer than a second, drawn by a thread, which imports nothing for a block that is shorter. Elsewhere it is a
    line each quarter of the traces.
    """
    if not sys.stderr.isatty():
        yield _Lines("traces").show
        return
    ended, traces = Event(), list[Stage]()
    with watched() as work:

        def show(num: int, planned: int) -> None:
            traces[:] = [Stage("reading traces", lambda: num, planned)] if num < planned else []

        def now() -> Stage:
            return next(iter(traces), work.stage) or Stage(what, lambda: 0, 0)

        thread = Thread(target=_draw, args=(now, ended), name="traceq-progress", daemon=True)
        thread.start()
        try:
            yield show
        finally:
            ended.set()
            thread.join()


def _draw(now: Callable[[], Stage], ended: Event) -> None:
    """Draw a bar of the stage that work is at `now`, from a second on until it has `ended`."""
    start = time.monotonic()
    if ended.wait(_AFTER_S):
        return
    from rich.progress import BarColumn, Progress, TextColumn

    from traceq.escaped_console import EscapedConsole

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[far]}"))
    console = EscapedConsole(sys.stderr)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        shown = ""
        while not ended.wait(_EVERY_S):
            stage = now()
            done = min(stage.done(), stage.total)
            if stage.what != shown:
                shown = stage.what
                for before in progress.task_ids:
                    progress.remove_task(before)
                task = progress.add_task(visible(shown), total=stage.total or None, far="")
            progress.update(task, completed=done)
            left_s = progress.tasks[0].time_remaining
            left = f"{_clock(left_s)} left" if left_s else ""
            far = (_far(stage, done), _clock(time.monotonic() - start), left)
            progress.update(task, far=", ".join(filter(None, far)), refresh=True)


def _far(stage: Stage, done: int) -> str:
    """Return `120 MiB of 500 MiB`, or `3 of 40`; "" where the total is unknown."""
    if not stage.total:
        return ""
    unit = Unit.BYTES if stage.are_bytes else Unit.COUNT
    return f"{format_value(done, unit)} of {format_value(stage.total, unit)}"


def _clock(seconds: float) -> str:
    """Return `12 s`, or `3 min` from two minutes on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


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
