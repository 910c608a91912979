"""The process that answers calls: what takes too much ends it alone, and the next call has another one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from agent_calls import answering

from traceq.agent_tools.worker import Worker
from traceq.errors import TraceqError

MOST_BYTES = 1 << 30


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(answering, most_s=2, most_bytes=MOST_BYTES)
    yield worker
    worker.close()


def test_calls_are_answered_by_one_process_and_a_refusal_leaves_it(worker: Worker) -> None:
    first = worker.ask("x", {})
    with pytest.raises(TraceqError, match="no"):
        worker.ask("refuse", {})
    assert worker.ask("x", {}) == first


def test_a_fault_of_a_tool_is_none_of_memory_and_leaves_the_process(worker: Worker) -> None:
    first = worker.ask("x", {})
    with pytest.raises(TraceqError, match="fail: ZeroDivisionError: of zero"):
        worker.ask("fail", {})
    assert worker.ask("x", {}) == first


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sleep", "sleep: stopped after 2 s"),
        pytest.param("fill", "fill: ended", marks=pytest.mark.skipif(sys.platform != "linux", reason="no such limit")),
        ("die", "die: ended"),
    ],
)
def test_what_takes_too_much_ends_its_process_and_the_next_call_is_answered(
    name: str, reason: str, worker: Worker
) -> None:
    before = worker.ask("x", {})
    with pytest.raises(TraceqError, match=reason):
        worker.ask(name, {"size_bytes": 2 * MOST_BYTES})
    assert worker.ask("x", {}) != before


def test_after_its_end_nothing_is_started() -> None:
    worker = Worker(answering)
    worker.close()
    with pytest.raises(TraceqError, match="has ended"):
        worker.ask("x", {})
