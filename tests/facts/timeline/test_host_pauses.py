"""When the host pauses: its thread stops in calls of many kinds, which usually take microseconds. Times in us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from builder import Event, build, call, kernel, launch, op, step

from traceq.analysis._host_causes import host_causes
from traceq.facts.timeline.host_pauses import host_pauses
from traceq.model import Trace

OPS = ("mm", "sum", "view", "relu", "add")
USUAL_US, KERNEL_US, PAUSE_US = 10, 5, 8_000
Pauses = Mapping[tuple[int, str], int]
"""Us by the number of the layer and the op in which the thread stops."""
APART: Pauses = {(2, "mm"): 8_000, (3, "sum"): 5_000, (4, "view"): 9_000, (5, "relu"): 6_000, (6, "add"): 4_000}


def layers(
    pauses: Pauses = APART, start: int = 0, num: int = 8, call_us: Mapping[int, int] | None = None
) -> list[Event]:
    """Layers of five ops, each with a launch of a short kernel and 10 us before it, in which the thread may stop.

    In layers of `call_us` the launch of `mm` takes as long, and the kernel before it too.
    """
    rows, time = list[Event](), start
    for layer in range(num):
        for name in OPS:
            corr, before_us = len(rows) + start, USUAL_US + pauses.get((layer, name), 0)
            held_us = (call_us or {}).get(layer, 0) * (name == "mm")
            if held_us:
                rows.append(kernel("busy", time, before_us + held_us))
            rows += [op(f"aten::{name}", time, before_us + held_us + 10), launch(time + before_us, 5 + held_us, corr)]
            time += before_us + held_us + 20
            rows.append(kernel(name, time - 12, KERNEL_US, corr))
    return [step(start, time - start, start), *rows]


def pauses_us(trace: Trace) -> list[float]:
    return [(end - start) / 1000 for start, end in host_pauses(trace).tolist()]


def test_a_thread_that_stops_in_many_ops_pauses() -> None:
    assert pauses_us(build(*layers())) == [USUAL_US + us for us in APART.values()]


@pytest.mark.parametrize(
    "slow",
    [
        {},
        {(2, "mm"): 8_000, (3, "sum"): 5_000, (4, "view"): 9_000},  # in too few kinds to be of none
        {(layer, "mm"): PAUSE_US for layer in (2, 4, 6)},
        APART | {(4, "mm"): 15_000, (6, "mm"): 15_000},  # most of the time is of one kind
        dict.fromkeys(APART, 400),  # less than the system lets a thread wait
        {(7, name): PAUSE_US for name in OPS} | {(layer, name): PAUSE_US for layer in range(5) for name in OPS},
    ],
)
def test_what_is_slow_in_one_place_or_as_a_rule_is_no_pause(slow: Pauses) -> None:
    assert pauses_us(build(*layers(slow))) == []


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
    usual, paused = ({op: ns for (_, op, *_), ns in host_causes(build(*layers(each))).items()} for each in ({}, APART))
    assert {op: round((paused[op] - ns) / 1000) for op, ns in usual.items()} == {
        f"aten::{name}": -USUAL_US for name in OPS
    } | {"": 0}
