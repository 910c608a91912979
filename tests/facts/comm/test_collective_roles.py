"""What each collective is for, by what its thread is in where it is issued."""

from __future__ import annotations

from typing import Any

import pytest
from builder import AUTOGRAD, Event, annotation, build, comms, frame, kernel, launch, op, step, table, world

ENGINE = "autograd::engine::evaluate_function: "
ACCUMULATES = op(ENGINE + "torch::autograd::AccumulateGrad", 40, 30, tid=AUTOGRAD)
OPTIMIZER = annotation("Optimizer.step#AdamW.step", 120, 60)
BIG, FEW = (100_000, 100_000), (3, 3)


def roles(*events: Event, **metadata: Any) -> list[str]:
    """Roles of the calls of one step of 200 us, by their order in the table."""
    result = table(build(step(0, 200), *events, **metadata), "collectives")
    return [row["role"] for row in result for _ in range(row["num"])]


@pytest.mark.parametrize(
    ("around", "call", "role"),
    [
        (ACCUMULATES, comms("allreduce", 50, 5, BIG, tid=AUTOGRAD), "gradient_reduction"),
        (ACCUMULATES, comms("_reduce_scatter_base", 50, 5, FEW, tid=AUTOGRAD), "gradient_reduction"),
        (ACCUMULATES, comms("allreduce", 50, 5, FEW, tid=AUTOGRAD, dtype="Int"), "unused_map"),
        (annotation("FSDP::post_backward_reduce (layers.3)", 40, 30), comms("_reduce_scatter_base", 50, 5, BIG), ""),
        (annotation("FSDP::root_post_backward_callback", 40, 30), comms("_reduce_scatter_base", 50, 5, BIG), ""),
        (
            annotation("FullyShardedDataParallel._post_backward_hook", 40, 30),
            comms("_reduce_scatter_base", 50, 5, BIG),
            "",
        ),
        (annotation("FSDP::pre_forward (layers.3)", 40, 30), comms("_allgather_base", 50, 5, BIG), "forward"),
        (annotation("FullyShardedDataParallel._pre_forward", 40, 30), comms("_allgather_base", 50, 5, BIG), "forward"),
        (annotation("FSDP::backward_prefetch for layers.2", 40, 30), comms("_allgather_base", 50, 5, BIG), "backward"),
        (
            annotation("FullyShardedDataParallel._pre_backward_hook", 40, 30),
            comms("_allgather_base", 50, 5, BIG),
            "backward",
        ),
        (OPTIMIZER, comms("_allgather_base", 150, 5, BIG), "step"),
        (OPTIMIZER, comms("broadcast", 150, 5, BIG), "step"),
        (OPTIMIZER, comms("_reduce_scatter_base", 150, 5, BIG), ""),
        (OPTIMIZER, comms("allreduce", 150, 5, FEW), "clip_norm"),
        (annotation("DistributedDataParallel.forward", 10, 90), comms("broadcast", 20, 5, BIG), "buffer_broadcast"),
        (annotation("DistributedDataParallel.forward", 10, 90), comms("allreduce", 20, 5, (1, 1)), "join_check"),
        (annotation("evaluation", 10, 90), comms("broadcast", 20, 5, BIG), "state_broadcast"),
        (annotation("## metrics compute ##", 10, 90), comms("allgather", 20, 5, BIG), "metric"),
        (annotation("evaluation", 10, 90), comms("allreduce", 20, 5, FEW), "metric"),
        (frame("me/train.py(9): update_metrics", 10, 90), comms("allreduce", 20, 5, BIG), "metric"),
        (frame("metric-learning/train.py(9): main", 10, 90), comms("allreduce", 20, 5, BIG), "activation_exchange"),
        (op("_c10d_functional::all_reduce", 10, 20), comms("allreduce", 12, 5, FEW), "activation_exchange"),
        (op("_AllToAll", 10, 20), comms("alltoallv", 12, 5, BIG), "activation_exchange"),
        (op("SyncBatchNorm", 10, 20), comms("_allgather_base", 12, 5, BIG), "batch_statistics"),
        (op("SyncBatchNormBackward", 10, 20), comms("allreduce", 12, 5, BIG), "batch_statistics"),
        (op(ENGINE + "MyFunctionBackward", 40, 30), comms("allreduce", 50, 5, BIG), "activation_exchange"),
        (op("_AllToAll", 10, 20), comms("alltoallv", 12, 5, BIG, dtype="Long"), "index_exchange"),
        (op("_AllToAll", 10, 20), comms("alltoallv", 12, 5, BIG, dtype="Byte"), "activation_exchange"),
        (op("_AllGather", 10, 20), comms("_allgather_base", 12, 5, BIG, dtype="Char"), "activation_exchange"),
        (op("_AllGather", 10, 20), comms("_allgather_base", 12, 5, BIG, dtype="Int"), "index_exchange"),
        (annotation("## all2all_data:kjt values ##", 10, 20), comms("alltoallv", 12, 5, BIG), "index_exchange"),
        (
            frame("torch/nn/utils/clip_grad.py(10): clip_grad_norm_", 80, 20),
            comms("allreduce", 85, 5, BIG),
            "clip_norm",
        ),
        (
            frame("deepspeed/runtime/zero/partitioned_param_coordinator.py(276): fetch_sub_module", 10, 20),
            comms("_allgather_base", 12, 5, BIG),
            "forward",
        ),
        (annotation("evaluation", 10, 90), comms("reduce_mystery", 20, 5, (-1, -1)), "unknown"),
    ],
)
def test_a_call_is_for_what_its_thread_is_in(around: Event, call: Event, role: str) -> None:
    full = {"": "gradient_reduction"} | {
        index: f"parameter_gather_{index}" for index in ("forward", "backward", "step")
    }
    assert roles(around, call) == [full.get(role, role)]


def test_a_compiled_backward_reduces_gradients_unless_forward_exchanges_activations() -> None:
    """It is one op that holds the reductions of all gradients; of tensor parallelism, forward has some as well."""
    backward = op(ENGINE + "CompiledFunctionBackward", 40, 30), op("CompiledFunctionBackward", 41, 28)
    reduction = comms("allreduce", 50, 5, BIG)
    assert roles(*backward, reduction) == ["gradient_reduction"]
    forward = op("CompiledFunction", 5, 20), comms("allreduce", 10, 5, BIG)
    assert roles(*backward, reduction, *forward) == ["activation_exchange"] * 2


def test_another_threads_marks_do_not_count() -> None:
    assert roles(OPTIMIZER, comms("_allgather_base", 150, 5, BIG, tid=AUTOGRAD)) == ["activation_exchange"]


def test_a_bare_sum_between_backward_and_optimizer_is_of_gradients_unless_it_is_a_few_numbers() -> None:
    large, few = comms("allreduce", 90, 5, BIG), comms("allreduce", 96, 2, FEW)
    assert sorted(roles(ACCUMULATES, OPTIMIZER, large, few)) == ["gradient_reduction", "metric"]


def test_after_norms_of_gradients_it_is_their_norm() -> None:
    norms = op("aten::_foreach_norm", 80, 5)
    call = comms("allreduce", 90, 5, (400, 400))
    assert roles(ACCUMULATES, OPTIMIZER, norms, call) == ["clip_norm"]
    assert roles(ACCUMULATES, OPTIMIZER, op("aten::_foreach_norm", 10, 5), call) == ["gradient_reduction"]


def test_a_gather_behind_the_update_is_of_parameters_until_another_forward_pass_begins() -> None:
    gather = comms("_allgather_base", 190, 5, BIG)
    assert roles(ACCUMULATES, OPTIMIZER, gather) == ["parameter_gather_step"]
    assert roles(ACCUMULATES, OPTIMIZER, op("aten::linear", 184, 3), gather) == ["activation_exchange"]


def test_a_gather_behind_the_update_of_far_less_than_was_reduced_is_not_of_parameters() -> None:
    """Of logits, as for a metric; the reduction inside an op of forward is not of gradients."""
    reduced, outputs = comms("allreduce", 50, 5, BIG, tid=AUTOGRAD), comms("_allgather_base", 190, 5, (640, 1280))
    assert sorted(roles(ACCUMULATES, reduced, OPTIMIZER, outputs)) == ["activation_exchange", "gradient_reduction"]
    halves = comms("_allgather_base", 190, 5, BIG, dtype="Half")
    assert sorted(roles(ACCUMULATES, reduced, OPTIMIZER, halves)) == ["gradient_reduction", "parameter_gather_step"]
    parallel = op("_ReduceFromModelParallelRegion", 2, 20), comms("allreduce", 5, 5, BIG)
    assert sorted(roles(ACCUMULATES, *parallel, OPTIMIZER, outputs)) == ["activation_exchange", "parameter_gather_step"]


def test_an_integer_per_rank_before_forward_counts_tokens() -> None:
    """HF's Trainer gathers num_items_in_batch before the micro-batches of a step; a count after forward is a metric."""
    count = {"dtype": "Long"}
    before, after = comms("_allgather_base", 2, 5, (1, 2), **count), comms("_allgather_base", 60, 5, (1, 2), **count)
    assert sorted(roles(before, op("aten::linear", 20, 10), after, **world(0, 2, "nccl"))) == ["metric", "token_count"]
    in_trainer = frame("transformers/trainer.py(5601): get_batch_samples", 55, 20)
    named = roles(before, op("aten::linear", 20, 10), in_trainer, after, **world(0, 2, "nccl"))
    assert named == ["token_count", "token_count"]
    several = comms("_allgather_base", 2, 5, (5, 10), **count)
    assert roles(several, op("aten::linear", 20, 10), **world(0, 2, "nccl")) == ["metric"]


def test_one_value_in_the_forward_of_ddp_is_a_metric_once_the_model_has_computed() -> None:
    forward, value = annotation("DistributedDataParallel.forward", 10, 90), comms("allreduce", 60, 5, (1, 1))
    assert roles(forward, op("aten::linear", 20, 10), value) == ["metric"]
    assert roles(op("aten::linear", 2, 5), forward, value) == ["join_check"]
    several = comms("allreduce", 60, 5, FEW)
    assert roles(forward, several) == ["metric"]


def test_of_few_elements_more_than_one_a_rank_are_fetched_and_one_a_rank_is_a_metric() -> None:
    fetched = op("PreBackwardFunctionForModule", 20, 2)
    parameter, metric = comms("_allgather_base", 10, 5, (5, 10)), comms("_allgather_base", 30, 5, (1, 2))
    assert roles(fetched, parameter, **world(0, 2, "nccl")) == ["parameter_gather_forward"]
    assert roles(fetched, metric, **world(0, 2, "nccl")) == ["metric"]


def test_without_a_marked_optimizer_what_ends_a_step_reduces_gradients_and_gathers_parameters() -> None:
    """An optimizer of one's own: no annotation says that it runs."""
    before, scatter = comms("_allgather_base", 80, 5, BIG), comms("_reduce_scatter_base", 90, 5, BIG)
    after, backward = comms("_allgather_base", 100, 5, BIG), op(ENGINE + "MyBackward", 130, 20, tid=AUTOGRAD)
    ended = roles(ACCUMULATES, before, scatter, after)
    assert sorted(ended) == ["activation_exchange", "gradient_reduction", "parameter_gather_step"]
    assert roles(ACCUMULATES, scatter, after, backward) == ["activation_exchange"] * 2
    assert roles(ACCUMULATES, OPTIMIZER, comms("_reduce_scatter_base", 190, 5, BIG)) == ["activation_exchange"]


def test_a_large_sum_in_forward_is_of_activations() -> None:
    late = comms("allreduce", 10, 5, BIG)
    assert roles(ACCUMULATES, OPTIMIZER, late) == ["activation_exchange"]


def test_with_gloo_the_op_says_what_it_is_for_and_not_the_thread_that_carries_it_out() -> None:
    issued = op("c10d::allreduce_", 50, 2, tid=AUTOGRAD)
    ran = annotation("gloo:all_reduce", 125, 30, tid=9, **{"Input Dims": [[64]], "Input type": ["float"]})
    assert roles(ACCUMULATES, OPTIMIZER, issued, ran, **world(0, 2, "gloo")) == ["gradient_reduction"]


def test_two_that_gloo_began_in_the_other_order_keep_what_they_are() -> None:
    ops = (
        op("c10d::_reduce_scatter_base_", 10, 2, **{"Input Dims": [[32], [64]], "Input type": ["float", "float"]}),
        op("c10d::allreduce_", 13, 2, **{"Input Dims": [[[500]]], "Input type": ["TensorList"]}),
    )
    rows = (
        annotation("gloo:all_reduce", 20, 9, tid=8, **{"Input Dims": [[500]], "Input type": ["float"]}),
        annotation("gloo:all_reduce", 21, 9, tid=9, **{"Input Dims": [[64]], "Input type": ["float"]}),
    )
    result = table(build(step(0, 200), *ops, *rows, **world(0, 2, "gloo")), "collectives")
    assert {row["name"]: row["bytes"] for row in result} == {"all_reduce": 2000, "reduce_scatter": 256}


def test_a_kernel_has_the_role_of_its_call_and_none_without() -> None:
    call = comms("allreduce", 50, 5, BIG, tid=AUTOGRAD)
    local = launch(51, 1, 1, tid=AUTOGRAD), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 90, 9, 1)
    stray = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 2, 5)
    result = table(build(step(0, 200), ACCUMULATES, call, *local, stray), "collectives")
    assert {row["role"]: row["num_kernels"] for row in result} == {"gradient_reduction": 1, "unknown": 1}
