"""To which phase of the step does device work belong, and by which rule?"""

from __future__ import annotations

from typing import Any

import pytest
from builder import AUTOGRAD, Event, annotation, build, frame, kernel, launch, memcpy, op, step, table

from traceq.model import Arm, Manifest, Trace


def phases(trace: Trace, key: str = "gpu_sum_ns") -> dict[str, int]:
    """One number of each phase in us, without zeros."""
    return {row["name"]: row[key] // 1000 for row in table(trace, "phases") if row[key]}


def rule(trace: Trace) -> str:
    (name,) = {row["rule"] for row in table(trace, "phases")}
    return str(name)


def work(start: int, dur: int, corr: int, *, launched: int, tid: int = 1) -> tuple[Event, Event]:
    return launch(launched, 1, corr, tid=tid), kernel(f"k{corr}", start, dur, corr)


def test_backward_work_belongs_to_the_phase_of_the_main_thread_though_autograd_launched_it() -> None:
    trace = build(
        step(0, 100),
        annotation("forward", 0, 50),
        annotation("backward", 50, 45),
        *work(20, 10, 1, launched=10),
        *work(60, 25, 2, launched=55, tid=AUTOGRAD),
        *work(96, 3, 3, launched=97),
    )
    assert rule(trace) == "annotations"
    assert phases(trace) == {"forward": 10, "backward": 25, "other": 3}
    assert phases(trace, "cpu_ns") == {"forward": 50, "backward": 45, "other": 5}


def test_work_counts_to_the_phase_that_launched_it_not_to_the_one_it_runs_in() -> None:
    trace = build(step(0, 100), annotation("a", 0, 50), annotation("b", 50, 50), *work(70, 20, 1, launched=10))
    assert phases(trace) == {"a": 20}


def test_an_annotation_of_its_own_thread_comes_before_the_main_threads() -> None:
    trace = build(
        step(0, 100),
        annotation("forward", 0, 50),
        annotation("backward", 50, 50),
        annotation("backward", 15, 20, tid=AUTOGRAD),
        *work(20, 10, 1, launched=20, tid=AUTOGRAD),
        *work(40, 5, 2, launched=36, tid=AUTOGRAD),
    )
    assert phases(trace) == {"backward": 10, "forward": 5}


def test_only_outermost_annotations_are_phases() -> None:
    trace = build(
        step(0, 100),
        annotation("a", 0, 60),
        annotation("inner", 10, 20),
        annotation("b", 60, 40),
        *work(30, 5, 1, launched=12),
    )
    assert phases(trace) == {"a": 5}


@pytest.mark.parametrize(
    "name",
    [
        "nccl:all_reduce",
        "gloo:all_gather",
        "Optimizer.step#AdamW.step",
        "DistributedDataParallel.forward",
        "FSDP::pre_forward",
        "FullyShardedDataParallel.forward",
        "## Call CompiledFxGraph f3 ##",
    ],
)
def test_what_libraries_annotate_is_no_phase(name: str) -> None:
    trace = build(step(0, 100), annotation("forward", 0, 50), annotation(name, 50, 50), *work(20, 10, 1, launched=10))
    assert rule(trace) == "structure"


def test_one_annotation_around_everything_tells_no_phases_apart() -> None:
    assert rule(build(step(0, 100), annotation("train", 0, 100), *work(20, 10, 1, launched=10))) == "structure"


@pytest.mark.parametrize(("covered", "expected"), [(80, "annotations"), (79, "mixed")])
def test_annotations_that_cover_four_fifths_of_the_steps_are_all_phases(covered: int, expected: str) -> None:
    trace = build(step(0, 100), annotation("a", 0, 40), annotation("b", 40, covered - 40), *work(95, 4, 1, launched=90))
    assert rule(trace) == expected
    assert phases(trace) == ({"other": 4} if expected == "annotations" else {"forward": 4})


def test_a_loop_that_launches_in_annotations_and_waits_outside_them_has_their_phases() -> None:
    trace = build(
        step(0, 1000),
        annotation("upload", 0, 20),
        annotation("download", 20, 20),
        *work(20, 400, 1, launched=5),
        *work(500, 300, 2, launched=25),
        launch(41, 900, 3),  # waits
    )
    assert rule(trace) == "annotations"
    assert phases(trace) == {"upload": 400, "download": 300}


def test_what_no_annotation_launched_has_the_phases_of_a_training_step() -> None:
    """The user annotates a part of the model, and its backward pass, which the autograd thread launches."""
    trace = build(
        step(0, 100),
        annotation("attention", 10, 10),
        *work(5, 1, 1, launched=2),
        *work(20, 2, 2, launched=12),
        *work(30, 4, 3, launched=25),
        engine_op(40, 30),
        annotation("attention grad", 45, 10),
        *work(50, 8, 4, launched=47, tid=AUTOGRAD),
        *work(60, 16, 5, launched=58, tid=AUTOGRAD),
        annotation("Optimizer.step#AdamW.step", 80, 10),
        *work(85, 3, 6, launched=82),
    )
    assert rule(trace) == "mixed"
    assert phases(trace) == {"attention": 2, "attention grad": 8, "forward": 5, "backward": 16, "optimizer": 3}


def test_one_annotation_around_all_others_is_no_phase() -> None:
    trace = build(
        step(0, 100),
        annotation("train", 0, 99),
        annotation("a", 0, 50),
        annotation("b", 50, 40),
        *work(20, 10, 1, launched=10),
        *work(70, 5, 2, launched=60),
    )
    assert rule(trace) == "annotations"
    assert phases(trace) == {"a": 10, "b": 5}


STRUCTURE = (
    step(0, 100),
    annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10),
    annotation("Optimizer.zero_grad#AdamW.zero_grad", 10, 5),
    op("aten::mm", 15, 20),
    annotation("Optimizer.step#AdamW.step", 70, 30),
    *work(12, 1, 1, launched=11),
    *work(25, 2, 2, launched=20),
    *work(80, 8, 3, launched=75),
    launch(5, 1, 4),
    memcpy("HtoD (Pinned -> Device)", 6, 4, 4),
)


@pytest.mark.parametrize(
    "mark",
    [
        op("autograd::engine::evaluate_function: MmBackward0", 40, 20, tid=AUTOGRAD),
        op("MmBackward0", 40, 20, tid=AUTOGRAD),
        op("aten::mm", 40, 20, tid=AUTOGRAD, **{"Fwd thread id": 1}),
        op("autograd::engine::evaluate_function: MmBackward0", 40, 20),
    ],
    ids=["engine", "op name", "forward thread", "main thread"],
)
def test_without_annotations_the_structure_of_a_training_step_tells(mark: Event) -> None:
    trace = build(*STRUCTURE, mark, *work(50, 16, 5, launched=45, tid=mark["tid"]))
    assert rule(trace) == "structure"
    assert phases(trace) == {"zero_grad": 1, "forward": 2, "dataload": 4, "optimizer": 8, "backward": 16}
    host = {"dataload": 10, "zero_grad": 5, "forward": 25, "backward": 20, "other": 10, "optimizer": 30}
    assert phases(trace, "cpu_ns") == host  # what is between the backward pass and the update is neither


def engine_op(start: int, duration: int) -> Event:
    return op("autograd::engine::evaluate_function: MmBackward0", start, duration, tid=AUTOGRAD)


def test_what_follows_backward_is_no_forward_and_its_gaps_are_its_own() -> None:
    """Two passes accumulate gradients, 20-50 with a gap and 60-80; clipping, the update and logging follow.

    The main thread waits in the gap, and computes the second forward between the passes.
    """
    trace = build(
        step(0, 120),
        op("aten::mm", 2, 10),
        *(engine_op(20, 10), engine_op(40, 10), op("aten::mm", 52, 4), engine_op(60, 20)),
        *work(85, 1, 1, launched=82),  # clips gradients
        annotation("Optimizer.step#AdamW.step", 90, 10),
        *work(112, 2, 2, launched=110),  # the loss for the log
    )
    assert rule(trace) == "structure"
    assert phases(trace, "cpu_ns") == {"forward": 30, "backward": 50, "other": 30, "optimizer": 10}
    assert phases(trace) == {"other": 3}


@pytest.mark.parametrize(
    ("between", "forward", "backward"),
    [([], 20, 70), ([op("aten::add", 28, 1)], 40, 50), ([annotation("log", 28, 1)], 39, 50)],
    ids=["nothing", "an op", "an annotation"],
)
@pytest.mark.parametrize("tid", [1, AUTOGRAD])
def test_a_pass_begins_with_the_gradient_of_its_loss(
    between: list[Event], forward: int, backward: int, tid: int
) -> None:
    """A step of 488 us had 63 of these in forward: `backward()` makes ones like the loss, and starts its thread."""
    root = op("aten::ones_like", 20, 6), op("aten::empty_like", 21, 2), op("aten::fill_", 24, 1)
    engine = op("autograd::engine::evaluate_function: MmBackward0", 40, 50, tid=tid)
    before = step(0, 100), op("aten::ones_like", 2, 5), op("aten::mm", 8, 10)
    host = phases(build(*before, *root, *between, engine), "cpu_ns")
    assert (host["forward"], host["backward"]) == (forward, backward)


COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@pytest.mark.parametrize(
    ("end", "backward"),
    [
        ([], 20),
        ([annotation("gloo:all_reduce", 35, 35, tid=3)], 40),  # the main thread waits until 70 and copies from 72
        ([annotation("gloo:all_reduce", 41, 45, tid=3), op("aten::mm", 60, 5)], 30),  # it goes on at 60
        ([op("aten::as_strided", 72, 1), op(COPY, 73, 2), op(COPY, 75, 3)], 48),
        ([annotation("log", 60, 5), op(COPY, 73, 2)], 20),
        ([annotation("FSDP::root_post_backward_callback", 52, 30)], 52),
        ([frame("<built-in method run_backward of torch._C._EngineBase>", 28, 54)], 54),
        ([frame("<built-in method run_backward of torch._C._EngineBase>", 28, 54, tid=3)], 20),
    ],
    ids=["nothing", "collective", "goes on", "copies", "annotated", "FSDP", "frame", "other thread"],
)
def test_the_wait_for_the_gradients_of_other_ranks_is_the_end_of_the_pass(end: list[Event], backward: int) -> None:
    """Ops of autograd take 30-40 and 45-50 on the main thread, the update begins at 90."""
    engine = [op("autograd::engine::evaluate_function: MmBackward0", start, us) for start, us in ((30, 10), (45, 5))]
    trace = build(step(0, 100), op("aten::mm", 2, 10), *engine, annotation("Optimizer.step#SGD.step", 90, 10), *end)
    assert phases(trace, "cpu_ns")["backward"] == backward


def test_what_follows_the_last_pass_of_a_trace_without_steps_may_be_the_next_forward() -> None:
    update = annotation("Optimizer.step#AdamW.step", 90, 10)
    trace = build(op("aten::mm", 0, 30), engine_op(40, 40), update, op("aten::mm", 105, 15))
    assert phases(trace, "cpu_ns") == {"forward": 60, "backward": 40, "other": 10, "optimizer": 10}


@pytest.mark.parametrize("last", [[], [op("aten::add_", 102, 2)]], ids=["nothing", "an op"])
def test_the_end_of_a_trace_without_steps_is_no_forward_after_its_last_op(last: list[Event]) -> None:
    """As where a loop ends with the end of its loader's workers: what an update, or a loader, runs is no forward."""
    fetch = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 110, 5)
    update = annotation("Optimizer.step#AdamW.step", 90, 10), op("aten::_foreach_add_", 92, 4)
    ends = *last, fetch, op("aten::stack", 111, 2), launch(150, 10, 1)
    host = phases(build(op("aten::mm", 0, 30), engine_op(40, 40), *update, *ends), "cpu_ns")
    more = 4 * len(last)
    assert host == {"forward": 40 + more, "backward": 40, "other": 65 - more, "optimizer": 10, "dataload": 5}


def test_a_value_that_is_read_after_the_last_update_is_no_forward_with_all_it_calls() -> None:
    """A read of 27.8 ms was said to be of forward, which ended with an op inside it."""
    update = annotation("Optimizer.step#AdamW.step", 90, 10), op("aten::_foreach_add_", 92, 4)
    read = op("aten::item", 105, 40), op("aten::_local_scalar_dense", 106, 38), op("aten::empty_like", 110, 5)
    host = phases(build(op("aten::mm", 0, 30), engine_op(40, 40), *update, *read), "cpu_ns")
    assert host == {"forward": 40, "backward": 40, "other": 55, "optimizer": 10}


def test_a_step_without_a_backward_pass_is_all_forward_but_for_what_is_marked() -> None:
    evaluation = step(0, 100), op("aten::mm", 10, 80)
    training = step(100, 100, 1), engine_op(120, 60), annotation("Optimizer.step#AdamW.step", 185, 5)
    host = phases(build(*evaluation, *training), "cpu_ns")
    assert host == {"forward": 120, "backward": 60, "other": 15, "optimizer": 5}


def recorded(*names: str) -> dict[str, Any]:
    arms = (Arm("off", "before", baseline=True),)
    return {"manifest": Manifest(1, "id", "recipe", "?", {}, arms, names, num_ranks=1, seed=0)}


def test_phases_that_a_recording_declares_count_however_little_they_cover() -> None:
    events = (step(0, 100), annotation("check", 10, 2), annotation("user range", 0, 100), *work(20, 7, 1, launched=11))
    trace = build(*events, recorded=recorded("forward", "check"))
    assert rule(trace) == "recorded"
    assert phases(trace) == {"check": 7}
    assert phases(trace, "cpu_ns") == {"check": 2, "other": 98}


def test_busy_counts_overlapping_work_once_and_sum_twice() -> None:
    trace = build(
        step(0, 100),
        launch(1, 1, 1),
        kernel("a", 10, 20, 1),
        kernel("b", 20, 20, 1, stream=8),
        memcpy("DtoD", 35, 10, 1, 9),
    )
    (forward,) = (row for row in table(trace, "phases") if row["name"] == "forward")
    assert (forward["gpu_busy_ns"], forward["gpu_sum_ns"]) == (35_000, 50_000)
    assert (forward["num_kernels"], forward["num_gpu_ops"]) == (2, 3)


def test_work_without_a_launch_has_rows_of_its_own_even_when_there_is_none() -> None:
    names = [row["name"] for row in table(build(step(0, 100), *work(20, 10, 1, launched=10)), "phases")]
    assert names == ["forward", "before_window", "unattributed"]


def test_the_innermost_annotation_that_names_a_pass_decides_whatever_is_around_it() -> None:
    trace = build(
        step(0, 100),
        annotation("1F1B", 0, 98),
        annotation("attn(F)", 2, 30),
        annotation("mlp(B)", 32, 40),
        annotation("mlp(W)", 60, 10),
        annotation("combine(F)", 72, 26),
        *work(10, 5, 1, launched=5),
        *work(20, 3, 2, launched=40, tid=AUTOGRAD),
        *work(30, 7, 3, launched=62),
        *work(40, 9, 4, launched=75),
        *work(50, 1, 5, launched=99),
    )
    assert rule(trace) == "passes"
    assert phases(trace) == {"forward": 14, "backward": 3, "weight_gradient": 7, "other": 1}
    assert phases(trace, "cpu_ns") == {"forward": 56, "backward": 30, "weight_gradient": 10, "other": 4}


def test_annotations_of_torchs_schedules_name_passes_and_not_a_phase_each() -> None:
    trace = build(
        step(0, 100),
        annotation("PP:0F0", 0, 20),
        annotation("PP:0SEND_F0", 20, 5),
        annotation("PP:(0F1;3B0)OVERLAP_F_B", 25, 25),
        annotation("PP:3I1", 50, 20),
        annotation("PP:3W1", 70, 10),
        annotation("PP:0B0", 80, 20),
    )
    assert rule(trace) == "passes"
    assert phases(trace, "cpu_ns") == {
        "forward": 20, "other": 5, "forward_backward": 25, "backward": 40, "weight_gradient": 10
    }  # fmt: skip
    gpipe = build(step(0, 100), annotation("Forward 0", 0, 40), annotation("Backward 0", 45, 55))
    assert phases(gpipe, "cpu_ns") == {"forward": 40, "backward": 55, "other": 5}


def test_one_pass_alone_or_few_marks_name_no_passes() -> None:
    assert rule(build(step(0, 100), annotation("attn(F)", 0, 98))) == "structure"
    few = [annotation("attn(F)", 0, 5), annotation("attn(B)", 5, 5)]
    assert rule(build(step(0, 100), annotation("whole", 0, 98), *few)) == "mixed"


def test_a_step_without_a_backward_pass_is_forward_only_while_a_module_runs() -> None:
    """The step reads its input, calls its model and copies the result to the host; only the model is forward."""
    trace = build(
        step(0, 100),
        frame("image.py(390): normalize", 0, 60),
        *(launch(62, 2, 1), memcpy("HtoD (Pageable -> Device)", 65, 3, 1)),
        *(frame("nn.Module: Net_0", 70, 15), launch(72, 2, 2), kernel("gemm", 75, 20, 2)),
        *(launch(90, 2, 3), memcpy("DtoH (Device -> Pageable)", 96, 2, 3)),
    )
    rows = {row["name"]: row for row in table(trace, "phases")}
    assert (rows["forward"]["cpu_ns"], rows["forward"]["num_gpu_ops"]) == (15_000, 1)
    assert (rows["other"]["cpu_ns"], rows["other"]["num_gpu_ops"]) == (85_000, 2)


def test_without_recorded_modules_such_a_step_is_forward() -> None:
    rows = {row["name"]: row for row in table(build(step(0, 100), op("aten::mm", 10, 20)), "phases")}
    assert rows["forward"]["cpu_ns"] == 100_000


def test_the_start_of_workers_is_data_loading_and_no_forward() -> None:
    created = frame("torch/utils/data/dataloader.py(433): _get_iterator", 5, 60)
    inside = frame("multiprocessing/process.py(110): start", 10, 50)
    fetch = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 70, 10)
    ops = op("aten::mm", 80, 5), op("autograd::engine::evaluate_function: MmBackward0", 90, 10, tid=AUTOGRAD)
    trace = build(op("aten::empty", 0, 1), created, inside, fetch, *ops)
    assert rule(trace) == "structure"
    assert phases(trace, "cpu_ns") == {"forward": 20, "dataload": 70, "backward": 10}


def test_the_end_of_workers_is_data_loading_and_no_forward() -> None:
    """Another iterator takes the place of one, whose workers end; then comes the forward."""
    ended = frame("torch/utils/data/dataloader.py(1606): _shutdown_workers", 5, 40)
    ops = op("aten::mm", 60, 5), op("autograd::engine::evaluate_function: MmBackward0", 70, 10, tid=AUTOGRAD)
    assert phases(build(op("aten::empty", 0, 1), ended, *ops), "cpu_ns") == {
        "forward": 30,
        "dataload": 40,
        "backward": 10,
    }
