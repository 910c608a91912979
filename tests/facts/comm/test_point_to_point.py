"""Messages of one rank: the other side by title, inputs or members of the group; the time of a group's kernel."""

from __future__ import annotations

from typing import Any

import pytest
from builder import Event, annotation, build, comms, kernel, launch, op, step, world

from traceq.facts.comm.point_to_point import point_to_point

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def message(way: str, title: str, start: float, **group: Any) -> list[Event]:
    return [comms(way, start, 1, (64, 64), **group), annotation(f"nccl:{way} {title}", start + 0.2, 0.5)]


def test_a_group_of_messages_has_the_times_of_its_one_kernel() -> None:
    trace = build(
        step(0, 100),
        *message("send", "1->2", 10),
        *message("recv", "1<-0", 12),
        annotation("nccl:coalesced", 14, 4),
        launch(15, 2, 1),
        kernel(SEND_RECV, 30, 20, 1, stream=20),
        *message("send", "1->0", 60),
        launch(60.8, 0.1, 2),
        kernel(SEND_RECV, 70, 5, 2, stream=20),
        *message("recv", "1<-2", 80),
        **world(1, 4),
    )
    result = point_to_point(trace)
    assert result.is_send.tolist() == [True, False, True, False]
    assert result.peer.tolist() == [2, 0, 0, 2]
    assert result.step.tolist() == [0] * 4
    assert result.elements.tolist() == [64] * 4
    assert result.start.tolist() == [30_000, 30_000, 70_000, -1]
    assert result.end.tolist() == [50_000, 50_000, 75_000, -1]


def test_the_other_side_is_the_global_rank() -> None:
    """Titles count ranks in the group; a group whose members are not all written has unknown ranks."""
    trace = build(
        step(0, 100),
        *message("send", "0->1", 10, **{"Group size": 2, "Process Group Ranks": "[1, 3]"}),
        *message("send", "0->1", 20, **{"Group size": 2, "Process Group Ranks": "[1, ...]"}),
        *message("send", "0->1", 30, **{"Group size": 4}),
        **world(1, 4),
    )
    assert point_to_point(trace).peer.tolist() == [3, -1, 1]


def test_gloo_tells_the_other_side_by_the_inputs_of_the_op_which_posts_it() -> None:
    inputs = {"Concrete Inputs": ["", "", "2", "0"], "Input Dims": [[[2, 8]], [], [], []]}
    rows = [
        op("c10d::send", 10, 2, **inputs),
        annotation("gloo:send", 11, 40, **{"Input Dims": [[2, 8]], "Input type": ["float"]}),
        op("c10d::recv_", 20, 2),
        annotation("gloo:recv", 21, 9),
    ]
    pg = {"pg_count": 1, "pg_config": [{"pg_name": "0", "pg_size": 3, "ranks": [0, 1, 2]}]}
    metadata = {"distributedInfo": world(0, 3, "gloo")["distributedInfo"] | pg}
    result = point_to_point(build(step(0, 100), *rows, **metadata))
    assert result.is_send.tolist() == [True, False]
    assert result.peer.tolist() == [2, -1]
    assert result.elements.tolist() == [16, -1]
    assert (result.start.tolist(), result.end.tolist()) == ([10_000, 20_000], [51_000, 30_000])


@pytest.mark.parametrize(
    "inputs", [[], ["", "", "9" * 40], ["", "", "-2"], ["", "", 1e999], ["", "", None], {"a": 1}, "text", ["", "", [0]]]
)
def test_inputs_that_are_no_rank_tell_nothing(inputs: Any) -> None:
    rows = [op("c10d::send", 10, 2, **{"Concrete Inputs": inputs}), annotation("gloo:send", 11, 5)]
    assert point_to_point(build(step(0, 100), *rows, **world(0, 3, "gloo"))).peer.tolist() == [-1]


def test_of_two_ranks_there_is_one_other() -> None:
    trace = build(step(0, 100), annotation("gloo:send", 10, 5), **world(1, 2, "gloo"))
    assert point_to_point(trace).peer.tolist() == [0]
