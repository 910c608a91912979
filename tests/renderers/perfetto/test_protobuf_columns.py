"""Messages written in columns are those that the protobuf package reads, one by one; lanes never let slices cross."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from traceq.renderers.perfetto.packets import boundaries, delimited, fixed64, join, lanes, varint

INT64 = st.integers(-(2**63), 2**63 - 1)
SLICES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 8)).map(lambda one: (one[0], one[1], sum(one[1:]))),
    max_size=25,
)


@given(st.lists(st.tuples(INT64, st.integers(0, 2**63 - 1), st.booleans()), min_size=1, max_size=20))
def test_the_protobuf_package_reads_what_was_written(values: list[tuple[int, int, bool]]) -> None:
    counters, times, present = (np.array(column) for column in zip(*values, strict=True))
    event = [varint(30, counters), fixed64(47, times, present)]
    data = join(delimited(1, [varint(8, times), *delimited(11, event)]))
    trace = Trace()
    trace.ParseFromString(data)
    decoded = [(p.track_event.counter_value, p.timestamp, list(p.track_event.flow_ids)) for p in trace.packet]
    assert decoded == [(counter, time, [time] if there else []) for counter, time, there in values]


@given(st.lists(st.tuples(INT64, st.booleans()), min_size=1, max_size=20))
def test_a_nested_message_that_is_absent_leaves_no_byte(values: list[tuple[int, bool]]) -> None:
    counters, present = (np.array(column) for column in zip(*values, strict=True))
    trace = Trace()
    trace.ParseFromString(join(delimited(1, delimited(11, [varint(30, counters)], present))))
    decoded = [p.track_event.counter_value if p.HasField("track_event") else None for p in trace.packet]
    assert decoded == [counter if there else None for counter, there in values]


def crosses(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """They overlap, and neither holds the other."""
    return a[0] < b[0] < a[1] < b[1] or b[0] < a[0] < b[1] < a[1]


@given(SLICES)
def test_slices_of_a_lane_never_cross_and_only_crossing_ones_are_moved(slices: list[tuple[int, int, int]]) -> None:
    track, start, end = np.array(slices, np.int64).reshape(-1, 3).T
    lane = lanes(track, start, end).tolist()
    for i, (track_i, *one) in enumerate(slices):
        others = [(j, (other[1], other[2])) for j, other in enumerate(slices) if other[0] == track_i and j != i]
        assert not any(crosses((one[0], one[1]), other) and lane[i] == lane[j] for j, other in others)
        if lane[i]:
            assert any(crosses((one[0], one[1]), other) for _, other in others)


@given(SLICES)
def test_a_stack_finds_each_end_on_top(slices: list[tuple[int, int, int]]) -> None:
    track, start, end = np.array(slices, np.int64).reshape(-1, 3).T
    lane = lanes(np.zeros_like(track), start, end)
    for number in set(lane.tolist()):
        rows = np.flatnonzero(lane == number)
        stack: list[int] = []
        last = -1
        for which, opens in zip(*(column.tolist() for column in boundaries(start[rows], end[rows])), strict=True):
            time = int((start if opens else end)[rows[which]])
            assert time >= last
            last = time
            if opens:
                stack.append(which)
            else:
                assert stack.pop() == which
        assert not stack
