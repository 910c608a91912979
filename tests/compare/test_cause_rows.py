"""Causes of a delta by the critical path of both sides, on traces small enough to add up by hand. Times in us."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from builder import OTHER, Event, annotation, build, call, frame, kernel, launch, memcpy, op, step
from item_trace import with_item
from simulator import US, run_of
from simulator.meetings import Late, Meetings
from simulator.program import Instruction, Launch, Synchronize, item
from statements import only

from traceq.causes.host_line import ONCE
from traceq.compare.diff import diff_runs
from traceq.compare.explain import explain
from traceq.compare.result import REPLACED_BY, Cause, share
from traceq.facts.timeline.active_thread import parallel_launches
from traceq.facts.timeline.steps import steps
from traceq.model import Run, Trace


def causes_of(a: Trace | list[Event], b: Trace | list[Event]) -> tuple[float, dict[str, Cause]]:
    """(traced delta in us, causes by name); they must add up, and turn every sign when the sides are exchanged."""
    a, b = (side if isinstance(side, Trace) else build(*side) for side in (a, b))
    (traced, _, causes), (_, _, back) = explain(a, b), explain(b, a)
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns
    assert [cause.share_pct for cause in causes] == [share(cause.delta_ns, traced.delta_ns) for cause in causes]
    assert sorted(cause.delta_ns for cause in causes) == sorted(-cause.delta_ns for cause in back)
    assert len({cause.name for cause in causes}) == len(causes)
    return traced.delta_ns / 1000, {cause.name: cause for cause in causes}


def deltas(causes: dict[str, Cause]) -> dict[str, float]:
    return {name: cause.delta_ns / 1000 for name, cause in causes.items() if cause.delta_ns}


class Host:
    """A host that launches kernels, 10 after the call on an idle device, 1 after each other on a busy one."""

    def __init__(self) -> None:
        self.rows: list[Event] = []
        self.time, self.number, self.free = 0.0, 0, dict[int, float]()

    def work(self, name: str, dur: float) -> Host:
        self.rows.append(op(name, self.time, dur))
        self.time += dur
        return self

    def run(self, name: str, dur: float, stream: int = 7, launcher: str = "aten::mm", **inputs: object) -> Host:
        self.number += 1
        begin = max(self.time + 13, self.free.get(stream, 0) + 1)
        self.rows += [op(launcher, self.time, 10, **inputs), launch(self.time + 3, 4, self.number)]
        self.rows.append(kernel(name, begin, dur, self.number, stream=stream))
        self.free[stream] = begin + dur
        self.time += 10
        return self

    def load(self, name: str, dur: float) -> Host:
        """A launch whose call first loads the kernel."""
        self.number += 1
        self.rows += [op("aten::conv2d", self.time, dur + 5), launch(self.time + 1, dur, self.number)]
        self.rows.append(kernel(name, max(self.time + dur + 7, self.free.get(7, 0) + 1), 5, self.number))
        self.time += dur + 5
        self.free[7] = self.time + 7
        return self

    def item(self) -> Host:
        """A copy of 2 to the host, which is back 3 after it."""
        self.number += 1
        begin = max(self.time + 13, self.free.get(7, 0) + 1)
        self.rows += [
            op("aten::item", self.time, begin + 5 - self.time),
            op("aten::_local_scalar_dense", self.time, begin + 5 - self.time),
            call("cudaMemcpyAsync", self.time + 3, 4, self.number),
            memcpy("DtoH (Device -> Pinned)", begin, 2, self.number),
            call("cudaStreamSynchronize", self.time + 8, begin + 4 - self.time - 8),
        ]
        self.free[7], self.time = begin + 2, begin + 5
        return self

    def drain(self) -> Host:
        """Ends the step: the host waits for the device, and returns 2 later."""
        over = max(*self.free.values(), self.time + 2) + 2
        self.rows.append(call("cudaDeviceSynchronize", self.time, over - self.time))
        self.time = over
        return self

    @property
    def trace(self) -> Trace:
        self.drain()
        return build(step(0, self.time + 1), *self.rows)


def queued(num: int = 8, dur: float = 50) -> Host:
    """Kernels that keep the device busy, so that the host runs ahead."""
    host = Host()
    for number in range(num):
        host.run(f"gemm{number}", dur)
    return host


def test_equal_traces_have_no_row() -> None:
    assert causes_of(with_item(item=True), with_item(item=True)) == (0, {})
    assert causes_of(queued().item().run("add", 5).trace, queued().item().run("add", 5).trace) == (0, {})


def test_a_host_op_that_the_device_hides_costs_nothing() -> None:
    a, b = (queued().work("aten::slow", dur).run("add", 5).trace for dur in (10, 110))
    assert causes_of(a, b)[0] == 0
    assert deltas(causes_of(a, b)[1]) == {}


def test_a_kernel_that_is_loaded_first_is_the_cause_of_its_loading() -> None:
    a, b = (queued(60, 5).load("conv", dur).run("add", 5).trace for dur in (3, 4003))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (4000, {ONCE: 4000})


def test_what_a_process_does_once_is_a_cause_of_its_own_and_has_no_part_in_the_pace() -> None:
    """Its first op starts the driver, 200 ms and then 300 ms; sixty others take 1.4 times as long."""

    def started(first_ms: float, factor: float) -> Trace:
        host = Host()
        begin = first_ms * 1000
        host.rows += [op("aten::empty", 0, begin), call("cudaMalloc", 5, 10)]
        host.time = begin
        for number in range(60):
            host.work(f"aten::prepare{number % 9}", (2000 + 10 * number) * factor).run("add", 5)
        return host.trace

    delta, causes = causes_of(started(200, 1), started(300, 1.4))
    assert causes[ONCE].delta_ns == pytest.approx(100_000_000, rel=0.01)
    assert deltas(causes)["pace of all host ops (+40.0 %)"] == pytest.approx(delta - 100_000, rel=0.05)


def test_a_device_that_starts_in_an_op_which_allocates_is_no_cost_of_the_allocation() -> None:
    """The first op of one side starts the driver for 200 ms, then asks it for memory for 1 ms."""

    def started(first_ms: float) -> Trace:
        host, begin = Host(), first_ms * 1000
        if first_ms:
            host.rows += [op("aten::empty", 0, begin), call("cudaGetDeviceCount", 5, 10)]
            host.rows.append(call("cudaMalloc", begin - 1500, 1000))
        host.time = begin
        for _ in range(60):
            host.work("aten::prepare", 200).run("add", 5)
        return host.trace

    _, causes = causes_of(started(200), started(0))
    assert deltas(causes) == {ONCE: -199_000, "alloc aten::empty": -1000}


def test_an_op_of_one_side_that_allocates_is_the_cause_of_its_own_time() -> None:
    """It prepares for 450 us, and asks the driver for memory for 50."""

    def prepared(*, twice: bool) -> Trace:
        host = Host().run("gemm", 5)
        if twice:
            host.rows.append(call("cudaMalloc", host.time + 100, 50))
            host.work("aten::prepare", 500)
        return host.run("add", 5).trace

    _, causes = causes_of(prepared(twice=False), prepared(twice=True))
    assert deltas(causes) == {"aten::prepare": 450, "alloc aten::prepare": 50}


def launched_by_threads(seed: int, *, slow: float = 0) -> Trace:
    """Four threads that launch side by side, each on a stream of its own; an op of the third one takes `slow` more."""
    rng, rows, number, end = random.Random(seed), [], 0, 0.0
    for thread in range(4):
        time, free = 0.0, 0.0
        for n in range(50):
            number, dur = number + 1, rng.uniform(9, 11) + slow * ((thread, n) == (2, 25))
            begin = max(time + 9, free + 1)
            rows += [op("aten::mm", time, dur, tid=100 + thread), launch(time + 4, 3, number, tid=100 + thread)]
            rows.append(kernel(f"k{n % 7}", begin, 6, number, stream=7 + thread))
            time, free = time + dur, begin + 6
        end = max(end, time, free)
    return build(step(0, end + 5), call("cudaDeviceSynchronize", end - 3, 6), *rows)


def test_where_threads_launch_side_by_side_the_op_of_one_is_told() -> None:
    a, b = launched_by_threads(1), launched_by_threads(2, slow=300)
    traced, _, causes = explain(a, b)
    assert parallel_launches(a) > 0.5
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns > 250_000
    assert [cause.name for cause in causes if cause.names_a_change] == ["aten::mm"]
    assert causes[0].delta_ns == pytest.approx(traced.delta_ns, rel=0.1)


def served(kernel_us: float) -> Trace:
    """Rounds that a kernel takes, after which a thread has read its result, or an op that ends at 550; then 97 more."""
    rows, start, ends_us = list[Event](), 0.0, max(550, 25 + kernel_us + 8)
    for n in range(6):
        first, second = 2 * n + 1, 2 * n + 2
        rows += [step(start, ends_us + 97, n), op("aten::mm", start, 40), op("aten::prepare", start + 150, 400)]
        rows += [launch(start + 10, 5, first), kernel("gemm", start + 25, kernel_us, first)]
        copied_us = start + 25 + kernel_us
        rows += [call("cudaMemcpyAsync", start + 30, 5, second)]
        rows += [memcpy("DtoH (Device -> Pinned)", copied_us + 1, 4, second)]
        rows += [call("cudaEventSynchronize", start + 37, copied_us + 8 - start - 37, tid=OTHER)]
        start += ends_us + 97
    return build(*rows)


def test_a_host_that_waits_for_a_thread_that_reads_results_waits_for_kernels() -> None:
    """On the one side the result is there at 603, on the other at 233, while the host prepares until 550."""
    delta, causes = causes_of(served(570), served(200))
    assert delta < -53
    assert deltas(causes) == {"aten::mm > gemm": delta}


def test_an_exposed_host_op_costs_its_time() -> None:
    a, b = (Host().run("gemm", 5).work("aten::slow", dur).run("add", 5).trace for dur in (50, 150))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (100, {"aten::slow": 100})
    assert (causes["aten::slow"].count_ns, causes["aten::slow"].dur_ns) == (0, 100_000)


def test_a_host_op_of_which_the_device_hides_a_part_costs_the_rest() -> None:
    """The device is free at 13 + 8 * 50 + 7 = 420, the last launch at 83 + 10 on A, so that it starts at 421.

    On B the op ends at 580, the call is at 583 and the kernel starts at 593: 172 later.
    """
    a, b = (queued().work("aten::slow", dur).run("add", 5).trace for dur in (10, 500))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (172, {"aten::slow": 172})


def test_a_read_costs_the_queue_that_it_drains() -> None:
    """Without it the kernel after it starts at 421, as the device is busy until 420.

    With it the host is back at 426, launches at 429, and the kernel starts at 439: 18 later, of which 3 are the copy.
    """
    a, b = (host.run("add", 5).trace for host in (queued(), queued().item()))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (18, {"dtoh aten::_local_scalar_dense": 18})
    sync = causes["dtoh aten::_local_scalar_dense"]
    assert (sync.kind, sync.delta_num, sync.count_ns, sync.dur_ns) == ("sync", 1, 18_000, 0)
    assert sync.chain is not None
    assert sync.chain.copied_ns + sync.chain.waited_ns + sync.chain.rest_ns == 18_000


def test_a_read_costs_the_host_work_that_the_device_no_longer_hides() -> None:
    """`aten::slow` takes 300 on both sides. It hides behind the device on A; on B it begins when that is idle.

    A: 421. B: back at 426, launched at 729, started at 739: 318 later.
    """
    a, b = (host.work("aten::slow", 300).run("add", 5).trace for host in (queued(), queued().item()))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (318, {"dtoh aten::_local_scalar_dense": 318})


def test_a_removed_read_saves_what_it_would_cost() -> None:
    a, b = (host.work("aten::slow", 300).run("add", 5).trace for host in (queued().item(), queued()))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (-318, {"dtoh aten::_local_scalar_dense": -318})
    assert causes["dtoh aten::_local_scalar_dense"].delta_num == -1


def test_a_longer_kernel_on_the_path_costs_its_time() -> None:
    a, b = (queued().run("softmax", dur).run("add", 5).trace for dur in (20, 80))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (60, {"aten::mm > softmax": 60})
    assert (causes["aten::mm > softmax"].count_ns, causes["aten::mm > softmax"].dur_ns) == (0, 60_000)


def test_a_longer_kernel_behind_another_stream_costs_nothing() -> None:
    a, b = (Host().run("long", 500).run("hidden", dur, stream=20).trace for dur in (20, 200))
    assert causes_of(a, b) == (0, {})


def test_a_longer_kernel_costs_what_sticks_out_behind_another_stream() -> None:
    """The other stream ends at 513; this kernel starts at 23 and ends at 223 or 623."""
    a, b = (Host().run("long", 500).run("hidden", dur, stream=20).trace for dur in (200, 600))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (110, {"aten::mm > hidden": 110})


def test_a_new_exposed_kernel_is_a_change_in_number() -> None:
    """41 each: 40 and a gap of 1."""
    a, b = (host.run("add", 5).trace for host in (queued(), queued().run("new", 40)))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (41, {"aten::mm > new": 41})
    new = causes["aten::mm > new"]
    assert (new.delta_num, new.count_ns, new.dur_ns) == (1, 41_000, 0)


def replayed(*kernels: tuple[str, float]) -> Trace:
    """One replay of a CUDA graph of these kernels, one after the other."""
    rows, time = [op("aten::mm", 5, 60), call("cudaGraphLaunch", 10, 20, 1)], 40.0
    for name, dur in kernels:
        rows.append(kernel(name, time, dur, 1))
        time += dur
    return build(step(0, time + 5), *rows, call("cudaDeviceSynchronize", 35, time - 32))


def test_a_kernel_that_runs_as_often_in_another_place_changes_by_its_duration_alone() -> None:
    a = replayed(("fmha", 100), ("gemm", 50), ("norm", 100), ("norm", 100))
    b = replayed(("norm", 100), ("gemm", 100), ("copy", 300), ("fmha", 300), ("norm", 50))
    _, causes = causes_of(a, b)
    by_count = {cause.name: cause.count_ns for cause in causes.values() if cause.kind == "kernel" and cause.delta_num}
    assert by_count == {"aten::mm > copy": causes["aten::mm > copy"].delta_ns}
    as_often = [cause for cause in causes.values() if cause.kind == "kernel" and not cause.delta_num]
    assert "aten::mm > gemm" in {cause.name for cause in as_often}
    assert all((cause.count_ns, cause.dur_ns) == (0, cause.delta_ns) for cause in as_often)


def test_a_kernel_that_replaces_another_one_as_often_changes_by_duration() -> None:
    a, b = (
        replayed(("fmha", 50), ("sgemm", 100), ("sgemm", 100)),
        replayed(("cutlass", 80), ("cutlass", 80), ("fmha", 50)),
    )
    _, causes = causes_of(a, b)
    (row,) = (cause for cause in causes.values() if "replaced by" in cause.name)
    assert (row.delta_num, row.count_ns, row.dur_ns) == (0, 0, -40_000)


def test_small_kernels_that_were_replaced_with_large_ones_count_too() -> None:
    dur = {"gemm": 100, "small": 0.5, "norm": 10, "cutlass": 180}

    def side(*kernels: str) -> Trace:
        host = queued()
        for name in kernels:
            host.run(name, dur[name], launcher="CompiledFunction")
        return host.run("add", 5).trace

    a = side("small", "gemm", "small", "norm", "gemm", "small")
    b = side("norm", "gemm", "cutlass", "cutlass", "cutlass", "cutlass")
    for _, _, causes in (explain(a, b), explain(b, a)):
        assert sum(cause.delta_num for cause in causes) == 0


def test_a_renamed_kernel_is_one_row() -> None:
    a, b = (queued().run(name, dur).run("add", 5).trace for name, dur in (("ampere", 30), ("hopper", 20)))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (-10, {f"aten::mm > ampere{REPLACED_BY}hopper": -10})
    assert causes[f"aten::mm > ampere{REPLACED_BY}hopper"].delta_num == 0
    assert list(causes_of(b, a)[1]) == [f"aten::mm > hopper{REPLACED_BY}ampere"]


def test_a_kernel_that_another_op_launches_under_another_name_is_one_row_with_both_ops() -> None:
    a = queued().run("ampere", 30, launcher="aten::mm").run("add", 5).trace
    b = queued().run("hopper", 20, launcher="aten::bmm").run("add", 5).trace
    old, new = "aten::mm > ampere", "aten::bmm > hopper"
    assert list(causes_of(a, b)[1]) == [f"{old}{REPLACED_BY}{new}"]
    assert list(causes_of(b, a)[1]) == [f"{new}{REPLACED_BY}{old}"]


def test_a_kernel_that_another_op_launches_is_not_replaced_by_itself() -> None:
    a = queued().run("gemm", 30, launcher="aten::mm").run("add", 5).trace
    b = queued().run("gemm", 20, launcher="aten::t").run("add", 5).trace
    assert not [name for name in causes_of(a, b)[1] if "replaced" in name]


def test_a_renamed_op_is_one_row() -> None:
    a, b = (
        Host().run("gemm", 5).work(name, dur).run("add", 5).trace
        for name, dur in (("aten::slow", 50), ("aten::slower", 150))
    )
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (100, {f"aten::slow{REPLACED_BY}aten::slower": 100})
    assert list(causes_of(b, a)[1]) == [f"aten::slower{REPLACED_BY}aten::slow"]


def test_other_work_in_an_op_is_one_row_beside_a_change_in_the_same_op() -> None:
    def side(dur: float, *inner: str) -> Trace:
        host = Host().run("gemm", 5)
        host.rows.append(op("aten::block", host.time, dur + 120))
        for number, name in enumerate(inner):
            host.rows.append(op(name, host.time + dur + 120 / len(inner) * number, 120 / len(inner)))
        host.time += dur + 121
        return host.run("add", 5).trace

    _, _, causes = explain(side(10, "aten::old"), side(310, "ext::part_0", "ext::part_1", "ext::part_2"))
    assert [(cause.self_op, cause.delta_ns / US) for cause in causes if cause.delta_ns] == [("", 300)]


def test_other_work_that_cancels_in_a_phase_is_one_row_where_no_lines_are_known() -> None:
    """Some calls of an op are three others in B: its own row was -17 us, of a change of 10."""

    def side(dur: float, *names: str) -> Trace:
        host = Host().run("gemm", 5)
        for _ in range(3):
            host.work("aten::empty", 2)
            for name in names:
                host.work(name, 120 / len(names))
            host.run("add", 5)
        return host.work("aten::slow", dur).run("add", 5).trace

    _, _, causes = explain(side(10, "aten::empty"), side(310, "ext::part_0", "ext::part_1", "ext::part_2"))
    assert [cause.name for cause in causes if cause.delta_ns] == ["aten::slow"]


def test_another_op_of_another_line_is_no_replacement() -> None:
    """Without workers the process transforms samples itself; with them it rebuilds the tensors that they send."""

    def side(name: str, function: str, around: str = "") -> Trace:
        host = Host().run("gemm", 5)
        host.rows += [annotation(around, host.time, 200)] if around else []
        host.rows.append(frame(f"data.py(7): {function}", host.time, 200))
        return host.work(name, 150).run("add", 5).trace

    (old, line), new = ("aten::view", "to_tensor"), "aten::set_"
    moved = causes_of(side(old, line), side(new, "rebuild"))[1]
    assert not [cause for cause in moved.values() if cause.is_replacement]
    assert list(causes_of(side(old, line), side(new, line))[1]) == [f"{old} replaced by {new}"]
    loaders = (f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__" for kind in ("SingleProcess", "MultiProcessing"))
    loaded = causes_of(side(old, line, next(loaders)), side(new, line, next(loaders)))[1]
    assert not [cause for cause in loaded.values() if cause.is_replacement]


@pytest.mark.parametrize("is_op", [True, False])
def test_work_that_replaced_other_work_for_the_same_time_is_a_row(is_op: bool) -> None:
    def side(name: str) -> Trace:
        if is_op:
            return Host().run("gemm", 5).work(f"aten::{name}", 50).run("add", 5).trace
        return queued().run(name, 30).run("add", 5).trace

    a, b = side("old"), side("new")
    name = f"aten::old{REPLACED_BY}aten::new" if is_op else f"aten::mm > old{REPLACED_BY}new"
    delta, causes = causes_of(a, b)
    assert (delta, causes[name].delta_ns, causes[name].is_replacement) == (0, 0, True)
    replaced = only("replaced", diff_runs(Run("a", (a,)), Run("b", (b,))))
    assert (replaced["cause"], replaced["delta_ns"]) == (causes[name].key, 0)
    assert not [cause for cause in causes_of(a, a)[1].values() if cause.is_replacement]


def test_an_op_of_a_thousandth_of_the_step_that_is_another_one_is_no_other_work() -> None:
    def side(name: str, ns: int) -> Trace:
        return Host().run("gemm", 2_000).work(f"aten::{name}", ns).run("add", 5).trace

    for ns, num in ((1, 0), (50, 1)):
        a, b = side("old", ns), side("new", ns)
        assert sum(cause.is_replacement for cause in causes_of(a, b)[1].values()) == num


def test_a_new_wait_on_the_device_names_its_call() -> None:
    """It returns at 422 on B, so that the next call is at 425 and its kernel starts at 435, not at 421."""
    a, b = (host.run("add", 5).trace for host in (queued(), queued().drain()))
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (14, {"device DeviceSynchronize": 14})


def test_a_step_that_ends_with_a_wait_ends_after_it() -> None:
    """As where times are whole us: the device synchronize and the step end at the same instant."""
    hosts = (queued().run("softmax", dur).drain() for dur in (20, 80))
    a, b = (build(step(0, host.time), *host.rows) for host in hosts)
    assert deltas(causes_of(a, b)[1]) == {"aten::mm > softmax": 60}


def test_of_two_changes_on_parallel_streams_each_has_its_change_while_it_is_the_later_one() -> None:
    """One stream ends at 213 and then 313, the other at 163 and then 413.

    On the way from A to B, 213 + 100 t is later until t = 1/3, 163 + 250 t from there on: 100 / 3 and 250 * 2 / 3.
    """
    sides = ((200, 140), (300, 390))
    a, b = (Host().run("left", left).run("right", right, stream=20).trace for left, right in sides)
    delta, causes = causes_of(a, b)
    assert (delta, deltas(causes)) == (200, {"aten::mm > left": 33.333, "aten::mm > right": 166.667})


@pytest.mark.parametrize(("factor", "percent"), [(1.05, "+5.0"), (0.9, "-10.0")])
def test_a_device_at_another_speed_is_one_row(factor: float, percent: str) -> None:
    """Thirty kernels of 100 to 390, all slower alike, and one that became longer by itself."""

    def run(speed: float, dur: float) -> Trace:
        host = Host()
        for number in range(30):
            host.run(f"gemm{number}", (100 + 10 * number) * speed)
        return host.run("softmax", dur * speed).trace

    a, b = run(1, 100), run(factor, 400)
    delta, causes = causes_of(a, b)
    paced = f"pace of all kernels ({percent} %)"
    assert delta == pytest.approx(7350 * (factor - 1) + 400 * factor - 100)
    assert set(deltas(causes)) == {paced, "aten::mm > softmax"}
    unchanged = 7350 * (factor - 1)
    assert causes[paced].kind == "pace"
    assert deltas(causes)[paced] == pytest.approx(unchanged, abs=60)  # a part of softmax's time is pace as well
    assert deltas(causes)["aten::mm > softmax"] == pytest.approx(delta - unchanged, abs=60)
    diff = diff_runs(Run("a", (a,)), Run("b", (b,)))
    assert diff.answer.code == "other_pace"
    assert only("pace", diff)["paced_delta_ns"] == causes[paced].delta_ns


@pytest.mark.parametrize(("rows", "dtype"), [(16, "float"), (8, "c10::BFloat16")])
def test_kernels_of_other_shapes_or_dtypes_do_other_work_and_have_no_common_pace(rows: int, dtype: str) -> None:
    def run(speed: float, rows: int, dtype: str) -> Trace:
        host, inputs = Host(), {"Input Dims": [[rows, 64], [64, 64]], "Input type": [dtype, dtype]}
        for number in range(30):
            host.run(f"gemm{number}", (100 + 10 * number) * speed, **inputs)
        return host.trace

    delta, causes = causes_of(run(1, 8, "float"), run(2, rows, dtype))
    assert delta == pytest.approx(7350)
    assert {cause.kind for cause in causes.values()} == {"kernel"}
    _, causes = causes_of(run(1, 8, "float"), run(2, 8, "float"))
    assert "pace" in {cause.kind for cause in causes.values()}


def test_kernels_of_other_shapes_that_each_change_in_their_own_way_are_no_jitter() -> None:
    """Of a larger batch each kernel takes longer, by what its work is bound."""

    def run(rows: int) -> Trace:
        host, inputs = Host(), {"Input Dims": [[rows, 64], [64, 64]]}
        for number in range(30):
            host.run(f"gemm{number}", 100 * (1 + number % 5 * (rows - 8) / 8), **inputs)
        return host.trace

    delta, causes = causes_of(run(8), run(16))
    assert delta == pytest.approx(6 * 100 * (1 + 2 + 3 + 4))
    of_kernels = [cause.delta_ns for cause in causes.values() if cause.kind == "kernel"]
    assert len(of_kernels) == 24
    assert sum(of_kernels) / 1000 == pytest.approx(delta)


def test_a_kernel_that_takes_most_of_the_time_is_not_all_kernels() -> None:
    """Twenty layers of a kernel of 1,000, which becomes slower, and nine others of 20, which do not."""

    def run(dur: float) -> Trace:
        host = Host()
        for _ in range(20):
            host.run("expert", dur)
            for number in range(9):
                host.run(f"small{number}", 20)
        return host.trace

    delta, causes = causes_of(run(1000), run(1300))
    assert delta == 6000
    assert deltas(causes) == {"aten::mm > expert": 6000}


def test_a_few_long_ops_say_nothing_about_the_pace_of_all() -> None:
    """Three ops of most of the time take 3 to 4 times as long, a hundred short ones no longer than before."""

    def run(*factors: float) -> Trace:
        host = Host()
        for number in range(100):
            host.work(f"aten::short{number % 20}", 5).run("add", 2)
        for name, factor in zip(("aten::randperm", "aten::sort", "aten::unique"), factors, strict=True):
            host.work(name, 2000 * factor).run("add", 2)
        return host.trace

    _, causes = causes_of(run(1, 1, 1), run(3.2, 3.7, 4.2))
    assert "pace" not in {cause.kind for cause in causes.values()}


def test_kernels_of_which_some_became_slower_are_not_all_kernels() -> None:
    """Of thirty twelve take 1.3 times as long, six 1.08 times, which is the median, and twelve as long as before."""

    def run(slower: float, median: float) -> Trace:
        host = Host()
        for number in range(30):
            host.run(f"gemm{number}", 200 * (slower if number < 12 else median if number < 18 else 1))
        return host.trace

    _, causes = causes_of(run(1, 1), run(1.3, 1.08))
    assert "pace" not in {cause.kind for cause in causes.values()}
    _, causes = causes_of(run(1, 1), run(1.08, 1.08))
    assert "pace" not in {cause.kind for cause in causes.values()}


def at_random(seed: int) -> Trace:
    """Six steps of ten kernels that take 100 +- 10, each time otherwise, by a fixed sequence."""
    rows, host = list[Event](), Host()
    for number in range(6):
        begin = host.time
        for index in range(10):
            seed = (seed * 1103515245 + 12345) % 2**31
            host.run(f"gemm{index}", 90 + seed % 21)
        host.drain()
        host.time += 1
        rows.append(step(begin, host.time - begin, number))
    return build(*rows, *host.rows)


def test_work_that_varies_at_random_is_jitter_and_no_cause() -> None:
    _, causes = causes_of(at_random(1), at_random(2))
    assert {cause.kind for cause in causes.values()} == {"jitter"}
    assert all(cause.sd_ns > 0 for cause in causes.values())
    diff = diff_runs(*(Run(name, (at_random(seed),)) for name, seed in (("a", 1), ("b", 2))))
    assert diff.answer.code == "within_jitter"


def test_the_jitter_of_work_does_not_grow_with_its_own_change() -> None:
    """Nine of ten kernels vary by a fixed 1 to 9 us; the tenth becomes longer by `more`."""

    def changed(more: float) -> Cause:
        sides = []
        for sign in (0, 1):
            host = Host()
            for number in range(9):
                host.run(f"gemm{number}", 200 + sign * (-1) ** number * (number + 1))
            sides.append(host.run("softmax", 200 + sign * more).trace)
        _, causes = causes_of(*sides)
        return causes["aten::mm > softmax"]

    little, much = changed(300), changed(3000)
    assert (little.delta_ns, much.delta_ns) == (300_000, 3_000_000)
    assert little.sd_ns == much.sd_ns
    assert 0 < much.sd_ns < 10_000


def test_phases_of_ops_are_those_of_their_causes() -> None:
    def run(dur: float) -> Trace:
        host = Host().run("gemm", 5)
        begin = host.time
        host.work("aten::slow", dur)
        host.rows.append(annotation("Optimizer.step#SGD.step", begin, dur))
        return host.run("add", 5).trace

    _, causes = causes_of(run(50), run(150))
    assert causes["aten::slow"].phase == "optimizer"


PLAN = [("all_gather", 1000), ("all_reduce", 4000), ("all_reduce", 2000), ("reduce_scatter", 1000)]


def job_causes(explained: int, late: Late, **options: bool) -> tuple[int, tuple[Cause, ...]]:
    """(traced delta of a rank, its causes) where one of four ranks becomes late in every step."""
    lates = Late(late.rank, 0, late.place, late.in_kernel), late
    a, b = (run_of(Meetings(PLAN, num_ranks=4, late=one, **options).job(random.Random(1))).traces for one in lates)
    peers = [(a[rank], b[rank]) for rank in range(4) if rank != explained]
    traced, _, causes = explain(a[explained], b[explained], peers)
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns
    return traced.delta_ns, causes


@pytest.mark.parametrize("explained", [0, 3])
@pytest.mark.parametrize(
    ("late", "name"),
    [
        (Late(3, 400 * US, 1, in_kernel=True), "rank 3: aten::prepare > gemm"),
        (Late(3, 2000 * US, 1), "rank 3: aten::prepare"),
    ],
)
def test_the_rank_that_is_late_is_named_whichever_rank_is_explained(explained: int, late: Late, name: str) -> None:
    """Each rank waits for rank 3, whose kernel or host takes longer before the second collective of every step."""
    delta_ns, causes = job_causes(explained, late)
    assert causes[0].name == name
    assert causes[0].delta_ns == pytest.approx(delta_ns, rel=0.02)
    assert delta_ns > late.ns / 2


def test_a_rank_that_is_late_behind_its_device_costs_nothing() -> None:
    """The host of rank 3 is ahead of its device by more than the 20 that it takes longer in each step."""
    assert job_causes(0, Late(3, 20 * US, 1)) == (0, ())


def test_a_change_that_all_ranks_share_is_no_jitter() -> None:
    """The ranks wait for each other in Python: 170 in a step become 570 on each."""
    delta_ns, causes = job_causes(0, Late(3, 400 * US, 1), ahead=False)
    assert delta_ns > 300 * US
    assert causes[0].kind == "host"


@dataclass
class Lagging(Meetings):
    """The device of rank 0 is done when a step ends, that of rank 1 is not; `asks`: rank 1 calls item() per step."""

    asks: int = 0

    def step(self, rng: random.Random, rank: int, step: int) -> list[Instruction]:
        work = super().step(rng, rank, step)
        if rank == 0:
            return [*work, Synchronize("device")]
        return [*work, *[item()] * self.asks, Launch("long", 500 * US)]


def test_syncs_of_another_rank_count_by_the_steps_that_this_rank_counts() -> None:
    """Rank 1 lags behind its host, so its first step is partial: two syncs in each of two steps, none in the third."""
    a, b = (run_of(Lagging(PLAN, num_ranks=2, asks=asks).job(random.Random(1))).traces for asks in (0, 2))
    assert [int(steps(trace).counted.sum()) for trace in b] == [3, 2]
    _, _, causes = explain(a[0], b[0], [(a[1], b[1])])
    assert {cause.name: cause.delta_num for cause in causes if cause.kind == "sync"} == {
        "rank 1: dtoh aten::_local_scalar_dense": 2
    }


def test_without_a_device_causes_are_the_differences_of_accounts() -> None:
    a, b = (build(step(0, 100 + more), op("aten::mm", 0, 50 + more), op("aten::add", 60, 20)) for more in (0, 7))
    traced, _, causes = explain(a, b)
    assert traced.matched_pct is None
    assert [(cause.name, cause.delta_ns) for cause in causes] == [("aten::mm", 7_000)]


def test_a_change_that_the_host_hides_but_for_a_part_scatters_by_that_part_alone() -> None:
    """A kernel becomes 320 to 450 us longer, in each step by another time, of which all but the last end is hidden."""

    def trace(*more: float) -> Trace:
        rows: list[Event] = []
        for number, longer in enumerate(more):
            start, of_step = 2000 * number, 10 * number
            rows += [step(start, 2000, number), op("aten::conv", start + 5, 20), launch(start + 10, 4, of_step + 1)]
            rows += [kernel("slow", start + 20, 500 + longer, of_step + 1), op("aten::add", start + 40, 700)]
            rows += [op("aten::mm", start + 800, 20), launch(start + 805, 4, of_step + 2)]
            rows.append(kernel("last", max(start + 815, start + 521 + longer), 1300, of_step + 2))
        return build(*rows)

    longer = [320, 400, 340, 450, 330, 420, 390]
    delta, causes = causes_of(trace(*[0.0] * 7), trace(*longer))
    assert delta > 0
    assert deltas(causes) == {"aten::conv > slow": delta}
