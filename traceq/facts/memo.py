"""Facts of a trace that several analyses ask for are worked out once, and forgotten with the trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from traceq.model import Trace

__all__ = ["once_per_trace"]

T = TypeVar("T")


def once_per_trace(function: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """The same function, computed once for each trace object."""
    known: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(trace: Trace) -> T:
        if trace not in known:
            known[trace] = function(trace)
        return known[trace]

    return remembered
