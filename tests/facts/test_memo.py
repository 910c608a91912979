"""Facts of a trace end with it: a process that reads a thousand ranks keeps none of them."""

from __future__ import annotations

import gc
from weakref import ref

from paths import ROOT

from traceq.analysis.registry import analysis, names
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
