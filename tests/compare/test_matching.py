"""Which work of one trace is which of the other: by structure first, by name second. Times in microseconds."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, call, comms, frame, kernel, launch, memcpy, op, step

from traceq.compare.explain import explain
from traceq.compare.result import Cause

MODEL = "model.py(20): forward"


def causes(a: list[Event], b: list[Event]) -> dict[str, Cause]:
    """By key; they must add up."""
    sides = build(*a), build(*b)
    traced, cells, result = explain(*sides)
    assert sum(cause.delta_ns for cause in result) == traced.delta_ns == sum(cell.delta_ns for cell in cells)
    return {cause.key: cause for cause in result}


def deltas(a: list[Event], b: list[Event]) -> dict[str, tuple[float, int]]:
    return {key: (cause.delta_num, cause.delta_ns // 1000) for key, cause in causes(a, b).items()}


def run(*works: tuple[str, str, str, float], stacks: bool = True, file: str = MODEL) -> list[Event]:
    """(module, op, kernel, duration): one after the other, each launched at once, inside a module called by a line."""
    rows, start = [frame(file, 0, 39)] if stacks else [], 40.0
    for number, (module, name, runs, dur) in enumerate(works):
        index = 1 + 4 * number
        rows += [frame(f"nn.Module: {module}_{number}", index, 4)] if stacks else []
        rows += [op(name, index + 0.2, 3.6), launch(index + 1, 2, number + 1), kernel(runs, start, dur, number + 1)]
        start += dur
    return [step(0, start), *rows]


# Modules and lines


def test_work_of_two_modules_is_told_apart_and_their_instances_are_not() -> None:
    def layers(dur: float) -> list[Event]:
        mlp, attention = ("MLP", "aten::mm", "gemm", 10), ("Attention", "aten::mm", "gemm", dur)
        return run(mlp, attention, mlp, attention)

    (only,) = causes(layers(10), layers(17)).values()
    assert (only.kind, only.phase, only.name) == ("kernel", "forward", "aten::mm > gemm")
    assert (only.module, only.line) == ("Attention", "model.py:20 forward")
    assert (only.delta_ns, only.delta_num) == (14_000, 0)


def test_a_trace_without_stacks_is_matched_by_op() -> None:
    mlp, attention = ("MLP", "aten::mm", "gemm", 10.0), ("Attention", "aten::mm", "gemm", 10.0)
    slower = ("Attention", "aten::mm", "gemm", 15.0)
    with_stacks, without = run(mlp, attention), run(mlp, slower, stacks=False)
    gemm = {"kernel|forward|aten::mm > gemm|": (0, 5)}
    assert gemm.items() <= deltas(with_stacks, without).items()
    assert not [key for key in deltas(with_stacks, without) if key.startswith("kernel") and key not in gemm]


# Kernels of another name


def test_kernels_of_an_op_that_got_other_names_are_replaced_where_they_are_launched() -> None:
    a = run(("Attention", "aten::bmm", "ampere_gemm", 30), ("MLP", "aten::bmm", "ampere_gemm", 30))
    b = run(("Attention", "aten::bmm", "hopper_gemm", 10), ("MLP", "aten::bmm", "hopper_gemm", 25))
    result = sorted(causes(a, b).values(), key=lambda cause: cause.delta_ns)
    assert [(cause.module, cause.line, cause.delta_ns) for cause in result] == [
        ("Attention", "model.py:20 forward", -20_000),
        ("MLP", "model.py:20 forward", -5_000),
    ]
    assert {cause.name for cause in result} == {"aten::bmm > ampere_gemm replaced by hopper_gemm"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"),
        ("void gemm<float, 128>(float*)", "void gemm<float, 64>(float*)"),
        ("_ZN7cutlass13device_kernelINS_4gemmE128", "void cutlass::device_kernel<gemm, 64>(x)"),
        ("_Z6rotateILi7EEvPf", "rotate"),
        ("_ZN21_GLOBAL__N__01234567_4copyIfE", "(anonymous namespace)::copy(f)"),
    ],
)
def test_versions_and_template_arguments_change_no_name(old: str, new: str) -> None:
    assert deltas(run(("M", "aten::mm", old, 10)), run(("M", "aten::mm", new, 10))) == {}


# Where Python is


def slow_python(dur: float, *around: Event) -> list[Event]:
    """The device waits for a host that is in no op from 20 until 20 + dur."""
    rows = [step(0, dur + 60), op("aten::mm", 1, 4), launch(2, 2, 1), kernel("gemm", 5, 10, 1), *around]
    index = dur + 20
    return [*rows, op("aten::add", index, 4), launch(index + 1, 2, 2), kernel("add", index + 4, 56 - index + dur, 2)]


def test_python_between_ops_has_its_line_where_frames_tell() -> None:
    def rows(dur: float) -> list[Event]:
        outer = frame("train.py(10): main", 0, dur + 60)
        return slow_python(dur, outer, frame("data.py(5): augment", 20, dur), frame("torch/nn/x.py(3): y", 21, dur - 2))

    (only,) = causes(rows(10), rows(50)).values()
    assert (only.kind, only.phase, only.name) == ("host", "forward", "Python between ops")
    assert (only.line, only.delta_ns) == ("data.py:5 augment", 40_000)


def test_python_between_ops_has_the_annotation_around_it_whatever_its_number() -> None:
    def rows(dur: float, layer: int) -> list[Event]:
        return slow_python(dur, annotation(f"layer {layer}", 18, dur + 4), annotation("wide", 10, dur + 30))

    assert deltas(rows(10, 3), rows(50, 4)) == {"host|wide|Python in layer N|": (0, 40)}


def test_python_of_a_module_is_told() -> None:
    def rows(dur: float) -> list[Event]:
        modules = frame("nn.Module: Stem_0", 0.5, 6), frame("nn.Module: Router_0", 19, dur + 1)
        return slow_python(dur, frame(MODEL, 0, dur + 60), *modules)

    (only,) = causes(rows(10), rows(50)).values()
    assert (only.module, only.line, only.delta_ns) == ("Router", "model.py:20 forward", 40_000)


# Copies and syncs


def test_a_copy_is_matched_by_the_op_that_asked_for_it() -> None:
    def copies(num: int) -> list[Event]:
        rows = [step(0, 200), op("aten::copy_", 1, 40)]
        for number in range(num):
            rows += [call("cudaMemcpyAsync", 2 + 3 * number, 2, number + 1)]
            rows += [memcpy("DtoD (Device -> Device)", 50 + 10 * number, 10, number + 1)]
        return rows

    assert deltas(copies(2), copies(5))["memcpy|forward|aten::copy_ > DtoD|"][0] == 3


def test_a_sync_that_another_op_asks_for_is_the_same_sync() -> None:
    def requested(name: str) -> list[Event]:
        rows = [step(0, 100), op(name, 1, 20), call("cudaMemcpyAsync", 2, 15, 1)]
        return [*rows, memcpy("HtoD (Pageable -> Device)", 5, 10, 1), launch(30, 2, 2), kernel("add", 40, 20, 2)]

    result = deltas(requested("aten::_to_copy"), requested("aten::empty_strided"))
    assert not [key for key in result if key.startswith("sync")]


# Bytes


def test_a_collective_that_moves_more_says_how_much() -> None:
    def reduced(elements: int, dur: float) -> list[Event]:
        rows = [comms("allreduce", 10, 6, (elements, elements)), launch(11, 2, 1)]
        return [step(0, 20), *rows, kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 30, dur, 1)]

    result = causes(reduced(10_000, 20), reduced(30_000, 50))["collective|forward|all_reduce for activation exchange|"]
    assert (result.delta_num, result.delta_ns, result.delta_bytes) == (0, 30_000, 80_000)


def test_a_collective_is_named_by_what_it_is_for() -> None:
    """FSDP marks the gathers that it issues ahead in backward."""

    def exchanged(dur: float) -> list[Event]:
        marks = annotation("FSDP::pre_backward_prefetch", 8, 20), op("aten::mm", 2, 2)
        rows = [comms("_allgather_base", 10, 6, (50_000, 100_000)), launch(11, 2, 1)]
        return [step(0, 30), *marks, *rows, kernel("ncclDevKernel_AllGather_RING_LL(x)", 30, dur, 1)]

    (result,) = (one for one in causes(exchanged(20), exchanged(50)).values() if one.kind == "collective")
    assert (result.name, result.delta_ns) == ("all_gather for parameter gather backward", 30_000)


def test_copies_of_another_size_are_a_difference_even_if_they_take_no_longer() -> None:
    def copied(size: int) -> list[Event]:
        rows = [step(0, 100), op("aten::copy_", 1, 10), call("cudaMemcpyAsync", 2, 2, 1)]
        return [*rows, memcpy("DtoD (Device -> Device)", 20, 10, 1, size=size)]

    (only,) = causes(copied(4096), copied(1024)).values()
    assert (only.kind, only.delta_ns, only.delta_bytes) == ("memcpy", 0, -3072)


# Steps without a device


def steps_of(*durations: tuple[float, float]) -> list[Event]:
    """One step of 1 ms per pair: the durations of its ops aten::mm and aten::add."""
    rows: list[Event] = []
    for number, (mm, add) in enumerate(durations):
        start = 1000.0 * number
        rows += [step(start, 1000, number + 1), op("aten::mm", start, mm), op("aten::add", start + 500, add)]
    return rows


def test_what_one_long_step_makes_is_jitter_and_what_is_in_every_step_is_a_cause() -> None:
    """A mean of +80 us is one step of 400 us for aten::mm, and 20 us more in each step for aten::add."""
    a = steps_of((100, 50), (104, 52), (96, 48), (101, 51), (99, 49))
    b = steps_of((101, 70), (500, 73), (98, 69), (99, 71), (102, 67))
    by_key = causes(a, b)
    assert "host|forward|aten::add|" in by_key
    assert "host|forward|aten::mm|" not in by_key
    assert by_key["host|forward|aten::add|"].delta_ns == 20_000
    assert by_key["host|forward|Python between ops|"].delta_ns == -21_000  # the long step has 400 us less of it
    jitter = by_key["jitter"]
    assert (jitter.names_a_change, jitter.delta_num, jitter.delta_ns) == (False, 0, 1_000)


def test_an_op_that_is_added_is_a_cause_in_however_few_steps() -> None:
    a = steps_of(*[(100, 50)] * 5)
    b = [*a, op("aten::item", 800, 90)]
    assert causes(a, b)["host|forward|aten::item|"].delta_num == 0.2


def test_one_long_step_of_two_is_jitter() -> None:
    a, b = steps_of((100, 50), (100, 50)), steps_of((100, 50), (400, 50))
    assert causes(a, b).keys() == {"jitter"}


def test_workers_that_start_in_some_steps_of_one_side_are_a_cause_and_no_jitter() -> None:
    """Two of six steps begin an epoch: the others end in 100 us, new ones start in 6.3 ms, a first batch takes 3 ms."""
    fetches = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    def epochs(starts_us: float) -> list[Event]:
        rows: list[Event] = []
        for begin in range(0, 120_000, 20_000):
            rows += [step(begin, 20_000, begin // 20_000), annotation(fetches, begin, 100)]
            if begin % 60_000 == 0:
                rows += [op("aten::random_", begin + 101, 1), annotation(fetches, begin + 102 + starts_us, 3_000)]
            rows.append(op("aten::mm", begin + 15_000, 2_000))
        return rows

    (starts,) = (cause for cause in causes(epochs(6_300), epochs(200)).values() if cause.phase == "dataload")
    assert (starts.kind, starts.delta_num) == ("host", pytest.approx(-2 / 6))
    assert starts.delta_ns == round(-2 * (100 + 6_300 + 3_000) * 1000 / 6)
