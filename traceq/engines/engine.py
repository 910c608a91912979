"""Interface of what runs a function on many ranks: a pool of processes or a cluster, with equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from traceq.frozen import frozen


@frozen
class Lost:
    """Result of a task whose process died repeatedly."""


Result = tuple[int, Any]
"""(index of the arguments, the function's return value or Lost)."""


class Engine(Protocol):
    """Executor of module-level functions in other processes."""

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        """Yield results as they complete; `needs` is the maximum memory of each task in bytes."""
        ...


Start = Callable[[], AbstractContextManager[Engine]]
"""Function that starts an engine; called only if there is work for it."""


class SameProcess:
    """An engine without processes: it works on one rank after the other, in its caller's."""

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        """Yield (index, what the function returned), in order."""
        return ((index, function(*each)) for index, each in enumerate(arguments))
