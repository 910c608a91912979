"""Registry of analyses: modules of this package and plugins with a `summarize` and a `merge`, in the order of a report.

`summarize(trace)` reduces one rank's events to a part; `merge(job, parts)` makes the report on all ranks from their
parts, in the order of the ranks. Both are the same wherever the ranks are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, wraps
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from traceq import analysis as package
from traceq.claims.claim import Basis
from traceq.claims.rules import judged
from traceq.cores import num_cores
from traceq.entry_points import ANALYSES, Plugin, find_plugins
from traceq.errors import TraceqError, UsageFault
from traceq.facts.ranks.job import Job, job_of
from traceq.facts.ranks.rank_outline import Outline, outline
from traceq.frozen import frozen
from traceq.model import SLOWED_BY_STACKS, Caveat, Run, Trace
from traceq.report import Report, Sheet, Source, StepTime
from traceq.stages import counted

_CONTRACT = ("POSITION", "summarize", "merge")
_POSITIONS = {
    "arms": 4,
    "batches": 4.5,
    "unprofiled": 5,
    "facts": 5.5,
    "step_profile": 6,
    "loader": 7,
    "steps": 10,
    "inference": 12,
    "perturbation": 12,
    "phases": 20,
    "devices": 22,
    "dataload": 25,
    "partition": 30,
    "compiling": 32,
    "syncs": 40,
    "collectives": 50,
    "lines": 50,
    "experts": 52,
    "strategy": 52,
    "pipeline": 53,
    "clusters": 54,
    "metric_gathers": 54,
    "ranks": 55,
    "desync": 56,
    "arrivals": 57,
    "idle": 58,
    "stalled": 58,
    "replay": 59,
    "critical": 60,
    "memcpy": 62,
    "optimizer": 66,
    "modules": 68,
    "efficiency": 69,
    "kernels": 70,
    "duplicates": 71,
    "launches": 72,
    "memory": 75,
    "host": 78,
    "coverage": 80,
}
"""Places of traceq's own analyses in a report."""
_FEWEST_EVENTS = 100_000
"""Events from which threads are worth their start."""

_NUM_THREADS = 2
"""More would mostly wait, for each other's facts and for Python."""

_LONGEST = ("critical", "replay", "idle")
"""What takes longest begins first, or one thread would be left with it at the end."""


@frozen
class PluginAnalysis:
    """An analysis of another package, and its place in a report."""

    position: float
    question: str
    summarize: Callable[[Trace], Any]
    merge: Callable[[Job, Sequence[Any]], Report]


@frozen
class _PluginAnalyses:
    """Analyses of other packages by name, and why others cannot be used.

    `version` changes with the packages and the sources of their analyses; "" without any.
    """

    by_name: Mapping[str, PluginAnalysis]
    faults: Mapping[str, TraceqError]
    version: str


@cache
def _plugin_analyses() -> _PluginAnalyses:
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
    return _PluginAnalyses(analyses, faults, sha256(b"".join(sources)).hexdigest()[:12] if analyses else "")


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


def names() -> tuple[str, ...]:
    """Return the names of all analyses, in the order of a report; plugins that cannot be used are left out."""
    positions = {name: plugin.position for name, plugin in _plugin_analyses().by_name.items()} | _POSITIONS
    return tuple(sorted(positions, key=lambda name: (positions[name], name)))


def chosen(only: Sequence[str]) -> tuple[str, ...]:
    """Return the names that were chosen, or all, in the order of a report. Raises UsageFault for an unknown name."""
    for name in only:
        analysis(name)
    return tuple(name for name in names() if not only or name in only)


def analysis(name: str) -> ModuleType | PluginAnalysis:
    """Return one analysis. Raises UsageFault for an unknown name, TraceqError for a plugin that cannot be used."""
    if name in _POSITIONS:
        return import_module(f"{package.__name__}.{name}")
    plugins = _plugin_analyses()
    if name in plugins.by_name:
        return plugins.by_name[name]
    if name in plugins.faults:
        raise plugins.faults[name]
    close = get_close_matches(name, names(), n=1)
    choice = "choose from " + ", ".join(names())
    raise UsageFault(f"no analysis '{name}'" + (f"; did you mean '{close[0]}'? " if close else "; ") + choice)


def describe_analyses() -> dict[str, str]:
    """Return the question that each analysis answers, by name, in the order of a report."""
    analyses = {name: analysis(name) for name in names()}
    return {
        name: each.question if isinstance(each, PluginAnalysis) else (each.__doc__ or "").partition("\n")[0]
        for name, each in analyses.items()
    }


def plugin_caveats(only: Sequence[str]) -> tuple[Caveat, ...]:
    """Return a doubt for each plugin that a report on everything lacks; none where analyses were chosen."""
    return () if only else tuple(Caveat("plugin", str(fault)) for fault in _plugin_analyses().faults.values())


def plugins_version() -> str:
    """Return a text that changes with the analyses of other packages; "" without any."""
    return _plugin_analyses().version


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
    with closing(_summaries(modules, traces)) as parts:
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
    has_unprofiled = job.timings is not None and job.timings.step_ns.size > 0
    num_alone = len(job.ranks) * job.lacks_ranks
    claims = judged(report.findings, basis, step_ns, num_alone=num_alone, has_unprofiled=has_unprofiled)
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
        is_distributed=first is not None and bool(first.backend),
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


def _summaries(analyses: Sequence[ModuleType | PluginAnalysis], traces: Sequence[Trace]) -> Generator[tuple[Any, ...]]:
    """Yield for each analysis its summaries of all traces; those of other packages run first, beside no other."""
    modules = [each for each in analyses if isinstance(each, ModuleType)]
    if (
        len(modules) < _NUM_THREADS
        or num_cores() < _NUM_THREADS
        or sum(len(trace.events) for trace in traces) < _FEWEST_EVENTS
    ):
        yield from (_of_all(each, traces) for each in analyses)
        return
    of_others = iter([_of_all(each, traces) for each in analyses if each not in modules])
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        modules.sort(key=lambda module: not module.__name__.endswith(_LONGEST))
        futures = {module.__name__: pool.submit(_of_all, module, traces) for module in modules}
        try:
            for each in analyses:
                yield futures[each.__name__].result() if isinstance(each, ModuleType) else next(of_others)
        finally:
            pool.shutdown(cancel_futures=True)


def _of_all(analysis: ModuleType | PluginAnalysis, traces: Sequence[Trace]) -> tuple[Any, ...]:
    return tuple(map(analysis.summarize, traces))
