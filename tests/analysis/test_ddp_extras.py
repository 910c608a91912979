"""What DDP does beyond one reduction per step: what its broadcasts, and repeated reductions, take. Times in us."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Event, annotation, build, comms, frame, kernel, launch, op, step, write
from oracle.findings import finding_times

from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.claims.rules import supersedes
from traceq.model import Arm, Manifest, Run, Trace


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


def findings(*traces: Trace, code: str = "buffer_broadcasts") -> list[Claim]:
    return [finding for finding in analyze(Run("job", traces), "collectives").findings if finding.code == code]


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


def test_the_time_of_broadcasts_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    world = {"backend": "nccl", "rank": 0, "world_size": 2}
    rows = [*steps(sends_us=240), frame("train.py(3): main", 0, 3000)]
    (finding,) = findings(build(*rows, distributedInfo=world))
    times = finding_times(write(tmp_path / "trace.json", *rows, distributedInfo=world))
    assert finding.ns == pytest.approx(times["buffer_broadcasts"], abs=1)


GLOO = {"backend": "gloo", "rank": 0, "world_size": 2}


@pytest.mark.parametrize(("reduces_us", "exposed_pct"), [(100, 75), (600, pytest.approx(33.3, rel=0.01))])
def test_broadcasts_come_with_their_part_of_what_is_exposed(reduces_us: float, exposed_pct: float) -> None:
    """Of 300 us of buffers and a reduction, both without a device, by which they explain exposed transfers."""
    rows = [step(1000 * number, 1000, number) for number in range(3)]
    for start in (0, 1000, 2000):
        rows += [annotation("DistributedDataParallel.forward", start, 360), op("c10d::broadcast_", start, 300)]
        rows += [annotation("gloo:broadcast", start, 300), comms("broadcast", start, 300, (4096, 4096))]
        rows += [op("aten::addmm", start + 300, 50), op(ACCUMULATES, start + 400, reduces_us)]
        rows += [annotation("gloo:all_reduce", start + 400, reduces_us)]
        rows += [comms("all_reduce", start + 400, reduces_us, (4096, 4096))]
    (claim,) = findings(build(*rows, distributedInfo=GLOO))
    assert claim.measures["exposed_pct"] == exposed_pct
    shown = Claim("exposed_transfer", claim.ns)
    assert supersedes(claim, shown) == (reduces_us == 100)


ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def backward_pass(start: float, *, elements: int = 4096, exposed_us: float = 100) -> list[Event]:
    """A forward pass, and a reduction of its gradients; 300 us."""
    return [
        annotation("DistributedDataParallel.forward", start, 100),
        op("aten::addmm", start + 10, 80),
        op(ACCUMULATES, start + 120, exposed_us + 10),
        annotation("gloo:all_reduce", start + 125, exposed_us),
        comms("all_reduce", start + 125, exposed_us, (elements, elements)),
    ]


def accumulating(*sizes: int, **how: float) -> Trace:
    return build(*accumulating_rows(*sizes, **how), distributedInfo=GLOO)


def accumulating_rows(*sizes: int, updates: float = 1, exposed_us: float = 100) -> list[Event]:
    """Steps of as many backward passes, with gradients of these sizes, the last of which precede the updates."""
    rows: list[Event] = []
    step_us = 300 * len(sizes) + 100
    for number in range(3):
        rows.append(step(number * step_us, step_us, number))
        for index, elements in enumerate(sizes):
            begin = number * step_us + 300 * index
            rows += backward_pass(begin, elements=elements, exposed_us=exposed_us)
            if index >= len(sizes) - updates:
                rows.append(annotation(f"Optimizer.step#SGD{index}.step", begin + 290, 9))
    return rows


def repeated(trace: Trace) -> list[Claim]:
    return findings(trace, code="repeated_reductions")


def test_reductions_that_a_later_backward_pass_of_the_same_update_repeats_are_a_finding() -> None:
    """Three of four passes, of 100 us each, that no_sync() would leave out."""
    (claim,) = repeated(accumulating(4096, 4096, 4096, 4096))
    assert (claim.ns, claim.measures["num_reductions"]) == (300_000, 4)
    assert claim.gain == (0, 300_000)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(accumulating(4096), id="one pass"),
        pytest.param(accumulating(4096, 4096, updates=2), id="an update after each pass"),
        pytest.param(accumulating(4096, 1024), id="two models"),
        pytest.param(accumulating(4096, 4096, exposed_us=5), id="little time"),
    ],
)
def test_reductions_that_are_needed_or_short_are_none(trace: Trace) -> None:
    assert repeated(trace) == []


def test_the_time_of_repeated_reductions_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    rows = [*accumulating_rows(4096, 4096, 4096), frame("train.py(3): main", 0, 3000)]
    (claim,) = repeated(build(*rows, distributedInfo=GLOO))
    times = finding_times(write(tmp_path / "trace.json", *rows, distributedInfo=GLOO))
    assert claim.ns == pytest.approx(times["repeated_reductions"], abs=1)


def searching(*, used: int = 4, sent_us: float = 50) -> list[Event]:
    """Steps of 1,000 us: DDP searches the graph for 20 us, marks each gradient in 5, and sends the marks."""
    rows: list[Event] = []
    for number in range(3):
        begin, last = 1000 * number, 1000 * number + 200 + 20 * used
        rows += [step(begin, 1000, number), annotation("DistributedDataParallel.forward", begin, 100)]
        rows += [op("aten::addmm", begin + 10, 40), op(SEARCHES, begin + 60, 20)]
        for node in range(begin + 200, last, 20):
            rows += [op("torch::autograd::AccumulateGrad", node, 10), op("aten::select", node + 2, 5)]
        rows += [op(ACCUMULATES, last, 220), annotation("gloo:all_reduce", last, 100)]
        rows += [annotation("gloo:all_reduce", last + 100, sent_us), comms("all_reduce", last, 100, (4096, 4096))]
        rows += [comms("all_reduce", last + 100, sent_us, (4, 4), dtype="Int")]
    return rows


SEARCHES = "torch.distributed.ddp.reducer::search_unused_parameters"


def searches(*ranks: list[Event], num_parameters: int = 4) -> list[Claim]:
    """The claims on a job that recorded how many parameters its model has."""
    facts = {"ddp_parameters": num_parameters}
    traces = (build(*rows, distributedInfo=GLOO | {"rank": rank}) for rank, rows in enumerate(ranks))
    arms = (Arm("run", "", baseline=True),)
    manifest = Manifest(1, "run", "", "", {}, arms, (), num_ranks=len(ranks), seed=0, environment=facts)
    reported = analyze(Run("job", tuple(traces), manifest, "run"), "collectives").findings
    return [finding for finding in reported if finding.code == "unused_search"]


def test_a_search_for_unused_parameters_is_in_vain_where_each_gets_a_gradient() -> None:
    """In each step it takes 20 us, and for each of four parameters 5, and 50 in which the marks are sent."""
    (claim,) = searches(searching(), searching())
    assert (claim.ns, claim.gain) == (90_000, (0, 90_000))


def test_a_search_is_not_in_vain_where_a_parameter_gets_no_gradient_on_some_rank() -> None:
    assert searches(searching(), searching(used=3, sent_us=90)) == []
    assert searches(searching(), searching(), num_parameters=5) == []


def test_the_time_of_a_search_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    rows = [*searching(), frame("train.py(3): main", 0, 3000)]
    (claim,) = searches(rows)
    times = finding_times(write(tmp_path / "trace.json", *rows, distributedInfo=GLOO))
    assert claim.ns == pytest.approx(times["unused_search"], abs=1)
