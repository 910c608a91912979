"""Every module of this package that has a `summarize` and a `merge` is an analysis; `POSITION` orders them in a report.

`summarize(trace)` is what one rank leaves when its events are gone, `merge(job, parts)` the report on all of them, by
what each rank left, in the order of the ranks: one function each, wherever the ranks are read.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import ModuleType

from traceq import analysis as package
from traceq.errors import UsageFault
from traceq.facts.ranks.job import job_of
from traceq.model import Run
from traceq.report import Report, Sheet, Source

__all__ = ["analysis", "analyze", "analyze_all", "chosen", "describe", "names", "sheet"]


@cache
def _modules() -> dict[str, ModuleType]:
    modules = (import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__))
    found = [module for module in modules if all(hasattr(module, name) for name in ("POSITION", "summarize", "merge"))]
    found.sort(key=lambda module: module.POSITION)
    return {module.__name__.rpartition(".")[2]: module for module in found}


def names() -> tuple[str, ...]:
    """All analyses, in the order of a report."""
    return tuple(_modules())


def chosen(only: Sequence[str]) -> tuple[str, ...]:
    """Those asked for, or all, in the order of a report. Raises UsageFault for a name that is none."""
    for name in only:
        analysis(name)
    return tuple(name for name in names() if not only or name in only)


def analysis(name: str) -> ModuleType:
    """The module of one analysis. Raises UsageFault for a name that is none."""
    if name not in _modules():
        close = get_close_matches(name, names(), n=1)
        choice = "choose from " + ", ".join(names())
        raise UsageFault(f"no analysis '{name}'" + (f"; did you mean '{close[0]}'? " if close else "; ") + choice)
    return _modules()[name]


def analyze(run: Run, name: str) -> Report:
    """One analysis of a run. Raises UsageFault for a name that is none."""
    return analyze_all(run, (name,))[0]


def analyze_all(run: Run, only: Sequence[str] = ()) -> tuple[Report, ...]:
    """Several analyses of a run, or all of them, in the order of a report."""
    job = job_of(run)
    return tuple(
        module.merge(job, tuple(module.summarize(trace) for trace in run.traces))
        for module in map(analysis, chosen(only))
    )


def describe(run: Run) -> Source:
    """What was read, in a line."""
    environment = run.manifest.environment if run.manifest is not None else {}
    first = run.traces[0] if run.traces else None
    return Source(
        path=run.path,
        num_events=sum(len(trace.events) for trace in run.traces),
        ranks=run.ranks,
        world_size=first.world_size if first else run.manifest.num_ranks if run.manifest else 0,
        device=first.device if first else "",
        torch=str(environment.get("torch", "")),
        arm=run.arm,
        step=first.only.number if first and first.only else None,
    )


def sheet(run: Run, only: Sequence[str] = ()) -> Sheet:
    """All analyses of a run, or some. Raises UsageFault for a name that is none."""
    return Sheet(describe(run), analyze_all(run, only), run.caveats)
