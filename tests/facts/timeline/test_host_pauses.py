"""When the host pauses: its thread stops in calls of many kinds, which usually take microseconds. Times in us."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builder import build, call
from pausing_host import APART, OPS, USUAL_US, Pauses, layers

from traceq.analysis._longest_work import host_causes
from traceq.analysis.registry import analyze
from traceq.facts.stalls.idle_time import IdleCause
from traceq.facts.timeline.host_pauses import host_pauses
from traceq.model import Run, Trace


def pauses_us(trace: Trace) -> list[float]:
    return [(end - start) / 1000 for start, end in host_pauses(trace).tolist()]


def test_a_thread_that_stops_in_many_ops_pauses() -> None:
    assert pauses_us(build(*layers())) == [USUAL_US + us for us in APART.values()]


@pytest.mark.parametrize(
    "slow",
    [
        {},
        {(2, "mm"): 8_000, (3, "sum"): 5_000, (4, "view"): 9_000},  # in too few kinds to be of none
        {(layer, "mm"): 8_000 for layer in (2, 4, 6)},
        dict.fromkeys(APART, 400),  # less than the system lets a thread wait
        {(7, name): 8_000 for name in OPS} | {(layer, name): 8_000 for layer in range(5) for name in OPS},
    ],
)
def test_what_is_slow_in_one_place_or_as_a_rule_is_no_pause(slow: Pauses) -> None:
    assert pauses_us(build(*layers(slow))) == []


def test_what_has_most_of_the_time_is_no_pause() -> None:
    slow = APART | {(4, "mm"): 15_000, (6, "mm"): 15_000}
    assert pauses_us(build(*layers(slow))) == [USUAL_US + us for (_, name), us in APART.items() if name != "mm"]


def test_what_recurs_in_each_step_is_no_pause() -> None:
    starts = [number * 100_000 for number in range(4)]
    again = [row for start in starts for row in layers(APART, start)]
    assert pauses_us(build(*again)) == []
    sides: Sequence[Pauses] = ({}, APART, {}, {})
    assert (
        len(pauses_us(build(*(row for start, each in zip(starts, sides, strict=True) for row in layers(each, start)))))
        == 5
    )


def test_a_launch_on_a_busy_device_may_wait_for_the_queue() -> None:
    trace = build(*layers({key: us for key, us in APART.items() if key[0] > 3}, call_us={2: 8_000, 3: 9_000}))
    assert pauses_us(trace) == []


def test_a_kind_of_few_times_tells_no_pause() -> None:
    pauses = {(1 + layer % 3, name): us for (layer, name), us in APART.items()}
    assert len(pauses_us(build(*layers(pauses, num=5)))) == len(APART)
    assert pauses_us(build(*layers(pauses, num=4))) == []


def test_waits_for_the_device_are_no_pauses() -> None:
    names = (*(f"cuda{what}Synchronize" for what in ("Stream", "Event", "Device")), "cudaMalloc", "cudaFree")
    rows = layers()
    ops = [each for each in rows if each["cat"] == "cpu_op"]
    waits = [call(names[index % len(OPS)], each["ts"] + 1, each["dur"] - 12) for index, each in enumerate(ops)]
    assert pauses_us(build(*rows, *waits)) == []


def test_a_host_without_a_device_pauses_in_ops_of_any_length() -> None:
    assert pauses_us(build(*(each for each in layers() if each["cat"] != "kernel"))) == []


def test_an_op_is_named_for_the_time_that_it_usually_takes() -> None:
    usual, paused = (host_causes(build(*layers(each))) for each in ({}, APART))
    longer = {
        (cause, op): round((ns - usual.get((cause, op, line, phase), 0)) / 1000)
        for (cause, op, line, phase), ns in paused.items()
    }
    pauses_us = sum(APART.values()) + USUAL_US * len(APART)
    ops = {(IdleCause.HOST_OP, f"aten::{name}"): -USUAL_US for name in OPS}
    assert longer == {(IdleCause.HOST_PAUSE, ""): pauses_us, (IdleCause.PYTHON, ""): 0} | ops


def test_a_host_that_mostly_pauses_may_lack_cores() -> None:
    """Of 227 ms in which a device waited for its host, its thread did not run for 178, and nothing said so."""
    claims = {each.code: each for each in analyze(Run("", (build(*layers()),)), "partition").findings}
    assert claims["host_bound"].remedy == "pauses"
