"""Facts of a trace end with it, as a process that reads a thousand ranks keeps none; threads share them."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from weakref import ref

import pytest
from paths import ROOT

from traceq.analysis.registry import analysis, names
from traceq.facts.memo import once_per_object
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace
from traceq.whatif.rank_cases import contracted_part
from traceq.whatif.rank_part import device_part


def test_nothing_keeps_a_trace_that_was_analyzed_and_replayed() -> None:
    trace = read_trace(ROOT / "fixtures" / "example" / "job" / "rank0.json")
    for name in names():
        analysis(name).summarize(trace)
    contracted_part(device_part(trace, steps(trace).counted), ())
    kept = ref(trace)
    del trace
    gc.collect()
    assert kept() is None


class Subject:
    """Something that has facts."""


def test_a_thread_waits_for_a_fact_that_another_computes() -> None:
    begun, may_end, computed = Event(), Event(), []

    @once_per_object
    def fact(subject: Subject) -> int:
        begun.set()
        assert may_end.wait(10)
        computed.append(subject)
        return len(computed)

    subject = Subject()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fact, subject)
        assert begun.wait(10)
        second = pool.submit(fact, subject)
        may_end.set()
        assert (first.result(10), second.result(10)) == (1, 1)
    assert computed == [subject]


def test_facts_of_two_subjects_are_computed_at_once_and_may_need_each_other() -> None:
    """One lock for both would wait for ever: each computes what the other begins with."""
    both = [Subject(), Subject()]
    begun = {subject: Event() for subject in both}

    @once_per_object
    def fact(subject: Subject) -> bool:
        begun[subject].set()
        return all(other.wait(10) for other in begun.values())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fact, both)) == [True, True]


def test_a_fact_that_failed_is_computed_again() -> None:
    calls = []

    @once_per_object
    def fact(subject: Subject) -> int:
        calls.append(subject)
        if len(calls) == 1:
            raise MemoryError
        return len(calls)

    subject = Subject()
    with pytest.raises(MemoryError):
        fact(subject)
    assert (fact(subject), fact(subject)) == (2, 2)
