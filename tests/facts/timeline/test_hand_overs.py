"""A worker's batch that is there has to be made the main thread's own, tensor by tensor: no wait for the worker."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, op, step

from traceq.analysis.registry import analyze
from traceq.facts.timeline.data_loading import hand_overs, late_batches
from traceq.model import Run, Trace

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def fetching(*late_us: int, tensors: int = 2, one_us: int = 300) -> Trace:
    """Steps of 2 ms of compute, each after a batch that is late by so many us, whose tensors take `one_us` each."""
    rows: list[Event] = []
    begin = 0
    for number, late in enumerate(late_us):
        length = late + tensors * one_us + 100
        rebuilt = [op("aten::set_", begin + late + (each + 1) * one_us - 5, 5) for each in range(tensors)]
        rows += [step(begin, length + 2_000, number), annotation(NEXT, begin, length), *rebuilt]
        rows += [op("aten::mm", begin + length, 2_000)]
        begin += length + 2_000
    return build(*rows)


def test_the_first_tensor_takes_as_long_as_those_after_it() -> None:
    taken = hand_overs(fetching(0, 5_000, 0))
    assert taken.tolist() == [[0, 700_000], [7_700_000, 8_400_000], [10_400_000, 11_100_000]]


def test_of_one_tensor_only_its_last_op_is_known() -> None:
    assert hand_overs(fetching(0, tensors=1)).tolist() == [[300_000, 400_000]]


def test_a_batch_that_is_there_is_not_late_however_long_it_takes_over() -> None:
    assert late_batches(fetching(0, 0, 5_000, 0)).tolist() == [[5_400_000, 11_100_000]]


@pytest.mark.parametrize(("late_us", "remedy", "hand_over_ns"), [(20, "hand_over", 700_000), (5_000, "", None)])
def test_workers_are_too_slow_only_where_batches_are_late(late_us: int, remedy: str, hand_over_ns: int | None) -> None:
    (finding,) = analyze(Run("trace", (fetching(*[late_us] * 4),)), "dataload").findings
    assert (finding.code, finding.remedy, finding.measures.get("hand_over_ns")) == ("starved", remedy, hand_over_ns)
