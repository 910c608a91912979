"""Every module of this package that has an `analyze` is an analysis; `POSITION` orders them in a report."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import ModuleType

from traceq import analyses
from traceq.errors import UsageFault
from traceq.model import Run
from traceq.report import Report

__all__ = ["analyze", "analyze_all", "names"]


@cache
def _modules() -> dict[str, ModuleType]:
    modules = (import_module(f"{analyses.__name__}.{found.name}") for found in pkgutil.iter_modules(analyses.__path__))
    found = [module for module in modules if hasattr(module, "analyze") and hasattr(module, "POSITION")]
    found.sort(key=lambda module: module.POSITION)
    return {module.__name__.rpartition(".")[2]: module for module in found}


def names() -> tuple[str, ...]:
    """All analyses, in the order of a report."""
    return tuple(_modules())


def analyze(run: Run, name: str) -> Report:
    """One analysis of a run. Raises UsageFault for a name that is none."""
    if name not in _modules():
        close = get_close_matches(name, names(), n=1)
        raise UsageFault(f"no analysis '{name}'" + (f"; did you mean '{close[0]}'? " if close else "; ") + _choice())
    report: Report = _modules()[name].analyze(run)
    return report


def analyze_all(run: Run, only: Sequence[str] = ()) -> tuple[Report, ...]:
    """Several analyses of a run, or all of them, in the order of a report."""
    unknown = [name for name in only if name not in _modules()]
    if unknown:
        analyze(run, unknown[0])
    return tuple(analyze(run, name) for name in names() if not only or name in only)


def _choice() -> str:
    return "choose from " + ", ".join(names())
