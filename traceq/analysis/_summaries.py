"""Summaries of traces in memory, by two threads where they are large: numpy lets the other go on in its loops."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import ModuleType
from typing import Any

from traceq.analysis._plugins import PluginAnalysis
from traceq.cores import num_cores
from traceq.model import Trace

__all__ = ["summaries"]

_FEWEST_EVENTS = 100_000
"""Events from which threads are worth their start."""

_NUM_THREADS = 2
"""More would mostly wait, for each other's facts and for Python."""

_LONGEST = ("critical", "replay", "idle")
"""What takes longest begins first, or one thread would be left with it at the end."""


def summaries(analyses: Sequence[ModuleType | PluginAnalysis], traces: Sequence[Trace]) -> Generator[tuple[Any, ...]]:
    """Yield for each analysis its summaries of all traces; those of other packages run first, beside no other."""
    modules = [each for each in analyses if isinstance(each, ModuleType)]
    if len(modules) < _NUM_THREADS or num_cores() < _NUM_THREADS or sum(map(_size, traces)) < _FEWEST_EVENTS:
        yield from (_of_all(each, traces) for each in analyses)
        return
    from concurrent.futures import ThreadPoolExecutor  # small traces do without

    of_others = iter([_of_all(each, traces) for each in analyses if each not in modules])
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        modules.sort(key=lambda module: not module.__name__.endswith(_LONGEST))
        futures = {module.__name__: pool.submit(_of_all, module, traces) for module in modules}
        try:
            for each in analyses:
                yield futures[each.__name__].result() if isinstance(each, ModuleType) else next(of_others)
        finally:
            pool.shutdown(cancel_futures=True)


def _size(trace: Trace) -> int:
    return len(trace.events)


def _of_all(analysis: ModuleType | PluginAnalysis, traces: Sequence[Trace]) -> tuple[Any, ...]:
    return tuple(map(analysis.summarize, traces))
