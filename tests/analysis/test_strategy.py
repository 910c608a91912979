"""How ranks share the work, and whether they issue just what that takes: against traces of torch itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builder import AUTOGRAD, Event, annotation, build, call, comms, kernel, launch, op, read_text, step, table, world
from paths import ROOT, TRACES
from strategy_traces import with_one_call

from traceq.analysis.registry import analyze
from traceq.claims.claim import Basis, Measure
from traceq.model import Arm, Manifest, Run, Trace
from traceq.runs.read import read
from traceq.runs.step_log import StepLine, timings_of

FIXTURES = ROOT / "fixtures" / "strategies"
Row = dict[str, Any]

PARAMETERS, BLOCK, NUM_BLOCKS = 52_308, 16_576, 3
BLOCKS = NUM_BLOCKS * BLOCK


def report_of(trace: Trace | Run) -> tuple[Row, list[Row]]:
    """(the strategy of the only rank, its checks)."""
    run = trace if isinstance(trace, Run) else Run(trace.path, (trace,))
    rows = analyze(run, "strategy").tables[1]
    checked = [dict(zip((column.key for column in rows.columns), row, strict=True)) for row in rows.rows]
    return table(run, "strategy")[0], checked


def of_roles(checked: list[Row], *, steps: int) -> dict[str, tuple[int, int | None]]:
    """(calls, elements) of a step by role."""
    return {row["role"]: (row["num"] // steps, row["elements"] and row["elements"] // steps) for row in checked}


GATHERED = {"parameter_gather_forward": (4, PARAMETERS), "gradient_reduction": (4, PARAMETERS)}
ALL_AGAIN = {"parameter_gather_backward": (4, PARAMETERS)}
BLOCKS_AGAIN = {"parameter_gather_backward": (3, BLOCKS)}


@pytest.mark.parametrize(
    ("name", "strategy", "kept", "expected"),
    [
        ("ddp", "DDP", None, {"gradient_reduction": (1, PARAMETERS)}),
        ("fsdp1_full_shard", "FSDP1 FULL_SHARD", 1, GATHERED | BLOCKS_AGAIN),
        ("fsdp1_shard_grad_op", "FSDP1 SHARD_GRAD_OP", 4, GATHERED),
        ("fsdp2", "FSDP2", 1, GATHERED | BLOCKS_AGAIN),
        ("fsdp2_all", "FSDP2", 0, GATHERED | ALL_AGAIN),
        ("fsdp2_kept", "FSDP2 SHARD_GRAD_OP", 4, GATHERED),
        ("zero1", "ZeRO-1", None, {"gradient_reduction": (1, PARAMETERS), "parameter_gather_step": (15, PARAMETERS)}),
        ("tensor_parallel", "TP", None, {"activation_exchange": (3, NUM_BLOCKS * 8 * 64)}),
    ],
)
def test_what_torch_issues_is_exactly_what_its_strategy_predicts(
    name: str, strategy: str, kept: int | None, expected: dict[str, tuple[int, int]]
) -> None:
    result, checked = report_of(read(FIXTURES / f"{name}.json.gz"))
    assert (result["strategy"], result["verdict"], result["num_kept"]) == (strategy, "exact", kept)
    assert (result["num_steps"], result["num_micro_batches"]) == (2, 1)
    assert of_roles(checked, steps=2) == expected
    assert {row["verdict"] for row in checked} == {"exact"}
    assert all(row["expected_num"] in (row["num"], None) for row in checked)


@pytest.mark.parametrize(
    ("name", "strategy", "expected"),
    [
        ("zero2", "ZeRO-1 or 2", {"gradient_reduction": (1, PARAMETERS), "parameter_gather_step": (1, PARAMETERS)}),
        (
            "zero3",  # fetches three blocks whole, the embedding, and the head
            "ZeRO-3",
            {
                "parameter_gather_forward": (5, PARAMETERS),
                "parameter_gather_backward": (5, PARAMETERS),
                "gradient_reduction": (1, PARAMETERS),
            },
        ),
    ],
)
def test_what_deepspeed_issues_is_exactly_what_zero_predicts(
    name: str, strategy: str, expected: dict[str, tuple[int, int]]
) -> None:
    result, checked = report_of(read(FIXTURES / f"{name}.json.gz"))
    assert (result["strategy"], result["parameters"]) == (strategy, PARAMETERS)
    assert of_roles(checked, steps=2) == expected | {"clip_norm": (1, 1)}
    exact = [row for row in checked if row["role"] != "clip_norm"]
    assert {row["verdict"] for row in exact} == {"exact"}
    assert all((row["num"], row["elements"]) == (row["expected_num"], row["expected_elements"]) for row in exact)


def zero(*, start: int, number: int, reduced: int, gathered: tuple[int, ...]) -> list[Event]:
    """One step of ZeRO-2 on two ranks: gradients are reduced by one call, parameters gathered when they are updated."""
    accumulates = op(
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start + 10, 20, tid=AUTOGRAD
    )
    reduces = comms("allreduce", start + 12, 5, (reduced, reduced), tid=AUTOGRAD)
    gathers = [comms("_allgather_base", start + 70 + 5 * n, 4, (size // 2, size)) for n, size in enumerate(gathered)]
    update = annotation("Optimizer.step#AdamW.step", start + 40, 20)
    return [step(start, 100, number), accumulates, reduces, update, *gathers]


@pytest.mark.parametrize(
    ("gathered", "verdict", "predicted"),
    [
        ((1002,), "exact", 1002),  # whole parts
        ((1004,), "exact", 1004),  # even ones
        ((1006,), "explained", None),
    ],
)
def test_zero_gathers_what_it_reduced_in_equal_parts(
    gathered: tuple[int, ...], verdict: str, predicted: int | None
) -> None:
    events = zero(start=0, number=0, reduced=1001, gathered=gathered)
    result, checked = report_of(build(*events, **world(0, 2, "nccl")))
    assert (result["strategy"], result["verdict"]) == ("ZeRO-1 or 2", verdict)
    assert checked[1]["expected_elements"] == predicted


def test_zero_that_gathers_more_is_unexplained_and_far_more_is_no_zero() -> None:
    def of(gathered: int) -> tuple[str, str]:
        result, _ = report_of(
            build(*zero(start=0, number=0, reduced=10_000, gathered=(gathered,)), **world(0, 2, "nccl"))
        )
        return result["strategy"], result["verdict"]

    assert of(13_000) == ("ZeRO-1 or 2", "unexplained")
    assert of(90_000)[0] == "DDP"


def test_zero_gathers_by_the_same_number_of_calls_wherever_as_much_is_updated() -> None:
    sizes = [(1000,), (4000, 4000), (1000,), (4000, 4000)]
    steps = [zero(start=100 * n, number=n, reduced=sum(of), gathered=of) for n, of in enumerate(sizes)]
    assert report_of(build(*(event for one in steps for event in one), **world(0, 2, "nccl")))[0]["verdict"] == "exact"
    sizes += [(1000,), (500, 500)]
    steps = [zero(start=100 * n, number=n, reduced=sum(of), gathered=of) for n, of in enumerate(sizes)]
    result, _ = report_of(build(*(event for one in steps for event in one), **world(0, 2, "nccl")))
    assert result["reason"] == "parameter_gather_step: 1 call over, in 1 of 6 steps"


def test_two_micro_batches_gather_and_reduce_twice() -> None:
    result, checked = report_of(read(FIXTURES / "fsdp2_accumulated.json.gz"))
    assert (result["strategy"], result["num_micro_batches"], result["parameters"]) == ("FSDP2", 2, PARAMETERS)
    assert of_roles(checked, steps=2) == {
        "parameter_gather_forward": (8, 2 * PARAMETERS),
        "parameter_gather_backward": (6, 2 * BLOCKS),
        "gradient_reduction": (8, 2 * PARAMETERS),
        "clip_norm": (1, 15),
        "metric": (1, 1),
    }


def test_what_runs_beside_a_strategy_is_explained() -> None:
    result, checked = report_of(read(FIXTURES / "ddp_unused.json.gz"))
    assert (result["strategy"], result["verdict"]) == ("DDP", "explained")
    assert {row["role"]: row["verdict"] for row in checked} == {
        "gradient_reduction": "exact",
        "unused_map": "explained",
        "metric": "explained",
    }
    assert "find_unused_parameters" in result["reason"]


def changed(name: str, *, op_name: str, times: int) -> Trace:
    return read_text(with_one_call(name, op_name=op_name, times=times))


def test_one_gather_too_many_is_named() -> None:
    result, checked = report_of(changed("fsdp2", op_name="_allgather_base_", times=2))
    assert result["verdict"] == "unexplained"
    wrong = [row for row in checked if row["verdict"] == "unexplained"]
    assert wrong[0]["role"] == "parameter_gather_forward"
    assert (wrong[0]["num"], wrong[0]["expected_num"]) == (9, 8)
    run = Run("", (changed("fsdp2", op_name="_allgather_base_", times=2),))
    (finding,) = analyze(run, "strategy").findings
    elements, expected = wrong[0]["elements"], wrong[0]["expected_elements"]
    assert elements == expected + 2_580
    measures = finding.measures
    assert (measures["ranks"], measures["strategy"], finding.basis) == ("rank 0", "FSDP2", Basis(2))
    assert (measures["num_elements"], measures["num_expected_elements"]) == (elements, expected)
    assert (measures["role"], measures["reason"]) == ("parameter gather forward", wrong[0]["reason"])


def test_a_reduction_that_one_step_lacks_is_not_explained_away() -> None:
    result, _ = report_of(changed("fsdp2", op_name="_reduce_scatter_base_", times=0))
    assert result["verdict"] == "unexplained"
    assert "short, in 1 of 2 steps" in result["reason"]


def reduced(*sizes: int, start: int = 0, number: int = 0) -> list[Event]:
    """One step of DDP whose buckets hold so many float32."""
    marks = [annotation("DistributedDataParallel.forward", start, 10)]
    engine = [op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start + 20, 60)]
    calls = [comms("allreduce", start + 21 + 5 * n, 4, (size, size)) for n, size in enumerate(sizes)]
    return [step(start, 100, number), *marks, *engine, *calls]


def sharded(*units: int, start: int = 0, number: int = 0, kept: int = 1, replicas: bool = False) -> list[Event]:
    """One step of FSDP2 whose units hold so many float32, the last of them `kept` for backward."""
    events = [step(start, 500, number), annotation("FSDP::root_pre_forward", start, 5)]
    for n, size in enumerate(units):
        index = start + 10 + 10 * n
        events += [
            annotation(f"FSDP::pre_forward (layers.{n})", index, 9),
            comms("_allgather_base", index, 5, (size, size)),
        ]
    for n, size in enumerate(units):
        index = start + 200 + 20 * n
        gathers = [comms("_allgather_base", index, 5, (size, size))] if n < len(units) - kept else []
        reduces = [comms("_reduce_scatter_base", index + 11, 3, (size, size))] if size else []
        summed = [comms("allreduce", index + 15, 2, (size // 2, size // 2))] if replicas else []
        marks = [annotation("FSDP::pre_backward", index, 9), annotation("FSDP::post_backward_reduce", index + 10, 9)]
        events += [*marks, *gathers, *reduces, *summed]
    return events


def test_replicas_add_up_what_each_unit_scattered() -> None:
    result, checked = report_of(build(*sharded(600, 500, 100, replicas=True)))
    assert (result["strategy"], result["verdict"]) == ("FSDP2 over replicas", "exact")
    assert (result["num_units"], result["num_kept"], result["parameters"]) == (3, 1, 1200)
    assert [(row["num"], row["elements"]) for row in checked] == [(3, 1200), (2, 1100), (3, 1200), (3, 600)]


def test_units_that_reduce_nothing_in_any_step_are_explained() -> None:
    steps = [*sharded(600, 500, 100), *sharded(600, 500, 100, start=500, number=1)]
    frozen = [e for e in steps if e.get("args", {}).get("Collective name") != "_reduce_scatter_base"]
    some = [e for e in steps if e.get("args", {}).get("In msg nelems") != 500 or "scatter" not in str(e["args"])]
    result, checked = report_of(build(*some))
    assert (result["verdict"], result["reason"]) == (
        "explained",
        "gradient_reduction: units without a reduction: frozen, or no_sync",
    )
    assert [(row["num"], row["expected_num"]) for row in checked] == [(6, 6), (4, 4), (4, 6)]
    assert report_of(build(*frozen))[0]["verdict"] == "explained"


MIB = 2**20 // 4


def test_buckets_hold_one_then_25_mib_but_for_the_last() -> None:
    usual = reduced(2 * MIB, 26 * MIB, 25 * MIB, 1000)
    assert report_of(build(*usual))[0]["verdict"] == "exact"
    small = report_of(build(*reduced(2 * MIB, 10 * MIB, 1000)))[0]
    assert small["verdict"] == "explained"
    assert "10,485,760 bytes" in small["reason"]


def accumulated(start: int, number: int, *, broadcasts: tuple[int, ...]) -> list[Event]:
    """A step of DDP with two micro-batches, the first under no_sync; buffers are broadcast in some of them."""
    rows = [step(start, 100, number)]
    for batch in range(2):
        rows += [annotation("DistributedDataParallel.forward", start + 50 * batch, 20)]
        rows += [comms("broadcast", start + 50 * batch + 5, 2, (16, 16))] * (batch in broadcasts)
    accumulates = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    return [
        *rows,
        op(accumulates, start + 75, 20, tid=AUTOGRAD),
        comms("allreduce", start + 80, 5, (500, 500), tid=AUTOGRAD),
    ]


def test_under_no_sync_buffers_are_broadcast_only_after_a_reduction() -> None:
    """The first micro-batch follows the reduction of the step before."""
    once = [event for number in range(3) for event in accumulated(100 * number, number, broadcasts=(0,))]
    result, checked = report_of(build(*once))
    assert (result["strategy"], result["verdict"], result["num_micro_batches"]) == ("DDP", "exact", 2)
    assert [(row["role"], row["num"], row["expected_num"]) for row in checked] == [
        ("gradient_reduction", 3, 3),
        ("buffer_broadcast", 3, 3),
    ]
    missing = [*accumulated(0, 0, broadcasts=(0,)), *accumulated(100, 1, broadcasts=())]
    assert report_of(build(*missing))[0]["reason"] == "buffer_broadcast: 1 call short, in 1 of 2 steps"


def test_gradients_are_as_many_in_every_step() -> None:
    steps = [*reduced(500), *reduced(500, start=100, number=1), *reduced(499, start=200, number=2)]
    result = report_of(build(*steps))[0]
    assert (result["strategy"], result["verdict"]) == ("DDP", "unexplained")
    assert result["reason"] == "gradient_reduction: 1 element short, in 1 of 3 steps"


def test_every_call_has_a_kernel_or_the_reason_why_not_is_given() -> None:
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    events = [*reduced(500, 600), launch(22, 1, 1), kernel(nccl, 30, 5, 1)]
    both = [*events, launch(27, 1, 2), kernel(nccl, 40, 5, 2)]

    def kernels(*rows: Event) -> tuple[int, int, str, str]:
        row = next(row for row in report_of(build(*rows))[1] if row["role"] == "kernels")
        return row["num"], row["expected_num"], row["verdict"], row["reason"]

    assert kernels(*both) == (2, 2, "exact", "")
    *numbers, fused = kernels(*events)
    assert (numbers, fused.partition(": ")[0]) == ([1, 2, "explained"], "1 calls without a kernel")
    assert kernels(*both, kernel(nccl, 1, 5)) == (3, 2, "explained", "1 launched before the window")
    graph = [call("cudaGraphLaunch", 90, 1, 3), kernel(nccl, 92, 5, 3)]
    assert kernels(*both, *graph) == (3, 2, "explained", "1 launched by a graph")
    barrier = [op("c10d::barrier", 88, 5), launch(90, 1, 3), kernel(nccl, 92, 5, 3)]
    assert kernels(*both, *barrier) == (3, 2, "explained", "1 of barriers")
    stray = [launch(90, 1, 3), kernel(nccl, 92, 5, 3)]
    assert kernels(*both, *stray) == (3, 2, "unexplained", "1 without a call in the trace")


FETCHES, BUCKETS, PERSISTENT = (6000, 5000, 1000), (6500, 5600), 10


def partitioned(*, start: int = 0, number: int = 0, fetches: tuple[int, ...] = FETCHES) -> list[Event]:
    """Return one step of DeepSpeed's ZeRO-3.

    Layers are fetched before they run, except the last, which is still there in backward; gradients are reduced in two
    buckets, and the replicated parameters are gathered after the update.
    """
    forward, backward, marks = [], [], []
    for n, size in enumerate(fetches):
        forward.append(comms("_allgather_base", start + 10 + 20 * n, 5, (size // 4, size)))
        forward += [op("PreBackwardFunctionForModule", start + 17 + 20 * n, 2), op("aten::mm", start + 20 + 20 * n, 5)]
    for n, size in enumerate(fetches[-2::-1]):
        index, engine = start + 200 + 20 * n, "autograd::engine::evaluate_function: "
        marks.append(op(engine + "PreBackwardFunctionForModuleBackward", index, 8, tid=AUTOGRAD))
        backward.append(comms("_allgather_base", index + 1, 5, (size // 4, size), tid=AUTOGRAD))
        marks.append(op(engine + "torch::autograd::AccumulateGrad", index + 10, 8, tid=AUTOGRAD))
        bucket = BUCKETS[n]
        backward.append(comms("_reduce_scatter_base", index + 11, 5, (bucket, bucket // 4), tid=AUTOGRAD))
    update = annotation("Optimizer.step#AdamW.step", start + 300, 50)
    kept = comms("allgather", start + 360, 5, (PERSISTENT // 2, 2 * PERSISTENT))
    return [step(start, 400, number), *forward, *marks, *backward, update, kept]


def test_partitioned_parameters_are_gathered_by_fetch_and_reduced_by_bucket() -> None:
    result, checked = report_of(build(*partitioned(), *partitioned(start=400, number=1)))
    assert (result["strategy"], result["verdict"], result["num_units"]) == ("ZeRO-3", "exact", None)
    assert "again for backward" in result["rule"]
    assert result["parameters"] == sum(FETCHES)
    assert of_roles(checked, steps=2) == {
        "parameter_gather_forward": (3, sum(FETCHES)),
        "parameter_gather_backward": (2, 11_000),
        "gradient_reduction": (2, sum(BUCKETS)),
        "parameter_gather_step": (1, 2 * PERSISTENT),
    }


def test_a_fetch_that_one_step_lacks_is_not_explained_away() -> None:
    steps = [partitioned(start=400 * n, number=n, fetches=FETCHES if n else FETCHES[1:]) for n in range(3)]
    result, checked = report_of(build(*(event for one in steps for event in one)))
    assert (result["strategy"], result["verdict"]) == ("ZeRO-3", "unexplained")
    assert short(checked) == {
        "parameter_gather_forward": (1, 6_000),
        "parameter_gather_backward": (1, 6_000),
        "gradient_reduction": (1, 5_600),
    }


def short(checked: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """By how many calls and elements what is unexplained falls short of the prediction."""
    return {
        row["role"]: (row["expected_num"] - row["num"], row["expected_elements"] - row["elements"])
        for row in checked
        if row["verdict"] == "unexplained"
    }


def test_without_marks_of_partitioned_parameters_a_bare_gather_carries_activations() -> None:
    bare = [e for e in partitioned() if "PreBackward" not in e["name"] and e["tid"] != AUTOGRAD]
    assert report_of(build(*bare))[0]["strategy"] == "TP"


ACTIVATION, NUM_MICRO = 4096, 3


def stage(*, first: bool = False, last: bool = False, trains: bool = True) -> list[Event]:
    """A step of a pipeline stage: micro-batches come in and go on, then their gradients the other way."""
    events, whole = [step(0, 1000), op("autograd::engine::evaluate_function: MmBackward0", 500, 5)], 2 * [ACTIVATION]
    for n in range(NUM_MICRO):
        forward, backward = 10 + 50 * n, 510 + 50 * n
        events += [] if first else [comms("recv", forward, 5, whole)]
        events += [] if last else [comms("send", forward + 20, 5, whole)]
        events += [] if last or not trains else [comms("recv", backward, 5, whole)]
        events += [] if first or not trains else [comms("send", backward + 20, 5, whole)]
    return events


@pytest.mark.parametrize(
    ("events", "num"),
    [(stage(first=True), NUM_MICRO), (stage(), 2 * NUM_MICRO), (stage(last=True), NUM_MICRO)],
    ids=["first", "middle", "last"],
)
def test_a_stage_of_a_pipeline_receives_as_much_as_it_sends(events: list[Event], num: int) -> None:
    result, checked = report_of(build(*events))
    assert (result["strategy"], result["verdict"]) == ("PP", "exact")
    assert [(row["num"], row["expected_num"], row["elements"]) for row in checked] == [
        (num, num, num * ACTIVATION),
        (num, num, num * ACTIVATION),
    ]


def test_a_message_that_is_not_answered_is_named() -> None:
    lost = next(e for e in reversed(stage()) if e.get("args", {}).get("Collective name") == "recv")
    result, checked = report_of(build(*(e for e in stage() if e != lost)))
    assert result["verdict"] == "unexplained"
    assert list(short(checked).values()) == [(1, ACTIVATION)]


def test_a_pipeline_that_only_infers_sends_one_way() -> None:
    result, _ = report_of(build(*stage(first=True, trains=False)))
    assert (result["strategy"], result["verdict"]) == ("PP", "explained")
    assert "messages go one way" in result["reason"]


def test_a_pipeline_of_replicas_reduces_gradients_too() -> None:
    engine = op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 900, 20)
    result, _ = report_of(build(*stage(), engine, comms("allreduce", 905, 5, (500, 500))))
    assert (result["strategy"], result["verdict"]) == ("DDP + PP", "exact")


def test_ranks_that_share_nothing_and_a_rank_alone_have_no_strategy() -> None:
    assert report_of(build(step(0, 100), op("aten::mm", 1, 2)))[0]["strategy"] == "none"
    alone = comms("allreduce", 10, 5, (10, 10), **{"Group size": 1})
    result, checked = report_of(build(step(0, 100), alone))
    assert (result["strategy"], checked) == ("one rank", [])
    assert analyze(Run("", (build(step(0, 100), alone),)), "strategy").views == ()


def test_layers_that_exchange_and_gradients_that_are_reduced_are_two_strategies() -> None:
    exchanged = op("_AllToAll", 2, 6), comms("alltoallv", 3, 4, (80, 80))
    back = comms("alltoallv", 86, 4, (80, 80)), op("autograd::engine::evaluate_function: _AllToAllBackward", 85, 10)
    result, _ = report_of(build(*reduced(500), *exchanged, *back))
    assert (result["strategy"], result["verdict"]) == ("DDP + EP", "exact")
    another = comms("alltoallv", 91, 4, (80, 80))
    one_way = report_of(build(*reduced(500), *exchanged, *back, comms("alltoallv", 11, 4, (80, 80))))[0]
    assert "no counterpart in backward" in one_way["reason"]
    thrice = comms("alltoallv", 94, 1, (80, 80))
    assert report_of(build(*reduced(500), *exchanged, *back, another))[0]["reason"].endswith("recomputed in backward")
    assert report_of(build(*reduced(500), *exchanged, *back, another, thrice))[0]["verdict"] == "unexplained"


def test_reductions_of_a_compiled_backward_are_gradients_unless_forward_has_their_mirror() -> None:
    node = op("CompiledFunctionBackward", 50, 40, tid=AUTOGRAD)
    hooks = [node, *(comms("allreduce", 55 + 10 * n, 4, (10**7, 10**7), tid=AUTOGRAD) for n in range(3))]
    result, checked = report_of(build(step(0, 100), *hooks))
    assert (result["strategy"], result["verdict"]) == ("DDP", "exact")
    assert [(row["role"], row["num"]) for row in checked] == [("gradient_reduction", 3)]
    forward = op("_CopyToRegion", 5, 9), comms("allreduce", 6, 4, (90, 90))
    assert report_of(build(step(0, 100), *forward, *hooks))[0]["strategy"] == "TP"


@pytest.mark.parametrize("lookup", ["aten::_embedding_bag", "fbgemm::split_embedding_codegen_lookup_adagrad_function"])
def test_ranks_that_exchange_pooled_embeddings_have_no_experts(lookup: str) -> None:
    exchanged = op("All2All_Pooled_Req", 2, 6), comms("alltoallv", 3, 4, (80, 80))
    back = comms("alltoallv", 86, 4, (80, 80)), op("autograd::engine::evaluate_function: All2All_Pooled_Req", 85, 10)
    assert report_of(build(*reduced(500), *exchanged, *back, op(lookup, 1, 1)))[0]["strategy"] == (
        "DDP + sharded embeddings"
    )


def test_what_a_trace_with_lost_events_lacks_may_have_been_issued() -> None:
    """Of three steps the second reduces less; the third waits for work that the trace does not show."""

    def measures(begins: float) -> Mapping[str, Measure]:
        late = launch(95, 2, 1), kernel("gemm", 98, 1, 1), launch(101, 2, 2), kernel("gemm", 101 + begins, 10, 2)
        rows = [*reduced(500, 500), *reduced(500, start=100, number=1), *late]
        last = step(200, 3000 + begins, 2), *reduced(500, 500, start=200, number=2)[1:]
        (finding,) = analyze(Run("", (build(*rows, *last),)), "strategy").findings
        return finding.measures

    assert "lost_pct" not in measures(4)
    assert measures(2500)["lost_pct"] == pytest.approx(43.8, abs=0.1)


def test_the_buckets_of_a_first_step_may_be_others() -> None:
    def steps(*first: int) -> list[Event]:
        return [*reduced(*first), *(e for n in (1, 2, 3) for e in reduced(300, 200, start=100 * n, number=n))]

    assert "rebuilds" in report_of(build(*steps(300, 100, 100)))[0]["reason"]
    assert report_of(build(*steps(300, 100, 99)))[0]["verdict"] == "unexplained"


@pytest.mark.parametrize(
    ("path", "strategy", "elements", "kernels"),
    [
        ("ddp-a100/rank0.json.gz", "DDP", 25_557_032, (21, 21, "exact")),
        ("resnet-ddp-mi300/rank0.json.gz", "DDP", 11_689_512, (17, 12, "explained")),
        ("nanogpt-h100-8r/rank0.json.gz", "ZeRO-2", 268_666_144, (76, 56, "explained")),
        ("gloo-cpu/rank34.json.gz", "DDP", 2_403_682, None),
    ],
)
def test_real_jobs_conserve_their_parameters(
    path: str, strategy: str, elements: int, kernels: tuple[int, int, str] | None
) -> None:
    """25,557,032 are the parameters of ResNet-50, 11,689,512 those of ResNet-18."""
    if not (TRACES / path).exists():
        pytest.skip(f"no {TRACES}")
    result, checked = report_of(read(TRACES / path))
    assert (result["strategy"], result["parameters"]) == (strategy, elements)
    assert {row["verdict"] for row in checked if row["role"] != "kernels"} == {"exact"}
    selected = [(row["num"], row["expected_num"], row["verdict"]) for row in checked if row["role"] == "kernels"]
    assert selected == ([kernels] if kernels else [])


def test_kernels_of_a_real_job_that_no_call_in_the_window_launched_were_launched_before_it() -> None:
    """28 + 28 calls on each of 8 ranks, and 76 to 84 kernels."""
    if not (TRACES / "nanogpt-h100-8r").is_dir():
        pytest.skip(f"no {TRACES}")
    _, checked = report_of(read(TRACES / "nanogpt-h100-8r"))
    kernels = [row for row in checked if row["role"] == "kernels"]
    assert {row["expected_num"] for row in kernels} == {56}
    assert {row["reason"] for row in kernels} == {f"{row['num'] - 56} launched before the window" for row in kernels}
    assert (min(row["num"] for row in kernels), max(row["num"] for row in kernels)) == (76, 84)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(not os.environ.get("TRACEQ_RECORD"), reason="records; `make strategies` runs it")
def test_a_fixture_is_what_torch_issues_today(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = "import sys, pathlib, strategies; strategies.record('fsdp2', pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "fixtures", check=True, capture_output=True)
    anew, kept = (report_of(read(folder / "fsdp2.json.gz")) for folder in (tmp_path, FIXTURES))
    assert anew[0]["verdict"] == "exact"
    assert of_roles(anew[1], steps=2) == of_roles(kept[1], steps=2)


def recorded(*of_ranks: list[Event], phase: str = "backward") -> Run:
    """A recording of these ranks, with one traced step of each and four unprofiled ones."""
    steps = [[StepLine("run", "run", "run", n, 0, n, {phase: 1000}, 2000, 0, 0, 0) for n in range(4)] for _ in of_ranks]
    num_ranks = len(of_ranks)
    manifest = Manifest(
        1, "id", "", "", {}, (Arm("run", "", baseline=True),), (phase,), num_ranks, 0, status="complete"
    )
    traces = tuple(
        build(step(0, 100), op("aten::mul", 10, 20), *events, rank=rank) for rank, events in enumerate(of_ranks)
    )
    return Run("run", traces, manifest, "run", timings=timings_of(steps, "run"))


def test_recorded_ranks_that_exchange_nothing_are_told() -> None:
    """As of a script that wraps its model on a GPU only."""
    (finding,) = analyze(recorded([], []), "strategy").findings
    assert (finding.code, finding.severity, finding.ns) == ("ranks_alone", "high", 0)
    assert (finding.measures, finding.basis) == ({"num_ranks": 2}, Basis(1, is_beside_unprofiled=True))


def test_one_rank_ranks_that_do_not_train_or_one_that_issues_a_collective_are_not_alone() -> None:
    reduces = [op("c10d::allreduce_", 40, 10)]
    for run in (recorded([]), recorded([], [], phase="fetch"), recorded([], reduces)):
        assert analyze(run, "strategy").findings == ()
