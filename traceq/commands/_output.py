"""Where commands write: results to stdout or a file by the renderer that was chosen, doubts and progress to stderr.

Progress is a bar on a terminal, with messages above it, and a line each quarter elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import typer

from traceq.display import RenderOptions
from traceq.errors import TraceqError, UsageFault
from traceq.escaping import visible
from traceq.locations import place
from traceq.runs.run_folder import atomic_write
from traceq.stages import Stage, watched
from traceq.units import Unit, format_value

if TYPE_CHECKING:
    from traceq.model import Caveat
    from traceq.report import Sheet, Table

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


igzip: Any
try:
    from isal import igzip
except ImportError:
    import gzip as igzip


class Form(NamedTuple):
    """Name of a renderer and the file that it writes, None for stdout."""

    renderer: str
    file: Path | None = None

    @property
    def holds_caveats(self) -> bool:
        """Whether doubts are a part of what is written, where programs read it."""
        return self.renderer == "json"


def chosen_form(*, as_json: bool, as_markdown: bool, html: Path | None, to: str | None) -> Form:
    """Return the one form that options name, text without any. Raises UsageFault where they name several."""
    if as_json + as_markdown + (html is not None) + (to is not None) > 1:
        raise UsageFault("--json, --markdown, --html and --to: choose one")
    if html is not None:
        return Form("html", html)
    return Form("json" if as_json else "markdown" if as_markdown else to or "text")


def write_result(kind: str, result: object, form: Form, options: RenderOptions) -> None:
    """Write a result to stdout, or into a file, whose name is then printed.

    `kind` is sheet or diffs. Raises UsageFault where no such renderer writes that kind, TraceqError where the file
    cannot be written.
    """
    from traceq.renderers import find_renderer

    write = find_renderer(form.renderer, kind)
    if form.file is None:
        with nullcontext() if sys.stdout.isatty() else shown_work("writing"):  # a terminal shows what is written
            write(result, sys.stdout, options)
        return

    with shown_work("writing"), open_replacing(form.file) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="")
        write(result, text, options)
        text.detach()
    typer.echo(form.file)


def write_sheet(sheet: Sheet, form: Form, options: RenderOptions) -> None:
    """Write a sheet in the form, and its doubts to stderr where the form does not hold them."""
    from traceq.model import SHOWN_WINDOW

    write_result("sheet", sheet, form, options)
    if not form.holds_caveats:
        print_caveats(caveat for caveat in sheet.all_caveats if caveat.code != SHOWN_WINDOW)  # its first line says it


def print_table(table: Table, *, err: bool = False) -> None:
    """Write a table to stdout, or to stderr where stdout is a job's, as wide as the terminal."""
    from traceq.renderers import find_renderer

    find_renderer("text", "table")(table, sys.stderr if err else sys.stdout, RenderOptions())


def print_caveats(caveats: Iterable[Caveat]) -> None:
    """Write one line for each doubt to stderr."""
    from traceq.renderers import find_renderer

    find_renderer("text", "caveats")(caveats, sys.stderr, RenderOptions())


def refuse_input(target: Path, paths: Iterable[str | None]) -> None:
    """Raise UsageFault if what is to be written is one of these inputs."""
    for path in paths:
        where = place(path) if path else None
        if isinstance(where, Path) and where.exists() and target.exists() and target.samefile(where):
            raise UsageFault(f"{target} is read, and would be replaced; name another file")


@contextmanager
def open_replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream into a new file that takes the path's place once the block succeeds.

    Raises TraceqError where it cannot be written.
    """
    try:
        with atomic_write(path) as part, part.open("wb") as file:
            if path.suffix == ".gz":
                with igzip.open(file, "wb", compresslevel=2) as packed:
                    yield packed
            else:
                yield file
    except OSError as fault:
        raise TraceqError(f"{path}: {(fault.strerror or str(fault)).lower()}") from fault
