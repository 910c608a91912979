"""Traces of different jobs are no change: none of them costs or saves anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from builder import AUTOGRAD, Event, annotation, build, call, kernel, launch, op, row, step
from made_sides import H100, codes
from statements import only

from traceq.compare.diff import diff_runs
from traceq.compare.other_jobs import job_difference
from traceq.model import Run, Trace

ENGINE = "autograd::engine::evaluate_function: "
LAYER = ("aten::convolution", "aten::batch_norm")
NODES = {"aten::convolution": "ConvolutionBackward0", "aten::batch_norm": "CudnnBatchNormBackward0"}
ALL_NODES = {**NODES, "aten::addmm": "AddmmBackward0", "aten::layer_norm": "NativeLayerNormBackward0"}


def events_of(
    ops: Sequence[str], *, trains: bool = True, repeated: int = 0, frozen: int = 0, more: Sequence[Event] = ()
) -> list[Event]:
    """One step: ops, each with a kernel; a backward pass without the first `frozen`, with `repeated` ops again."""
    events: list[Event] = []
    names = [*ops, *([ENGINE + ALL_NODES[name] for name in ops[frozen:]] if trains else []), *ops[:repeated]]
    for index, name in enumerate(names):
        thread = {"tid": AUTOGRAD} if index >= len(ops) else {}
        begin = 20 + 20 * index
        events += [row("cpu_op", name, begin, 15, **thread), row("cuda_runtime", "cudaLaunchKernel", begin + 2, 3)]
        events[-1] |= {"tid": events[-2]["tid"], "args": {"correlation": index + 1}}
        events.append(kernel("k_" + name.rpartition(":")[2], begin + 8, 10, index + 1))
    return [step(0, 40 + 20 * len(names)), *events, *more]


def trace_of(ops: Sequence[str], **more: object) -> Trace:
    return build(*events_of(ops, **more), **H100)  # type: ignore[arg-type]


def difference(a: Trace, b: Trace) -> str:
    """What job_difference says, which is the same in either direction but for its sides."""
    assert bool(job_difference(a, b)) == bool(job_difference(b, a))
    return job_difference(a, b)


def test_a_model_of_other_layers_neither_costs_nor_saves() -> None:
    nine, thirteen = (Run("side", (trace_of([*LAYER * number, "aten::addmm"]),)) for number in (9, 13))
    result = diff_runs(nine, thirteen)
    assert (result.answer.code, result.answer.measures["num_a"]) == ("other_work", 1)
    assert int(result.answer.measures["delta_ns"]) > 0
    assert only("work_differs", result)["differences"] == difference(*nine.traces, *thirteen.traces)
    assert "confounded" in codes(result)
    assert all(cause.kind != "jitter" for cause in result.causes)
    assert int(diff_runs(thirteen, nine).answer.measures["delta_ns"]) < 0


def test_second_derivatives_and_more_passes_of_the_same_layers_are_no_other_job() -> None:
    """Two steps of an inner loop against three, and against two whose nodes convolve and multiply again."""

    def inner_loop(num: int, *, again: int) -> Trace:
        events: list[Event] = []
        for name in ["aten::convolution", "aten::batch_norm", "aten::addmm"] * num:
            events.append(op(name, 10 * len(events), 5))
        for number in range(num):
            for name in ("ConvolutionBackward0", "CudnnBatchNormBackward0", "AddmmBackward0"):
                events.append(op(ENGINE + name, 10 * len(events), 8))
                twice = ("aten::convolution", "aten::batch_norm")[number % 2], 10 * len(events) - 8, 2
                events += [op(*twice)] * (again > number)
        return build(step(0, 10 * len(events) + 10), *events)

    first, second = inner_loop(2, again=0), inner_loop(2, again=2)
    assert difference(first, second) == ""
    assert difference(second, inner_loop(3, again=3)) == ""
    deeper = trace_of([*LAYER * 4, "aten::addmm"]), trace_of([*LAYER * 6, "aten::addmm"])
    assert difference(*deeper).startswith("layers: ")


def test_ops_that_one_model_lacks_are_no_replacement_where_little_is_there_instead() -> None:
    residual, plain = [*LAYER * 9, "aten::addmm"], ["aten::convolution"] * 3 + ["aten::addmm"] * 3
    assert difference(trace_of(residual), trace_of(plain)).startswith("layers: 9 aten::batch_norm against 0, ")


def test_training_against_inference_is_another_job() -> None:
    train, infer = trace_of(LAYER * 4), trace_of(LAYER * 4, trains=False)
    assert [re.findall(r"\d+|none", difference(*sides)) for sides in ((train, infer), (infer, train))] == [
        ["8", "none"],
        ["none", "8"],
    ]
    result = diff_runs(Run("a", (train,)), Run("b", (infer,)))
    assert result.answer.code == "other_work"
    assert only("work_differs", result)["differences"] == difference(train, infer)


@pytest.mark.parametrize(
    "instead",
    [
        [annotation("Torch-Compiled Region: 0/0", 25, 5)],
        [call("cudaGraphLaunch", 25, 5, 900), kernel("k", 31, 5, 900)],
        [annotation("Optimizer.step#SGD.step", 25, 5)],
        [annotation("## backward ##", 25, 5)],
    ],
)
def test_a_backward_pass_that_runs_without_its_ops_is_no_other_job(instead: list[Event]) -> None:
    assert difference(trace_of(LAYER * 4), trace_of(LAYER * 4, trains=False, more=instead)) == ""


SEVEN = [*LAYER * 7, "aten::addmm"]


@pytest.mark.parametrize(
    "changed",
    [
        trace_of(SEVEN, repeated=14),  # checkpointing, or an evaluation
        trace_of(SEVEN, frozen=8),
        trace_of([*LAYER * 7, *["aten::addmm"] * 3]),  # one product of q, k and v
        trace_of(["aten::convolution"] * 7 + ["aten::addmm"]),  # norms folded into convolutions
        trace_of([*LAYER * 2, "aten::addmm"], more=[annotation("Torch-Compiled Region: 0/0", 25, 5)]),
        trace_of(["aten::addmm"], more=[call("cudaGraphLaunch", 25, 5, 900), kernel("k", 31, 5, 900)]),
        trace_of([*LAYER * 2, "aten::addmm"], more=[op("mylib::conv_norm", 22 + 2 * n, 1) for n in range(5)]),
        trace_of(SEVEN * 2),  # accumulates gradients
        trace_of([*LAYER * 7, *LAYER[:1], "aten::addmm"]),  # an auxiliary head
    ],
)
def test_what_a_change_replaces_repeats_or_leaves_out_is_no_other_job(changed: Trace) -> None:
    assert difference(trace_of(SEVEN), changed) == ""


def test_stages_of_a_pipeline_are_no_other_model() -> None:
    half = trace_of([*LAYER * 3, "aten::addmm"], more=[op("c10d::send", 25, 2)])
    assert difference(trace_of(SEVEN), half) == ""


LINEAR, NORM_OP = "aten::linear", "aten::layer_norm"


def with_weights(*ops: tuple[str, list[list[int]]], batch: int = 8) -> Trace:
    """One step of ops whose weights, in the place where each op takes them, have these shapes."""
    rows = [
        op(name, 25 + 5 * index, 4, **{"Input Dims": [[batch, 64], *dims]}) for index, (name, dims) in enumerate(ops)
    ]
    return build(step(0, 100), *rows, **H100)


WIDE = ((LINEAR, [[256, 64]]), (LINEAR, [[64, 256]]), (NORM_OP, [[], [64]]))


def test_models_without_a_weight_of_the_same_shape_are_different_jobs() -> None:
    wider = with_weights((LINEAR, [[512, 96]]), (LINEAR, [[96, 512]]), (NORM_OP, [[], [96]]))
    text = difference(with_weights(*WIDE), wider)
    assert text.startswith("weights: ")
    assert text.endswith("[64, 256] against [96, 512]")
    result = diff_runs(Run("a", (with_weights(*WIDE),)), Run("b", (wider,)))
    assert text in str(only("work_differs", result)["differences"])


@pytest.mark.parametrize(
    "changed",
    [
        with_weights(*WIDE, batch=16),
        with_weights((LINEAR, [[128, 64]]), (LINEAR, [[64, 128]]), (NORM_OP, [[], [64]])),  # sharded products
        with_weights(("aten::addmm", [[8, 64], [64, 256]]), (LINEAR, [[9, 9]])),  # takes a weight transposed
        with_weights((LINEAR, [[9, 9]]), ("aten::group_norm", [[], [64]])),
        with_weights((LINEAR, [[9, 9]])),  # a single shape tells little
        with_weights((LINEAR, []), (LINEAR, [[9, 9]])),
    ],
)
def test_a_batch_a_shard_or_little_that_was_recorded_is_no_other_model(changed: Trace) -> None:
    assert difference(with_weights(*WIDE), changed) == ""


GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"


def steps_of_engine(*names: str) -> Trace:
    """Steps of 100 us of an inference engine, each with one kernel."""
    rows = [
        row
        for number, name in enumerate(names)
        for row in (
            annotation(name, 100 * number, 90),
            op("aten::mm", 100 * number + 1, 9),
            launch(100 * number + 5, 2, number + 1),
            kernel(GEMM, 100 * number + 10, 60, number + 1),
        )
    ]
    return build(*rows, **H100)


def test_an_engine_that_only_decodes_does_other_work_than_one_that_never_does() -> None:
    prompts, tokens = ["step[EXTEND bs=2 toks=900]"] * 3, ["step[DECODE bs=32]"] * 4
    assert difference(steps_of_engine(*prompts), steps_of_engine(*tokens)) == "steps: 3 prefill against 4 decode"
    assert difference(steps_of_engine(*tokens), steps_of_engine("execute_context_2(900)_generation_30(30)")) == (
        "steps: 4 decode against 1 mixed"
    )
    assert difference(steps_of_engine(*prompts, *tokens), steps_of_engine(*tokens)) == ""
    assert difference(steps_of_engine(*prompts), steps_of_engine("execute_context_2(900)_generation_30(30)")) == ""
