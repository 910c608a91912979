"""Analyses of other packages: loaded and checked once, and guarded so that a fault names the package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from traceq.entry_points import ANALYSES, Plugin, find_plugins
from traceq.errors import TraceqError
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Report

__all__ = ["PluginAnalyses", "PluginAnalysis", "plugin_analyses"]

_CONTRACT = ("POSITION", "summarize", "merge")


@frozen
class PluginAnalysis:
    """An analysis of another package, with the attributes of traceq's own."""

    POSITION: float
    question: str
    summarize: Callable[[Trace], Any]
    merge: Callable[[Job, Sequence[Any]], Report]


@frozen
class PluginAnalyses:
    """Analyses of other packages by name, and why others cannot be used.

    `version` changes with the packages and the sources of their analyses; "" without any.
    """

    by_name: Mapping[str, PluginAnalysis]
    faults: Mapping[str, TraceqError]
    version: str


@cache
def plugin_analyses() -> PluginAnalyses:
    """Return the analyses that installed packages add."""
    analyses: dict[str, PluginAnalysis] = {}
    faults: dict[str, TraceqError] = {}
    sources: list[bytes] = []
    for name, plugin in find_plugins(ANALYSES).items():
        try:
            target = plugin.load()
            analyses[name] = _checked(name, plugin, target)
            sources.append(f"{name} {plugin.package} ".encode() + _source(target))
        except TraceqError as fault:
            faults[name] = fault
    return PluginAnalyses(analyses, faults, _digest(sources) if analyses else "")


def _digest(sources: list[bytes]) -> str:
    from hashlib import sha256  # OpenSSL takes 2 ms to load, and most have no plugins

    return sha256(b"".join(sources)).hexdigest()[:12]


def _checked(name: str, plugin: Plugin, target: Any) -> PluginAnalysis:
    if missing := [attribute for attribute in _CONTRACT if not hasattr(target, attribute)]:
        raise plugin.fault(f"lacks {', '.join(missing)}")
    if not isinstance(target.POSITION, int | float):
        raise plugin.fault(f"POSITION is {target.POSITION!r}; expected a number")
    question = (inspect.getdoc(target) or "").partition("\n")[0]
    merge = _with_checked_report(name, plugin, plugin.guarded(target.merge))
    return PluginAnalysis(target.POSITION, question, plugin.guarded(target.summarize), merge)


def _with_checked_report(name: str, plugin: Plugin, merge: Callable[..., Any]) -> Callable[..., Report]:
    """Return `merge` with a check of what it returns: its tables must not take the place of others in JSON."""

    @wraps(merge)
    def checked(job: Job, parts: Sequence[Any]) -> Report:
        report = merge(job, parts)
        if not isinstance(report, Report):
            raise plugin.fault(f"merge returned a {type(report).__name__}; expected a traceq.Report")
        for table in report.tables:
            if table.key != name and not table.key.startswith(f"{name}_"):
                raise plugin.fault(f"a table has the key {table.key!r}; expected {name!r}, or {name}_ and more")
        return report

    return checked


def _source(target: Any) -> bytes:
    module = target if isinstance(target, ModuleType) else inspect.getmodule(target) or inspect.getmodule(type(target))
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file and Path(file).is_file() else b""
