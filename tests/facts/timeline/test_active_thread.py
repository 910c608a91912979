"""The thread that is at work on the host: of many, those that launch most are followed."""

from __future__ import annotations

from builder import MAIN, build, kernel, launch, op, step

from traceq.facts.timeline.active_thread import launching_threads


def test_of_thousands_of_threads_those_that_launch_most_are_followed() -> None:
    events = [step(0, 100_000), launch(1, 1, 1), kernel("gemm", 3, 1, 1)]
    for thread in range(1000):
        for turn in range(2 if thread >= 900 else 1):
            start, corr = 10 + 20 * thread + 5 * turn, 2 + 2 * thread + turn
            events += [op("aten::mm", start, 4, tid=100 + thread), launch(start + 1, 1, corr, tid=100 + thread)]
            events.append(kernel("gemm", start + 3, 1, corr))
    trace = build(*events)
    names = [trace.events.strings[track % len(trace.events.strings)] for track in launching_threads(trace)]
    assert (names[0], len(names)) == (str(MAIN), 129)
    assert {str(100 + thread) for thread in range(900, 1000)} < set(names)
