"""Memoization of facts that several analyses need: one computation per trace or job, dropped with it.

A thread that needs a fact which another is computing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from traceq.model import Trace

K = TypeVar("K")
T = TypeVar("T")

_KNOWN: dict[object, WeakKeyDictionary[Any, Any]] = {}
"""What memoized functions have returned, by object."""


def once_per_object(function: Callable[[K], T]) -> Callable[[K], T]:
    """Return the same function, computed once for each object, as a trace or job is."""
    cache: WeakKeyDictionary[K, T] = WeakKeyDictionary()
    locks: WeakKeyDictionary[K, RLock] = WeakKeyDictionary()

    @wraps(function)
    def memoized(subject: K) -> T:
        if subject not in cache:
            with locks.setdefault(subject, RLock()):  # one lock for all subjects might wait for itself
                if subject not in cache:
                    cache[subject] = function(subject)
        return cache[subject]

    _KNOWN[memoized] = cache
    return memoized


def keep(fact: Callable[[K], T], subject: K, value: T) -> None:
    """Let a memoized function return this for an object, as one that has it from another one."""
    _KNOWN[fact][subject] = value


def once_per_trace(function: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Return the same function, computed once for each trace object."""
    return once_per_object(function)
