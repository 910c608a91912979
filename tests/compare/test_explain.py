"""Where a difference comes from, on traces small enough to add up by hand. Times in microseconds."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, memcpy, op, step
from item_trace import with_item

from traceq.compare.attribution import accounts, step_time
from traceq.compare.diff import diff_runs
from traceq.compare.explain import explain
from traceq.compare.replaced_kernels import fold_replacements
from traceq.compare.result import Cause, CellDelta
from traceq.model import Run, Trace

Deltas = dict[tuple[str, str], int]
Answer = tuple[int, Deltas, dict[str, Cause]]


def explained(a: Trace | list[Event], b: Trace | list[Event]) -> Answer:
    """(traced delta, delta by cell, cause by key), in us; cells and causes must add up to the delta."""
    sides = [side if isinstance(side, Trace) else build(*side) for side in (a, b)]
    traced, cells, causes = explain(*sides)
    assert sum(cell.delta_ns for cell in cells) == traced.delta_ns
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns
    assert all(cause.count_ns + cause.dur_ns == cause.delta_ns for cause in causes)
    return traced.delta_ns // 1000, deltas_of(cells), {cause.key: cause for cause in causes}


def deltas_of(cells: tuple[CellDelta, ...]) -> Deltas:
    return {(cell.phase, cell.category): cell.delta_ns // 1000 for cell in cells if cell.delta_ns}


def effects(causes: dict[str, Cause]) -> dict[str, tuple[float, int, int]]:
    """(change in number, effect of the number, effect of the duration) by key, in us."""
    return {key: (c.delta_num, c.count_ns // 1000, c.dur_ns // 1000) for key, c in causes.items()}


def gemms(*runs: float, late: float = 0, until: float = 100) -> list[Event]:
    """Kernels that run one after the other from 5 on; the host launches each at once."""
    rows, start = [step(0, until), op("aten::mm", 1, 3 * len(runs))], 5 + late
    for number, dur in enumerate(runs, 1):
        rows += [launch(3 * number - 2, 2, number), kernel("gemm", start, dur, number)]
        start += dur
    return rows


def test_a_sync_answers_for_no_more_than_it_blocked() -> None:
    def until(launched: float) -> list[Event]:
        return [
            step(0, launched + 20),
            launch(1, 2, 1),
            kernel("gemm", 4, 6, 1),
            op("aten::_local_scalar_dense", 10, 10),
            call("cudaMemcpyAsync", 11, 2, 2),
            memcpy("DtoH (Device -> Pinned)", 14, 1, 2),
            call("cudaStreamSynchronize", 13, 5),
            op("aten::slow", 22, launched - 22),
            launch(launched, 2, 3),
            kernel("add", launched + 3, 10, 3),
        ]

    delta, _, causes = explained(until(30), until(90))
    assert (delta, effects(causes)) == (60, {"host|forward|aten::slow|": (0, 0, 60)})


def test_the_copy_counts_towards_what_a_sync_blocked() -> None:
    """A copy of 50 and a host that is slow on its own account: without the sync it would be ahead by 52, not by 102."""

    def slow_after(position: float) -> list[Event]:
        return [op("aten::slow", position, 80), launch(position + 80, 2, 3), kernel("add", position + 85, 10, 3)]

    a = [step(0, 110), launch(1, 2, 1), kernel("gemm", 4, 6, 1), *slow_after(10)]
    b = [
        step(0, 162),
        *a[1:3],
        op("aten::_local_scalar_dense", 10, 52),
        call("cudaMemcpyAsync", 10, 2, 2),
        memcpy("DtoH (Device -> Pageable)", 10, 50, 2),
        call("cudaStreamSynchronize", 12, 50),
        *slow_after(62),
    ]
    delta, _, causes = explained(a, b)
    assert delta == 52
    assert effects(causes)["sync|forward|dtoh aten::_local_scalar_dense|"] == (1, 52, 0)
    assert {cause.name for cause in causes.values() if cause.delta_ns} == {"dtoh aten::_local_scalar_dense"}


def test_a_device_that_waits_for_data_shows_in_the_phase_of_the_loader() -> None:
    def loaded(dur: float) -> list[Event]:
        over = 10 + dur
        loader = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, dur)
        return [*gemms(5, until=over + 20), loader, launch(over, 2, 2), kernel("add", over + 2, 10, 2)]

    delta, cells, causes = explained(loaded(8), loaded(50))
    assert (delta, cells) == (42, {("dataload", "host_bound"): 42})
    assert effects(causes) == {"host|dataload|data loader|": (0, 0, 42)}  # as `show` calls it


def test_without_a_device_the_wait_for_data_is_the_data_loader() -> None:
    def loaded(dur: float) -> list[Event]:
        loader = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, dur)
        return [step(0, dur + 20), loader, op("aten::mm", dur, 15)]

    delta, cells, causes = explained(loaded(10), loaded(40))
    assert (delta, cells) == (30, {("dataload", "dataload_wait"): 30})
    assert effects(causes) == {"host|dataload|data loader|": (0, 0, 30)}


@pytest.mark.parametrize("has_device", [True, False])
def test_what_workers_take_over_is_the_data_loader_alone(has_device: bool) -> None:
    """The process makes a batch in 90, 70 of that in ops; with workers it waits 10 for it, and opens what they send."""

    def loaded(kind: str, dur: float, *ops: Event) -> list[Event]:
        end, name = 10 + dur, f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        events = [step(0, end + 50), op("aten::zero_", 0, 5), annotation(name, 10, dur), *ops, op("aten::mm", end, 20)]
        return [*events, launch(end + 5, 2, 1), kernel("gemm", end + 10, 40, 1)] if has_device else events

    made = loaded("SingleProcess", 90, op("aten::to", 20, 40), op("aten::stack", 60, 30))
    delta, _, causes = explained(made, loaded("MultiProcessing", 10, op("aten::set_", 12, 5)))
    assert (delta, effects(causes)) == (-80, {"host|dataload|data loader|": (0, 0, -80)})


def test_without_a_device_a_read_of_a_value_is_a_sync() -> None:
    reads = [op("aten::item", 15, 4), op("aten::_local_scalar_dense", 16, 2)]
    delta, _, causes = explained([step(0, 15), op("aten::mm", 0, 15)], [step(0, 19), op("aten::mm", 0, 15), *reads])
    assert (delta, effects(causes)) == (4, {"sync|forward|aten::item|": (1, 4, 0)})


def test_without_a_device_python_between_two_ops_that_one_side_alone_calls_is_theirs() -> None:
    """B calls two, 30 apart; what is before the first and after the second is there without them, too: 20 in all."""
    a = [step(0, 60), op("aten::mm", 0, 20), op("aten::mm", 40, 20)]
    added = [op("aten::select", 30, 10), call("cuLaunchKernel", 50, 5, 1), op("aten::select", 70, 10)]
    b = [step(0, 110), op("aten::mm", 0, 20), *added, op("aten::mm", 90, 20)]
    for delta, causes in (explained(a, b)[::2], explained(b, a)[::2]):
        by_name = {cause.name: abs(cause.delta_ns) // 1000 for cause in causes.values() if cause.delta_ns}
        assert (abs(delta), by_name) == (50, {"aten::select": 45, "cuLaunchKernel": 5})
        python = {cause.name: cause.python_ns for cause in causes.values() if cause.python_ns}
        assert python == {"aten::select": delta // 2 * 1000}  # its two calls take 20 of the 45


def test_time_of_a_node_of_autograd_itself_is_not_that_of_an_op_in_it() -> None:
    def evaluated(dur: float) -> list[Event]:
        names = ("autograd::engine::evaluate_function: NllLossBackward0", "NllLossBackward0", "aten::nll_loss_backward")
        return [step(0, dur + 10), *(op(name, 0, dur if number < 2 else 20) for number, name in enumerate(names))]

    _, _, causes = explained(evaluated(50), evaluated(90))
    assert [(cause.path, cause.delta_ns) for cause in causes.values()] == [
        ("autograd::engine::evaluate_function: NllLossBackward0", 40_000)
    ]


def test_without_a_device_an_op_of_the_program_is_no_sync_for_a_read_somewhere_in_it() -> None:
    def rows(dur: float) -> list[Event]:
        return [step(0, dur + 5), op("forward", 0, dur), op("aten::item", 8, 4), op("aten::_local_scalar_dense", 9, 2)]

    delta, _, causes = explained(rows(20), rows(50))
    assert (delta, effects(causes)) == (30, {"host|forward|forward|": (0, 0, 30)})


def test_a_collective_whose_other_side_tells_no_role_is_the_same_collective() -> None:
    """all_to_all by NCCL, and by a kernel that the profiler does not mark: bytes of one side alone are no change."""

    def collective(name: str, num: int, ns: int, moved: int) -> Cause:
        key = f"collective|forward|{name}"
        return Cause(key, "collective", "forward", name, "", num, ns, ns, 0, None, delta_bytes=moved)

    exchanged = collective("all_to_all for activation exchange", -19, -3_578, -2_000)
    kernels, other = collective("all_to_all", 20, 3_376, 0), collective("all_reduce for gradients", 1, 7, 8)
    result = fold_replacements([exchanged, kernels, other], [exchanged.key], [kernels.key, other.key], -195)
    names = {cause.name: (cause.delta_num, cause.delta_ns, cause.delta_bytes) for cause in result}
    assert names == {
        "all_to_all for activation exchange": (1, -202, 0),
        "all_reduce for gradients": (1, 7, 8),
    }


def test_a_trace_against_itself_has_no_cause() -> None:
    assert explained(with_item(item=True), with_item(item=True)) == (0, {}, {})


@pytest.mark.parametrize("item", [True, False])
def test_accounts_are_closed(item: bool) -> None:
    trace = build(*with_item(item=item))
    time = step_time(trace)
    assert sum(cell.ns for cell in time.cells) == time.total_ns == (100_000 if item else 65_000)
    assert accounts(trace).ns.sum() == time.total_ns


def test_a_kernel_that_another_op_launched_is_still_the_same_kernel() -> None:
    """Clocks that disagree put one of two launches into the op beside its own: nothing changed."""

    def run(second_op: str) -> list[Event]:
        ops = [op("aten::mm", 1, 4), op(second_op, 11, 4)]
        return [
            step(0, 60),
            *ops,
            launch(2, 2, 1),
            kernel("gemm", 5, 20, 1),
            launch(12, 2, 2),
            kernel("gemm", 25, 20, 2),
        ]

    delta, _, causes = explained(run("aten::mm"), run("aten::t"))
    assert delta == 0
    assert not [key for key in causes if key.startswith("kernel")]


def test_a_backward_op_is_at_the_line_of_its_forward_op() -> None:
    """The line of all of them is `loss.backward()`, which tells none of them apart."""

    def run(*, sums: bool) -> list[Event]:
        of_sum = {"Sequence number": 3}
        added = [
            frame("loss.py(7): penalty", 10, 10),
            op("aten::sum", 12, 5, **of_sum),
            op("autograd::engine::evaluate_function: SumBackward0", 40, 20, **of_sum, **{"Fwd thread id": 1}),
        ]
        return [step(0, 100), frame("train.py(60): main", 0, 100), op("aten::mm", 2, 5), *added * sums]

    _, _, causes = explained(run(sums=False), run(sums=True))
    lines = {cause.name.rpartition(": ")[2]: cause.line for cause in causes.values() if cause.delta_num}
    assert lines == {"aten::sum": "loss.py:7 penalty", "SumBackward0": "loss.py:7 penalty"}


def test_the_time_in_a_barrier_is_no_python() -> None:
    barrier = [op("c10d::barrier", 40, 2), annotation("gloo:barrier", 41, 50, tid=3)]
    ops = [step(0, 100), op("aten::mm", 2, 5)]
    _, _, causes = explained(ops, [*ops, *barrier])
    (cause,) = (cause for cause in causes.values() if cause.kind == "collective")
    assert (cause.name, cause.phase, cause.delta_ns) == ("barrier", "forward", 50_000)


def test_an_op_that_runs_a_layer_is_at_the_line_that_calls_it() -> None:
    """As CheckpointFunction: in its middle the line is one of the layer inside."""
    outer = [step(0, 100), frame("model.py(12): forward", 0, 100), op("aten::mm", 2, 5)]
    added = [op("CheckpointFunction", 10, 80), frame("layer.py(7): forward", 20, 60), op("aten::relu", 40, 20)]
    _, _, causes = explained(outer, [*outer, *added])
    (cause,) = (cause for cause in causes.values() if cause.delta_num)
    assert (cause.name, cause.line, cause.delta_num) == ("CheckpointFunction", "model.py:12 forward", 1)


@pytest.mark.parametrize(("evaluates", "in_steps"), [((1, 2), "2 of 3"), ((1,), "1 of 3"), ((1, 2, 3), "")])
def test_what_only_some_traced_steps_have_says_so(evaluates: tuple[int, ...], in_steps: str) -> None:
    """As of an evaluation that began at the end of a step, which no arm adds or removes."""

    def steps(reading: tuple[int, ...]) -> Trace:
        rows: list[Event] = []
        for number in range(1, 4):
            start = 1000 * number
            rows += [step(start, 1000, number), op("aten::mm", start + 2, 20)]
            rows += [launch(start + 5, 5, number + 1), kernel("gemm", start + 15, 500, number + 1)]
            if number in reading:
                rows.append(op("aten::item", start + 30, 600))
                copy = (
                    call("cudaMemcpyAsync", start + 35, 590, number + 11),
                    memcpy("DtoH", start + 520, 2, number + 11),
                )
                rows += copy
        return build(*rows)

    causes = diff_runs(Run("a", (steps(evaluates),)), Run("b", (steps(()),))).causes
    assert [cause.in_steps for cause in causes if "aten::item" in cause.name and cause.delta_num] == [in_steps]


def test_a_load_that_waits_for_a_collective_is_no_longer_where_the_collective_is() -> None:
    """With lazy loading a kernel's first launch waits until the device is idle."""

    def run(gathers_until: int) -> list[Event]:
        rows = [launch(2, 2, 1), kernel("ncclDevKernel_AllGather", 10, gathers_until - 10, 1, stream=20)]
        rows += [launch(20, gathers_until - 10, 2), kernel("new", gathers_until + 20, 10, 2)]
        later = [gathers_until + 100 * number for number in (1, 2, 3, 4)]
        for number, begin in enumerate(later, 3):
            rows += [launch(begin, 5, number), kernel("new", begin + 20, 10, number)]
        return rows

    delta, _, causes = explained(run(9_000), run(3_000))
    assert delta == -6000
    assert {cause.name: cause.delta_ns // 1000 for cause in causes.values() if cause.delta_ns} == {"all_gather": -6000}


def test_a_load_that_only_one_side_has_is_one_time_work_with_its_wait() -> None:
    """B has loaded the kernel before: its host does not wait for the collective and launches what is long at once."""

    def run(launched_until: int) -> list[Event]:
        rows = [launch(2, 2, 1), kernel("ncclDevKernel_AllGather", 10, 8990, 1, stream=20)]
        rows += [launch(20, launched_until - 20, 2), kernel("new", launched_until + 10, 10, 2)]
        for number in (1, 2, 3, 4):
            begin = launched_until + 100 * number
            rows += [launch(begin, 5, 2 + number), kernel("new", begin + 10, 8000 if number == 4 else 10, 2 + number)]
        return rows

    delta, _, causes = explained(run(9_010), run(25))
    assert delta == -8420
    assert {cause.name: cause.delta_ns // 1000 for cause in causes.values() if cause.names_a_change} == {
        "one-time work": -8425
    }


def test_small_ops_of_one_op_that_are_gone_are_one_cause() -> None:
    """Each is less than 1 % of the delta, of which another op is most; together they are more."""

    def run(calls: tuple[str, ...], slow: float) -> list[Event]:
        begins = [20 + 9 * number for number in range(len(calls))]
        until = 20 + 9 * len(calls)
        rows = [
            op("aten::linear", 10, until + 10),
            *(op(name, begin, 9) for name, begin in zip(calls, begins, strict=True)),
        ]
        rows += [launch(until, 5, 1), kernel("gemm", until + 10, 5, 1), op("aten::slow", until + 30, slow)]
        return [*rows, launch(until + slow + 40, 5, 2), kernel("gemm", until + slow + 50, 5, 2)]

    small = ("aten::t", "aten::view", "aten::expand", "aten::reshape")
    delta, _, causes = explained(run(small, 3_000), run((), 1_000))
    assert delta == -2036
    costs = {cause.path: cause.delta_ns // 1000 for cause in causes.values() if cause.delta_ns}
    assert costs == {"aten::slow": -2000, "aten::linear > aten::t (and 3 more)": -36}
