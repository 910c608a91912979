"""Console of rich on which every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from traceq.escaping import plain_stream, visible_lines


class EscapedConsole(Console):
    """A console that escapes texts, whose colours are its own, and leaves a closed pipe to its caller.

    `wraps`: whether sentences are wrapped at its width, on a terminal unless it is set otherwise.
    """

    def __init__(self, file: TextIO, **options: Any) -> None:
        super().__init__(file=plain_stream(file), highlight=False, emoji=False, force_jupyter=False, **options)
        self.wraps = self.is_terminal

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is written, its texts escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible_lines(segment.text))

    def on_broken_pipe(self) -> None:
        """Raise what rich handles by ending the process."""
        raise BrokenPipeError
