"""Where commands write: results to stdout or a file by the renderer that was chosen, doubts to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import typer

from traceq.display import RenderOptions
from traceq.errors import TraceqError, UsageFault
from traceq.locations import place
from traceq.runs.run_folder import atomic_write

if TYPE_CHECKING:
    from traceq.model import Caveat
    from traceq.report import Sheet, Table

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
    from traceq.commands._progress import shown_work
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
