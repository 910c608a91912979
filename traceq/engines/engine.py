"""What runs a function on many ranks: a pool of processes or a cluster, which differ in nothing that is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Engine", "Lost", "Result", "Start"]


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that worked on it died again and again."""


Result = tuple[int, Any]
"""(index of the arguments, what the function returned, or Lost)."""


class Engine(Protocol):
    """Runs a function of a module in other processes."""

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        """Results as they come; `needs` bytes of memory that each takes at most."""
        ...


Start = Callable[[], AbstractContextManager[Engine]]
"""What starts an engine, if there is anything for it to do."""
