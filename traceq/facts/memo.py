"""Memoization of facts that several analyses need: one computation per trace, dropped with the trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from traceq.model import Trace

__all__ = ["once_per_trace"]

T = TypeVar("T")


def once_per_trace(function: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Return the same function, computed once for each trace object."""
    cache: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(function)
    def memoized(trace: Trace) -> T:
        if trace not in cache:
            cache[trace] = function(trace)
        return cache[trace]

    return memoized
