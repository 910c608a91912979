"""Where the host is while the device waits for it, in the finding on host-bound time."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, frame, kernel, launch, op, step, table

from traceq.analysis.registry import analyze
from traceq.model import Run, Trace


def reads_its_input(*, with_lines: bool) -> Trace:
    """A step whose host normalizes images for 60 us, resizes for 20 us and runs an op for 10 us before it launches."""
    lines = [frame("image.py(390): normalize", 0, 60), frame("image.py(93): rescale", 60, 20)]
    rows: list[Event] = [step(0, 150), op("aten::stack", 80, 10), launch(90, 5, 1), kernel("gemm", 95, 55, 1)]
    return build(*rows, *(lines if with_lines else []))


@pytest.mark.parametrize(
    ("with_lines", "places"),
    [
        (True, "60.0 us at image.py:390 normalize, 20.0 us at image.py:93 rescale, 15.0 us elsewhere"),
        (False, "85.0 us between ops in forward, 10.0 us in aten::stack in forward"),
    ],
)
def test_a_host_bound_finding_says_where_the_host_is(with_lines: bool, places: str) -> None:
    trace = reads_its_input(with_lines=with_lines)
    (finding,) = (each for each in analyze(Run("", (trace,)), "partition").findings if each.code == "host_bound")
    assert f": the device waits for the host: {places}; a host that takes no time saves " in finding.text
    assert finding.ns == sum(row["step_ns"] for row in table(trace, "idle") if row["category"] == "host_bound")


def test_without_host_ops_it_is_not_known_where_the_host_is() -> None:
    """So nothing is said of a host that takes no time: between its launches it may wait for anything."""
    launches = launch(0, 60, 1), kernel("gemm", 60, 40, 1), launch(160, 5, 2), kernel("gemm", 165, 40, 2)
    says = ": the device waits while the host prepares the next launch"
    for ops, ends in (
        ((), f"{says} (its ops are not recorded)"),
        ([op("aten::mm", 0, 62)], "a host that takes no time saves 63.5 us to 88.5 us (replay)"),
    ):
        trace = build(*ops, *launches)
        (finding,) = (each for each in analyze(Run("", (trace,)), "partition").findings if each.code == "host_bound")
        assert finding.text.endswith(ends)
        assert ("host time" in [row["removed"] for row in table(trace, "replay")]) == bool(ops)
        views = [view for view in analyze(Run("", (trace,)), "replay").views if view.key == "whatif"]
        assert bool(views) == bool(ops)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (900, "(55.0 %; 200 us to 900 us by step) in these 2 traced steps: the device waits"),
        (300, "(25.0 %) in these 2 traced steps, beside 750 us (75.0 %) of kernel gemm: the device waits"),
    ],
)
def test_a_mean_that_no_step_has_comes_with_those_of_the_steps(second: int, says: str) -> None:
    """The device waits for 200 us in the first step of 1 ms, and for `second` in the next."""
    rows: list[Event] = [step(0, 1000), step(1000, 1000, 1)]
    for number, start in enumerate((200, 1000 + second)):
        rows += [launch(start - 5, 5, number + 1), kernel("gemm", start, 1000 * (number + 1) - start, number + 1)]
    findings = analyze(Run("", (build(*rows),)), "partition").findings
    (finding,) = (each for each in findings if each.code == "host_bound")
    assert says in finding.text


def waits_and_computes(*kernels: tuple[str, int]) -> str:
    """The finding on a step of 200 us whose device waits for 80 us, and then runs these kernels."""
    rows: list[Event] = [step(0, 200)]
    start = 80
    for number, (name, dur) in enumerate(kernels, 1):
        rows += [launch(70 + number, 1, number), kernel(name, start, dur, number)]
        start += dur
    (finding,) = (each for each in analyze(Run("", (build(*rows),)), "partition").findings if each.code == "host_bound")
    return finding.text


def test_kernels_that_take_longer_than_what_is_lost_are_told_beside_it() -> None:
    """Then the host is not what takes most of the step."""
    text = waits_and_computes(("void gemm<float>(int)", 90), ("add", 30))
    lost = ", 72.0 us per step (36.0 %) in this one traced step"
    assert f"{lost}, beside 120 us (60.0 %) of kernels, longest gemm 45.0 %: " in text


def test_kernels_that_take_less_than_what_is_lost_are_not_told() -> None:
    assert "beside" not in waits_and_computes(("gemm", 40), ("add", 20))


@pytest.mark.parametrize(
    ("name", "dur", "beside"),
    [
        ("aten::addmm", 45, ", beside 45.0 us (45.0 %) in aten::addmm"),
        ("aten::addmm", 25, ""),
    ],
)
def test_without_a_device_the_op_that_takes_longer_is_named_beside_the_loader(name: str, dur: int, beside: str) -> None:
    loader = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30)
    trace = build(step(0, 100), loader, op(name, 40, dur))
    (finding,) = (each for each in analyze(Run("", (trace,)), "partition").findings if each.code == "dataload_wait")
    assert finding.text.startswith(f"dataload wait, 30.0 us per step (30.0 %) in this one traced step{beside}: ")


def test_a_kernel_counts_with_all_its_runs() -> None:
    assert "beside 120 us (60.0 %) of kernel gemm: " in waits_and_computes(("gemm", 60), ("gemm", 60))


@pytest.mark.parametrize(
    ("loader", "places"),
    [
        (
            "_MultiProcessing",
            "8.00 ms in the data loader until its first batch in dataload, 2.00 ms in the data loader",
        ),
        ("_SingleProcess", "10.0 ms in the data loader in dataload"),  # as any other batch
    ],
)
def test_what_a_loader_does_until_its_first_batch_is_apart_from_the_waits_that_recur(loader: str, places: str) -> None:
    """A window without steps: a seed, 6 ms until workers were started, 2 ms for a batch, then 1 ms for each of two."""
    batch = f"enumerate(DataLoader)#{loader}DataLoaderIter.__next__"
    rows: list[Event] = [op("aten::random_", 0, 2), op("aten::item", 2, 2), annotation(batch, 6_000, 2_000)]
    for number, start in enumerate((8_000, 9_100, 10_200)):
        rows += [launch(start, 10, number + 1), kernel("gemm", start + 10, 90, number + 1)]
        rows += [annotation(batch, start + 100, 1_000)] if number < 2 else []
    (finding,) = (each for each in analyze(Run("", (build(*rows),)), "partition").findings if each.code == "host_bound")
    assert places in finding.text
