"""A minority of steps that last much longer than the others, and what they do more. Times in us."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, op, step, write
from oracle.findings import finding_times

from traceq.analysis.registry import analyze
from traceq.model import Run
from traceq.report import Finding

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
USUAL = [op("aten::mm", 10, 80)]


def steps(*contents: list[Event]) -> list[Event]:
    """Steps one after the other, each as long as what it contains and 10 us; `contents` as if they began at 0."""
    rows: list[Event] = []
    start = 0
    for number, content in enumerate(contents):
        length = 10 + max(event["ts"] + event["dur"] for event in content)
        rows += [step(start, length, number), *({**event, "ts": event["ts"] + start} for event in content)]
        start += length
    return rows


def finding_of(*events: Event) -> Finding | None:
    findings = analyze(Run("trace", (build(*events),)), "steps").findings
    return next((finding for finding in findings if finding.code == "uneven_steps"), None)


def evaluating(*, in_line: str = "") -> list[Event]:
    """What a usual step does, then 1,800 us in ops of a function."""
    frames = [frame(in_line, 100, 1_800)] if in_line else []
    return [*USUAL, *frames, *(op("aten::addmm", 100 + 600 * number, 600) for number in range(3))]


def test_an_evaluation_in_some_steps_is_told_with_its_op() -> None:
    finding = finding_of(*steps(USUAL, evaluating(), USUAL, USUAL, evaluating(), USUAL, USUAL))
    assert finding is not None
    assert (finding.severity, finding.ns) == ("high", round(2 * 1_810_000 / 7))
    assert finding.text == (
        "uneven steps: 2 of these 7 traced steps (1, 4) take 1.91 ms, the median one 100 us: 83.8 % of all time is "
        "what they do more, 1.80 ms a step in aten::addmm; show --step 1 has one alone, and means of steps are of "
        "neither kind"
    )


def test_its_line_is_named_where_stacks_are_recorded() -> None:
    long = evaluating(in_line="train.py(9): evaluate")
    finding = finding_of(*steps(USUAL, long, USUAL, USUAL, USUAL), frame("train.py(1): main", 0, 50_000))
    assert finding is not None
    assert "1 of these 5 traced steps (1) takes" in finding.text
    assert "what it does more, 1.80 ms a step in aten::addmm at train.py:9 evaluate; " in finding.text


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("torch/serialization.py(944): save", "serialization.py save"),
        ("<built-in function sleep>", "sleep"),
        ("<built-in method synchronize of X object at 0x7f>", "synchronize"),
    ],
)
def test_what_the_loop_calls_for_that_is_named(name: str, called: str) -> None:
    saving = [*USUAL, frame(name, 120, 700), op("aten::add", 1_000, 10)]
    loop = frame("train.py(1): main", 0, 50_000)
    finding = finding_of(*steps(USUAL, saving, USUAL, USUAL, USUAL), loop)
    assert finding is not None
    assert f"910 us a step at train.py:1 main, in {called}; " in finding.text
    short = [*USUAL, frame(name, 120, 300), op("aten::add", 1_000, 10)]
    finding = finding_of(*steps(USUAL, short, USUAL, USUAL, USUAL), loop)
    assert finding is not None
    assert "910 us a step at train.py:1 main; " in finding.text


def test_python_between_ops_and_waits_for_a_batch_are_told_too() -> None:
    sleeping = [*USUAL, op("aten::add", 1_000, 10)]
    finding = finding_of(*steps(USUAL, sleeping, USUAL, USUAL, USUAL))
    assert finding is not None
    assert "910 us a step between ops in forward; " in finding.text
    waiting = [annotation(NEXT, 0, 900), op("aten::mm", 910, 80)]
    finding = finding_of(*steps(USUAL, waiting, USUAL, USUAL, USUAL))
    assert finding is not None
    assert "900 us a step of dataload wait in dataload; " in finding.text


def test_on_a_device_it_is_the_kernel_or_what_the_host_does() -> None:
    def computing(us: int, corr: int) -> list[Event]:
        return [op("aten::mm", 0, 10), launch(2, 5, corr), kernel("gemm", 10, us, corr)]

    finding = finding_of(*steps(*(computing(900 if number == 2 else 90, number + 1) for number in range(6))))
    assert finding is not None
    assert "810 us a step in gemm of aten::mm; " in finding.text
    saving = [*computing(90, 9), call("cudaLaunchKernel", 1_000, 5, 10), kernel("gemm", 1_010, 10, 10)]
    usual = [computing(90, number) for number in range(1, 6)]
    finding = finding_of(*steps(*usual[:2], saving, *usual[2:]))
    assert finding is not None
    assert " a step between ops in forward; " in finding.text


@pytest.mark.parametrize(
    "contents",
    [
        pytest.param([USUAL, evaluating(), USUAL, USUAL], id="too few steps"),
        pytest.param([USUAL, evaluating(), USUAL, evaluating()] * 2, id="no minority"),
        pytest.param([USUAL] * 6, id="all alike"),
        pytest.param([[op("aten::mm", 0, 80 + 15 * number)] for number in range(6)], id="lengths that vary"),
        pytest.param([USUAL] * 30 + [[op("aten::mm", 0, 210)]], id="little time"),
    ],
)
def test_steps_are_even(contents: list[list[Event]]) -> None:
    assert finding_of(*steps(*contents)) is None


def test_the_time_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    rows = steps(USUAL, evaluating(), USUAL, USUAL, evaluating(), USUAL, [op("aten::mm", 0, 130)])
    finding = finding_of(*rows)
    assert finding is not None
    assert finding.ns == pytest.approx(finding_times(write(tmp_path / "trace.json", *rows))["uneven_steps"], abs=1)
