"""Registry of analyses: modules of this package and plugins with a `summarize` and a `merge`, ordered by `POSITION`.

`summarize(trace)` reduces one rank's events to a part; `merge(job, parts)` makes the report on all ranks from their
parts, in the order of the ranks. Both are the same wherever the ranks are read.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from traceq import analysis as package
from traceq.analysis._plugins import PluginAnalysis, plugin_analyses
from traceq.analysis._summaries import summaries
from traceq.claims.claim import Basis
from traceq.claims.judge import judged
from traceq.errors import UsageFault
from traceq.facts.ranks.job import Job, job_of
from traceq.facts.ranks.rank_outline import Outline, outline
from traceq.model import SLOWED_BY_STACKS, Caveat, Run, Trace
from traceq.report import Report, Sheet, Source, StepTime
from traceq.stages import counted

__all__ = [
    "Analysis",
    "analysis",
    "analyze",
    "analyze_all",
    "chosen",
    "describe",
    "describe_analyses",
    "merged",
    "names",
    "plugin_caveats",
    "plugins_version",
    "reports_of",
    "sheet",
]


class Analysis(Protocol):
    """One question about a run: a module, or an object, whose docstring begins with the question."""

    POSITION: float
    """Place in a report; traceq's own run from 4 to 80."""

    def summarize(self, trace: Trace, /) -> Any:
        """Return what `merge` needs of one rank.

        Its type is annotated and made of dataclasses, numbers, texts, lists and numpy arrays: ranks may be read by
        other processes, and what is kept of them is stored.
        """

    def merge(self, job: Job, parts: Sequence[Any], /) -> Report:
        """Return the report on all ranks. The key of a table is the analysis's name, or begins with it and `_`."""


@cache
def _modules() -> dict[str, ModuleType]:
    modules = [import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    analyses = [each for each in modules if all(hasattr(each, name) for name in ("POSITION", "summarize", "merge"))]
    analyses.sort(key=lambda module: module.POSITION)
    return {module.__name__.rpartition(".")[2]: module for module in analyses}


def names() -> tuple[str, ...]:
    """Return the names of all analyses, in the order of a report; plugins that cannot be used are left out."""
    every: dict[str, ModuleType | PluginAnalysis] = {**plugin_analyses().by_name, **_modules()}
    return tuple(sorted(every, key=lambda name: (every[name].POSITION, name)))


def chosen(only: Sequence[str]) -> tuple[str, ...]:
    """Return the names that were chosen, or all, in the order of a report. Raises UsageFault for an unknown name."""
    if not only:
        return names()
    return tuple(sorted(dict.fromkeys(only), key=lambda name: (analysis(name).POSITION, name)))


def analysis(name: str) -> ModuleType | PluginAnalysis:
    """Return one analysis. Raises UsageFault for an unknown name, TraceqError for a plugin that cannot be used."""
    if name in _modules():
        return _modules()[name]
    plugins = plugin_analyses()
    if name in plugins.by_name:
        return plugins.by_name[name]
    if name in plugins.faults:
        raise plugins.faults[name]
    from difflib import get_close_matches  # for a misspelt name alone

    close = get_close_matches(name, names(), n=1)
    choice = "choose from " + ", ".join(names())
    raise UsageFault(f"no analysis '{name}'" + (f"; did you mean '{close[0]}'? " if close else "; ") + choice)


def describe_analyses() -> dict[str, str]:
    """Return the question that each analysis answers, by name, in the order of a report."""
    plugins, modules = plugin_analyses().by_name, _modules()
    questions = {name: plugin.question for name, plugin in plugins.items()}
    questions |= {name: (module.__doc__ or "").partition("\n")[0] for name, module in modules.items()}
    return {name: questions[name] for name in names()}


def plugin_caveats(only: Sequence[str]) -> tuple[Caveat, ...]:
    """Return a doubt for each plugin that a report on everything lacks; none where analyses were chosen."""
    return () if only else tuple(Caveat("plugin", str(fault)) for fault in plugin_analyses().faults.values())


def plugins_version() -> str:
    """Return a text that changes with the analyses of other packages; "" without any."""
    return plugin_analyses().version


def analyze(run: Run, name: str) -> Report:
    """Return the report of one analysis of a run. Raises UsageFault for an unknown name."""
    return analyze_all(run, (name,))[0]


def analyze_all(run: Run, only: Sequence[str] = ()) -> tuple[Report, ...]:
    """Return the reports of several analyses of a run, or of all, in the order of a report."""
    return reports_of(job_of(run), run.traces, only)


def reports_of(job: Job, traces: Sequence[Trace], only: Sequence[str] = ()) -> tuple[Report, ...]:
    """Return the reports of several analyses of a job whose traces are in memory, in the order of a report.

    They have no findings where durations are no evidence.
    """
    modules = tuple(map(analysis, chosen(only)))
    with closing(summaries(modules, traces)) as parts:
        reports = tuple(merged(module, job, next(parts)) for module in counted("analysing", modules))
    if any(caveat.code == SLOWED_BY_STACKS for caveat in job.caveats):
        return tuple(replace(report, findings=()) for report in reports)
    return reports


def merged(module: ModuleType | PluginAnalysis, job: Job, parts: Sequence[Any]) -> Report:
    """Return the report of one analysis on all ranks of a job, its claims judged."""
    report: Report = module.merge(job, parts)
    if not report.findings:
        return report
    counted_ns = [np.diff(rank.steps.window[rank.steps.counted]) for rank in job.ranks]
    is_marked = bool(job.ranks) and job.ranks[0].steps.marked
    basis = Basis(min(map(len, counted_ns), default=0) if is_marked else 0)
    if not any(map(len, counted_ns)) and job.timings is not None:
        counted_ns = [job.timings.step_ns]
    step_ns = float(np.mean([ns.mean() for ns in counted_ns if ns.size] or [0.0]))
    lacks_ranks = bool(job.ranks) and len(job.ranks) < job.ranks[0].world_size
    has_unprofiled = job.timings is not None and job.timings.step_ns.size > 0
    claims = judged(report.findings, basis, step_ns, lacks_ranks=lacks_ranks, has_unprofiled=has_unprofiled)
    return replace(report, findings=claims)


def describe(run: Run, ranks: Sequence[Outline] | None = None) -> Source:
    """Return what was read, for the first line of a report; no device for a trace that lacks the rows of its own.

    `ranks` are the outlines of its traces where these have no events.
    """
    environment = run.manifest.environment if run.manifest is not None else {}
    unprofiled = run.timings.step_ns if run.timings is not None else np.zeros((0, 0))
    first = run.traces[0] if run.traces else None
    ranks = tuple(map(outline, run.traces)) if ranks is None else ranks
    lacks_rows = bool(ranks) and (ranks[0].is_empty or ranks[0].lacks_device_rows)
    names_no_device = not ranks or ranks[0].is_foreign or (ranks[0].device == "cpu" and lacks_rows)
    return Source(
        path=run.path,
        num_events=sum(rank.num_events for rank in ranks),
        ranks=run.ranks,
        world_size=first.world_size if first else run.manifest.num_ranks if run.manifest else 0,
        device="" if names_no_device else ranks[0].device,
        torch=str(environment.get("torch", "")),
        arm=run.arm,
        step=first.only.number if first and first.only else None,
        lacks_device_rows=any(rank.lacks_device_rows for rank in ranks),
        traced=_traced(ranks),
        unprofiled=_step_time(unprofiled[unprofiled.mean(axis=1).argmax()]) if unprofiled.size else None,
        window=run.window,
    )


def _traced(ranks: Sequence[Outline]) -> StepTime | None:
    """Return the counted steps, the n-th of all ranks together; None for a run without traces."""
    windows = [np.diff(rank.steps.window[rank.steps.counted])[:, 0] for rank in ranks]
    num = min(map(len, windows), default=0)
    if not num:
        return None
    num_partial = max(len(rank.steps) for rank in ranks) - num
    mean = _step_time(np.mean([ns[:num] for ns in windows], axis=0))
    return replace(mean, num_partial=num_partial, is_step=ranks[0].steps.marked)


def _step_time(ns: NDArray[np.float64] | NDArray[np.int64]) -> StepTime:
    return StepTime(float(ns.mean()), float(ns.min()), float(ns.max()), len(ns))


def sheet(run: Run, only: Sequence[str] = ()) -> Sheet:
    """Return the reports of all analyses of a run, or of some. Raises UsageFault for an unknown name."""
    return Sheet(describe(run), analyze_all(run, only), (*run.caveats, *plugin_caveats(only)))
