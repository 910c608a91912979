"""DDP sends the buffers of a model before each forward pass: what that takes, and where it is little. Times in us."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Event, annotation, build, comms, frame, kernel, launch, op, step, write
from oracle.findings import finding_times

from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.model import Run, Trace


def forward(start: float, *, sends_us: float, corr: int, name: str = "DistributedDataParallel.forward") -> list[Event]:
    """A step of 1,000 us: buffers are put together, sent and taken apart, then a product runs on the device."""
    third = sends_us / 3
    after = start + 20 + sends_us
    return [
        step(start, 1000, corr),
        annotation(name, start + 10, 500),
        *(op("aten::flatten_dense_tensors", start + 20, third), op("aten::view", start + 21, 1)),
        op("c10d::broadcast_", start + 20 + third, 5),
        comms("broadcast", start + 21 + third, 3),
        *(op("aten::unflatten_dense_tensors", start + 30 + third, third), op("aten::copy_", after - third, third)),
        *(op("aten::mm", after, 10), launch(after + 2, 3, corr), kernel("gemm", after + 6, 400, corr)),
        op("autograd::engine::evaluate_function: MmBackward0", start + 600, 20),
    ]


def steps(num: int = 3, **how: float | str) -> list[Event]:
    return [event for number in range(num) for event in forward(1000 * number, corr=number + 1, **how)]  # type: ignore[arg-type]


def findings(*traces: Trace) -> list[Claim]:
    reported = analyze(Run("job", traces), "collectives").findings
    return [finding for finding in reported if finding.code == "buffer_broadcasts"]


def test_what_ddp_does_with_buffers_before_the_first_op_of_the_model_counts() -> None:
    """From 10 us of each step on until the product at 320 us."""
    (claim,) = findings(build(*steps(sends_us=300), distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2}))
    assert claim.ns == claim.measures["idle_ns"] == pytest.approx(310_000, rel=0.02)
    assert claim.gain == (0, claim.ns)


def test_little_time_and_other_modules_are_not() -> None:
    world = {"backend": "nccl", "rank": 0, "world_size": 2}
    assert findings(build(*steps(sends_us=30), distributedInfo=world)) == []
    assert findings(build(*steps(sends_us=300, name="forward"), distributedInfo=world)) == []


@pytest.mark.parametrize(("least_us", "ns"), [(300, [310_000]), (30, [])])
def test_what_others_wait_for_a_late_rank_is_no_cost_of_the_broadcast(least_us: float, ns: list[int]) -> None:
    """Rank 0 waits in its broadcast for rank 1, which comes late: without the broadcast it would wait elsewhere."""
    worlds = ({"backend": "nccl", "rank": rank, "world_size": 2} for rank in range(2))
    sends = zip((450, least_us), worlds, strict=True)
    claims = findings(*(build(*steps(sends_us=us), distributedInfo=world) for us, world in sends))
    assert [claim.ns for claim in claims] == pytest.approx(ns, rel=0.02)
    assert all(claim.subject.rank == 1 for claim in claims)


def test_ranks_that_send_no_buffers_are_left_out() -> None:
    """As those of a stage of a pipeline without batch norm."""
    worlds = [{"backend": "nccl", "rank": rank, "world_size": 2} for rank in range(2)]
    sends = build(*steps(sends_us=300), distributedInfo=worlds[0])
    sends_none = build(*steps(sends_us=300, name="forward"), distributedInfo=worlds[1])
    assert len(findings(sends, sends_none)) == 1


def test_the_time_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    world = {"backend": "nccl", "rank": 0, "world_size": 2}
    rows = [*steps(sends_us=240), frame("train.py(3): main", 0, 3000)]
    (finding,) = findings(build(*rows, distributedInfo=world))
    times = finding_times(write(tmp_path / "trace.json", *rows, distributedInfo=world))
    assert finding.ns == pytest.approx(times["buffer_broadcasts"], abs=1)
