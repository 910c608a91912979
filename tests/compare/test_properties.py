"""What holds of every diff, on random small programs run by a host and two streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from builder import Event, annotation, build, call, frame, kernel, launch, memcpy, op, read_text, step, text
from examples import up_to
from hypothesis import example, given
from hypothesis import strategies as st

from traceq.compare.attribution import accounts, step_time
from traceq.compare.explain import explain
from traceq.compare.result import Cause
from traceq.facts.timeline.steps import steps
from traceq.model import Trace

Action = tuple[str, int, int]  # what, which of a few names, how long
Program = list[list[Action]]

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


class Machine:
    """A host that runs actions one after the other, and a device that runs what it launches in order of stream."""

    def __init__(self) -> None:
        self.rows: list[Event] = []
        self.host, self.run, self.free = 10, 0, {7: 0, 20: 0}

    def act(self, what: str, which: int, dur: int) -> None:
        start = self.host
        if what == "kernel":
            self.rows.append(op(f"aten::op{which}", start, 4))
            self.launch(f"kernel{which}", start + 1, dur, 7)
        elif what == "reduce":
            self.rows.append(op("c10d::allreduce_", start, 4))
            self.launch(REDUCE, start + 1, dur, 20)
        elif what == "item":
            self.item(dur % 3)
        elif what == "wait":
            self.rows.append(call("cudaDeviceSynchronize", start, max(*self.free.values(), start + 1) - start))
            self.host = start + self.rows[-1]["dur"]
        elif what == "alloc":
            self.rows.append(call("cudaMalloc", start, dur))
            self.host += dur
        elif what == "op":
            self.rows += [op(f"aten::op{which}", start, dur), op(f"aten::inner{dur % 2}", start, dur // 2)]
            self.host += dur
        elif what == "module":
            self.act("kernel" if dur % 2 else "python", which, dur)
            inside = [frame(f"nn.Module: M{which}_{dur}", start, self.host - start)]
            self.rows += [frame(f"model.py({dur}): f{which}", start, self.host - start), *inside]
        elif what == "part":
            self.act("python", which, dur)
            self.rows.append(annotation(f"part {dur} {'ab'[which % 2]}", start, dur))
        elif what in ("optimizer", "load"):
            name = "Optimizer.step#SGD.step" if what == "optimizer" else "enumerate(DataLoader)#Iter.__next__"
            self.act("op" if which else "kernel", which, dur)
            self.rows.append(annotation(name, start, self.host - start))
        else:
            self.host += dur

    def launch(self, name: str, position: int, dur: int, stream: int) -> None:
        self.run += 1
        start = max(position + 3, self.free[stream])
        self.rows += [launch(position, 2, self.run), kernel(name, start, dur, self.run, stream=stream)]
        self.free[stream] = start + dur
        self.host = position + 3

    def item(self, late: int) -> None:
        """A copy to the host, which waits for it and returns a little late."""
        self.run += 1
        copied = max(self.host + 4, self.free[7])
        self.free[7] = copied + 1
        self.rows += [
            op("aten::_local_scalar_dense", self.host, copied + 3 + late - self.host),
            call("cudaMemcpyAsync", self.host + 1, 2, self.run),
            memcpy("DtoH (Device -> Pinned)", copied, 1, self.run),
            call("cudaStreamSynchronize", self.host + 3, copied + 2 + late - self.host - 3),
        ]
        self.host = copied + 3 + late


def rows_of(program: Program) -> list[Event]:
    machine = Machine()
    for number, actions in enumerate(program):
        start = machine.host
        for action in actions:
            machine.act(*action)
        machine.rows.append(step(start, max(machine.host - start, 1), number))
        machine.host = start + int(machine.rows[-1]["dur"])
    return machine.rows


WHAT = ("kernel", "kernel", "reduce", "item", "wait", "alloc", "op", "python", "module", "part", "optimizer", "load")
ACTIONS = st.tuples(st.sampled_from(WHAT), st.integers(0, 2), st.integers(1, 60))
STEP = st.lists(ACTIONS, min_size=1, max_size=7)
PROGRAMS = st.lists(STEP, min_size=1, max_size=3)
TRACES = PROGRAMS.map(lambda program: build(*rows_of(program)))


def effects_by_key(causes: tuple[Cause, ...], sign: int = 1) -> dict[str, tuple[Any, ...]]:
    return {
        cause.key: (sign * cause.delta_num, sign * cause.delta_ns, sign * cause.count_ns, sign * cause.dur_ns)
        for cause in causes
    }


@up_to(50)
@given(TRACES)
def test_cells_and_accounts_add_up_to_the_counted_windows(trace: Trace) -> None:
    time, of_accounts, of_trace = step_time(trace), accounts(trace), steps(trace)
    windows = of_trace.window[of_trace.counted]
    assert time.total_ns == int((windows[:, 1] - windows[:, 0]).sum())
    assert sum(cell.ns for cell in time.cells) == time.total_ns
    assert of_accounts.ns.sum(axis=0).tolist() == (windows[:, 1] - windows[:, 0]).tolist()
    assert len(set(of_accounts.labels)) == len(of_accounts.labels)
    assert min(of_accounts.ns.min(), of_accounts.num.min(), of_accounts.bytes.min()) >= 0


@up_to(50)
@given(PROGRAMS)
def test_a_trace_against_itself_differs_nowhere(program: Program) -> None:
    traced, cells, causes = explain(build(*rows_of(program)), build(*rows_of(program)))
    assert traced.delta_ns == 0
    assert [cell.delta_ns for cell in cells] == [0] * len(cells)
    assert causes == ()


@up_to(50)
@given(TRACES, TRACES)
def test_swapping_the_sides_turns_every_sign_and_nothing_else(a: Trace, b: Trace) -> None:
    there, cells, causes = explain(a, b)
    back, turned_cells, turned_causes = explain(b, a)
    assert there.delta_ns == -back.delta_ns
    assert [(c.phase, c.category, c.delta_ns) for c in cells] == [
        (c.phase, c.category, -c.delta_ns) for c in turned_cells
    ]
    assert effects_by_key(causes) == effects_by_key(turned_causes, -1)
    assert [cause.key for cause in causes] == [cause.key for cause in turned_causes]
    assert [cause.share_pct for cause in causes] == [cause.share_pct for cause in turned_causes]


@up_to(50)
@given(TRACES, TRACES)
def test_cells_and_causes_add_up_to_the_traced_delta(a: Trace, b: Trace) -> None:
    traced, cells, causes = explain(a, b)
    assert sum(cell.delta_ns for cell in cells) == traced.delta_ns
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns
    assert all(cause.count_ns + cause.dur_ns == cause.delta_ns for cause in causes)


@up_to(50)
@given(PROGRAMS, st.integers(0, 10**12))
def test_when_it_was_recorded_changes_nothing(program: Program, origin: int) -> None:
    rows = rows_of(program)
    here, there = (accounts(trace) for trace in (build(*rows), read_text(text(*rows, origin=origin))))
    assert (here.labels, here.inner) == (there.labels, there.inner)
    assert all(np.array_equal(getattr(here, name), getattr(there, name)) for name in ("ns", "num", "bytes"))


@up_to(50)
@given(PROGRAMS, st.randoms(use_true_random=False))
def test_the_order_of_rows_in_the_file_changes_no_sum(program: Program, random: Any) -> None:
    rows = rows_of(program)
    traced, cells, _ = explain(build(*rows), build(*random.sample(rows, len(rows))))
    assert traced.delta_ns == 0
    assert {cell.delta_ns for cell in cells} <= {0}


@up_to(50)
@given(STEP, st.integers(2, 3), st.integers(4, 6))
@example([("op", 0, 9), ("kernel", 0, 1)], 2, 4)
def test_more_steps_of_the_same_kind_change_nothing(actions: list[Action], few: int, many: int) -> None:
    """Each step ends with a read, so that it leaves the device idle; the first holds work from before the trace.

    A hundred times slower, so that no op is near enough to another for the tolerance of clocks.
    """

    def repeated(times: int) -> Trace:
        drained: list[Action] = [("wait", 0, 0), *actions, ("wait", 0, 0), ("kernel", 0, 5), ("item", 0, 0)]
        rows = [kernel("earlier", 9, 2), *rows_of([drained] * times)]
        return build(*({**row, "ts": 100 * row["ts"], "dur": 100 * row["dur"]} for row in rows))

    traced, cells, causes = explain(repeated(few), repeated(many))
    assert (traced.num_a, traced.num_b) == (few - 1, many - 1)
    assert traced.delta_ns == 0
    assert {cell.delta_ns for cell in cells} == {0}
    assert causes == ()
