"""Self time of host ops: every instant of a thread belongs to the innermost op, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from builder import AUTOGRAD, MAIN, Event, annotation, build, call, kernel, launch, op, step, table, write
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st
from oracle.findings import finding_times

from traceq.analysis.registry import analyze
from traceq.facts.events.self_time import self_times
from traceq.model import Run
from traceq.runs.read import read


def test_self_time_is_what_the_ops_and_calls_inside_leave() -> None:
    trace = build(
        step(0, 100),
        annotation("fwd", 0, 60),
        annotation("bwd", 60, 40),
        op("aten::linear", 10, 30),
        op("aten::addmm", 12, 20),
        launch(20, 5, 1),
        op("aten::linear", 70, 4),
        op("aten::mul", 65, 3, tid=AUTOGRAD),
    )
    rows = [(row["phase"], row["name"], row["num"], row["self_ns"]) for row in table(trace, "host")]
    assert rows == [
        ("fwd", "aten::addmm", 1, 15_000),
        ("fwd", "aten::linear", 1, 10_000),
        ("fwd", "cudaLaunchKernel", 1, 5_000),
        ("bwd", "aten::linear", 1, 4_000),
        ("bwd", "aten::mul", 1, 3_000),
    ]


def test_an_op_inside_itself_is_one_call() -> None:
    trace = build(
        step(0, 100),
        op("aten::sort", 10, 30),
        op("aten::sort", 12, 25),
        op("aten::arange", 14, 4),
        op("aten::arange", 15, 2),
        op("aten::sort", 50, 10),
    )
    counts = {row["name"]: (row["num"], row["self_ns"]) for row in table(trace, "host")}
    assert counts == {"aten::sort": (2, 36_000), "aten::arange": (1, 4_000)}


def backward_pass(num_checked: int, *, check_us: float = 20) -> list[Event]:
    """A step of 1,000 us with four nodes of 100 us, of which so many see whether their gradients are NaN."""
    rows = [step(0, 1000)]
    for number in range(4):
        start = 200 * number
        rows += [op("autograd::engine::evaluate_function: MmBackward0", start, 100), op("aten::mm", start, 60)]
        if number < num_checked:
            rows += [op("aten::isnan", start + 60, check_us / 2), op("aten::ne", start + 61, 1)]
            rows += [op("aten::_is_any_true", start + 80, check_us / 4), op("aten::item", start + 90, check_us / 4)]
    rows += [op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 800, 50)] * 9
    return rows


def test_checks_of_most_gradients_are_those_of_anomaly_detection() -> None:
    (claim,) = analyze(Run("", (build(*backward_pass(3)),)), "host").findings
    assert (claim.code, claim.ns, claim.measures["share_pct"]) == ("anomaly_detection", 60_000, 6)


def test_the_time_of_these_checks_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    times = finding_times(write(tmp_path / "trace.json", *backward_pass(3)))
    (claim,) = analyze(Run("", (build(*backward_pass(3)),)), "host").findings
    assert claim.ns == times["anomaly_detection"]


@pytest.mark.parametrize(("num_checked", "check_us"), [(0, 20), (1, 20), (4, 2)])
def test_checks_of_few_gradients_or_short_ones_are_not(num_checked: int, check_us: float) -> None:
    """As those of a hook on one layer."""
    assert analyze(Run("", (build(*backward_pass(num_checked, check_us=check_us)),)), "host").findings == ()


@st.composite
def host_rows(draw: st.DrawFn) -> list[Event]:
    spans = st.tuples(st.integers(0, 30), st.integers(0, 12), st.sampled_from([MAIN, AUTOGRAD]), st.booleans())
    drawn = draw(st.lists(spans, min_size=1, max_size=12))
    return [(call if is_call else op)(f"row {n}", a, d, tid=t) for n, (a, d, t, is_call) in enumerate(drawn)]


@up_to(150)
@given(rows=host_rows())
def test_self_times_of_a_thread_add_up_to_its_busy_time(rows: list[Event]) -> None:
    trace = build(*rows)
    times = self_times(trace)
    wanted: Counter[str] = Counter()
    for thread in (MAIN, AUTOGRAD):
        for instant in range(50):
            inside = [r for r in rows if r["tid"] == thread and r["ts"] <= instant < r["ts"] + r["dur"]]
            if inside:  # the latest to start, and of those that start together the shortest
                wanted[min(inside, key=lambda r: (-r["ts"], r["dur"], -rows.index(r)))["name"]] += 1000
    self_ns = {trace.events.text(row): ns for row, ns in zip(times.rows.tolist(), times.ns.tolist(), strict=True)}
    assert {name: ns for name, ns in self_ns.items() if ns} == dict(wanted)


def test_self_times_are_those_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            model(torch.randn(8, 32)).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "rank0.json"))
    ours: Counter[str] = Counter()
    for row in table(read(tmp_path / "rank0.json"), "host"):
        ours[row["name"]] += row["self_ns"]
    theirs = {row.key: row.self_cpu_time_total for row in profile.key_averages() if row.key in ours}
    assert theirs.keys() == ours.keys()
    for name, self_us in theirs.items():
        assert ours[name] == pytest.approx(1000 * self_us, abs=10), name


def test_people_see_host_ops_where_the_device_waits_for_them_only() -> None:
    def views(first_kernel: int) -> int:
        trace = build(step(0, 100), op("aten::mm", 1, 8), launch(5, 2, 1), kernel("a", first_kernel, 90, 1))
        return len(analyze(Run("", (trace,)), "host").views)

    assert [views(8), views(50)] == [0, 0]
    late = build(step(0, 100), launch(5, 2, 1), kernel("a", 8, 40, 1), launch(80, 2, 2), kernel("b", 83, 17, 2))
    assert len(analyze(Run("", (late,)), "host").views) == 1


def test_ops_that_take_as_long_are_in_the_order_of_their_names() -> None:
    """Not in that of the file, in which readers may number texts otherwise: one op has the name of a category."""
    rows = table(build(step(0, 100), op("kernel", 10, 20), op("aten::mm", 40, 20), kernel("gemm", 70, 5)), "host")
    assert [row["name"] for row in rows if row["self_ns"] == 20_000] == ["aten::mm", "kernel"]
