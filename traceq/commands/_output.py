"""Where commands write: results to stdout, doubts to stderr."""

from __future__ import annotations

from collections.abc import Iterable
from shutil import get_terminal_size

from rich.console import Console
from rich.text import Text

from traceq.model import Caveat

__all__ = ["print_caveats", "stdout"]

_PIPED_WIDTH = 140


class _Output(Console):
    """A console that leaves the end to `main` where its reader is gone."""

    def on_broken_pipe(self) -> None:
        """Called while rich handles the error."""
        raise BrokenPipeError


def stdout(width: int | None = None) -> Console:
    """The console of results: as wide as asked for, else as the terminal or COLUMNS, and wide enough for every table
    where neither is.
    """
    width = width or get_terminal_size((_PIPED_WIDTH, 24)).columns
    return _Output(width=width, highlight=False, emoji=False, soft_wrap=False)


def print_caveats(caveats: Iterable[Caveat]) -> None:
    """One line each on stderr."""
    from traceq.renderers.text import visible_text

    console = _Output(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    for caveat in caveats:
        console.print(Text("traceq: note: ", style="yellow") + visible_text(caveat.text))
