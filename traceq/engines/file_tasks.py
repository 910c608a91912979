"""Tasks that read a file each, on an engine that starts with the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from traceq.engines.engine import Engine, Result
from traceq.engines.memory_budget import needed_bytes
from traceq.locations import Place

__all__ = ["FileTasks"]


class FileTasks:
    """Runner of tasks; without any, no engine is started."""

    def __init__(self, start: Callable[[], Engine]) -> None:
        self._start = start
        self._engine: Engine | None = None

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], files: Sequence[Place]
    ) -> Iterator[Result]:
        """Yield results as they complete; each task may use the memory that reading its file takes."""
        if arguments:
            self._engine = self._engine or self._start()
            yield from self._engine.map(function, arguments, [needed_bytes(file) for file in files])
