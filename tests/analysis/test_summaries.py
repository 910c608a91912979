"""Large traces are summarised by two threads: the reports are the same, and so is what goes wrong."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from threading import current_thread, main_thread
from types import ModuleType

import pytest
from paths import ROOT

from traceq.analysis import registry
from traceq.analysis.registry import PluginAnalysis, analysis, analyze_all, names
from traceq.facts.ranks.job import Job
from traceq.model import Category, Run, Trace
from traceq.report import Report
from traceq.runs.read import read

JOB = ROOT / "fixtures" / "example" / "job"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that two threads summarise, whatever its size and the cores of this machine."""
    monkeypatch.setattr(registry, "_FEWEST_EVENTS", 0)
    monkeypatch.setattr(registry, "num_cores", lambda: 2)
    return read(JOB)


def test_reports_of_two_threads_are_those_of_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    by_two = analyze_all(run)
    monkeypatch.setattr(registry, "num_cores", lambda: 1)
    assert by_two == analyze_all(read(JOB))


def test_analyses_run_beside_the_caller_but_those_of_other_packages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, bool] = {}

    def in_main_thread(name: str) -> None:
        threads[name] = current_thread() is main_thread()

    def summarize(trace: Trace) -> None:
        in_main_thread("plugin")

    def merge(job: Job, parts: object) -> Report:
        return Report("plugin", ())

    idle = analysis("idle").summarize
    monkeypatch.setattr(analysis("idle"), "summarize", lambda trace: (in_main_thread("idle"), idle(trace))[1])
    plugin = PluginAnalysis(1, "?", summarize, merge)
    modules: list[ModuleType | PluginAnalysis] = [plugin, analysis("idle"), analysis("phases")]
    assert len(list(registry._summaries(modules, run.traces))) == 3
    assert list(threads.items()) == [("plugin", True), ("idle", False)]


def test_what_an_analysis_raises_reaches_the_caller(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trace: Trace) -> None:
        raise MemoryError

    monkeypatch.setattr(analysis("phases"), "summarize", fail)
    with pytest.raises(MemoryError):
        registry.analyze_all(run)


def test_names_of_rows_are_looked_up_while_another_thread_adds_rows(run: Run) -> None:
    events, interval = run.traces[0].events, sys.getswitchinterval()
    kinds = [some for size in range(len(Category)) for some in combinations(Category, size)][:2_000]
    names = events.names_among(events.rows(Category.CPU_OP)).tolist()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(lambda: [events.rows(*some) for some in kinds])
            while not adding.done():
                assert events.names_among(events.rows(Category.CPU_OP)).tolist() == names
    finally:
        sys.setswitchinterval(interval)
    assert len(adding.result()) == len(kinds)


def test_the_analyses_that_begin_first_exist() -> None:
    assert set(registry._LONGEST) <= set(names())
