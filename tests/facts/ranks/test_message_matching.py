"""Messages of two ranks on one clock: who waits for whose start, and for how long data move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceq.facts.comm.point_to_point import PointToPoint
from traceq.facts.ranks.message_matching import MessageTimes, match_messages

Row = tuple[str, int, int, int, int, int]
"""send or recv, peer, step, elements, start, end."""


def messages(*rows: Row) -> PointToPoint:
    columns = np.array([row[1:] for row in rows], np.int64).reshape(-1, 5).T
    peer, step, elements, start, end = columns
    return PointToPoint(np.array([row[0] == "send" for row in rows], np.bool_), peer, step, elements, start, start, end)


def split(times: MessageTimes) -> list[tuple[int, int, int]]:
    """(waits, moves, done) of each message, ns."""
    columns = times.both_started - times.start, times.transferred - times.both_started, times.end - times.transferred
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_each_side_waits_for_the_start_of_the_other() -> None:
    early = messages(("recv", 1, 0, 8, 100, 190), ("send", 1, 0, 8, 300, 400))
    late = messages(("send", 0, 0, 8, 150, 200), ("recv", 0, 0, 8, 200, 390))
    times = match_messages((0, 1), (early, late), (0, 0), {})
    assert times.offset.tolist() == [0, 0]
    assert times.partner.tolist() == [2, 3, 0, 1]
    assert split(times) == [(50, 40, 0), (0, 90, 10), (0, 40, 10), (100, 90, 0)]


@pytest.mark.parametrize(("ahead", "expected"), [({}, 975), ({0: 0.0, 1: 1000.0}, 1000), ({0: 0.0, 1: 2000.0}, 975)])
def test_a_clock_that_would_receive_before_it_sends_is_set_back(ahead: dict[int, float], expected: int) -> None:
    """Rank 1 is 1,000 ns ahead: messages bound that by 900 and 1,050; what collectives tell counts within these."""
    first = messages(("send", 1, 0, 8, 0, 50), ("recv", 1, 0, 8, 100, 300))
    second = messages(("recv", 0, 0, 8, 1000, 1050), ("send", 0, 0, 8, 1200, 1300))
    times = match_messages((0, 1), (first, second), (0, 0), ahead)
    assert times.offset.tolist() == [0, expected]


def test_steps_with_other_numbers_or_sizes_of_messages_do_not_match() -> None:
    first = messages(
        ("send", 1, 1, 8, 0, 10),
        ("send", 1, 2, 8, 20, 30),
        ("send", 1, 2, 8, 40, 50),
        ("send", 1, 3, 8, 60, 70),
        ("send", 1, -1, 8, 80, 90),
        ("send", 7, 3, 8, 92, 95),
    )
    second = messages(("recv", 0, 1, 8, 0, 12), ("recv", 0, 2, 8, 20, 32), ("recv", 0, 3, 9, 60, 72))
    times = match_messages((0, 1), (first, second), (0, 0), {})
    assert times.partner.tolist() == [6, -1, -1, -1, -1, -1, 0, -1, -1]
    assert times.peer.tolist() == [1, 1, 1, 1, 1, -1, 0, 0, 0]
    assert split(times)[1] == (10, 0, 0)  # without a partner all of it is a wait, which nothing counts


def test_no_messages() -> None:
    assert len(match_messages((0, 1), (messages(), messages()), (0, 0), {}).partner) == 0
    assert len(match_messages((), (), (), {}).partner) == 0


lanes = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.sampled_from((-1, 8))),
    max_size=24,
)


@given(lanes)
def test_partners_are_those_of_a_loop_over_all_pairs(rows: list[tuple[bool, int, int, int, int]]) -> None:
    each: list[list[Row]] = [[], [], []]
    for index, (is_send, rank, peer, step, elements) in enumerate(rows):
        each[rank].append(("send" if is_send else "recv", peer, step, elements, 10 * index, 10 * index + 5))
    flat = [(rank, *row) for rank in range(3) for row in each[rank]]
    times = match_messages((0, 1, 2), [messages(*part) for part in each], (0, 0, 0), {})
    expected = [-1] * len(flat)
    for source in range(3):
        for target in range(3):
            for step in range(2):
                sends = [
                    i
                    for i, (rank, way, peer, s, *_) in enumerate(flat)
                    if (rank, way, peer, s) == (source, "send", target, step)
                ]
                recvs = [
                    i
                    for i, (rank, way, peer, s, *_) in enumerate(flat)
                    if (rank, way, peer, s) == (target, "recv", source, step)
                ]
                sizes = [(flat[a][4], flat[b][4]) for a, b in zip(sends, recvs, strict=False)]
                if len(sends) == len(recvs) and all(a == b or -1 in (a, b) for a, b in sizes):
                    for a, b in zip(sends, recvs, strict=True):
                        expected[a], expected[b] = b, a
    assert times.partner.tolist() == expected
