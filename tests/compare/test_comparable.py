"""Sides that are not comparable have no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builder import annotation, build, kernel, launch, op, step
from made_sides import H100, MANIFEST, PAIRS, plain, rows, verdict
from statements import only, statements

from traceq.compare.diff import diff_runs
from traceq.compare.tables import waterfall
from traceq.model import OPTIMIZER_STEPS, Arm, Run
from traceq.units import Unit, format_value


def test_marked_steps_against_a_whole_trace_are_refused() -> None:
    unmarked = Run("b", (build(*rows()[1:], **H100),))
    (reason,) = diff_runs(plain(20), unmarked).comparable.reasons
    assert reason.startswith("steps: ")
    assert reason.startswith("steps: ")
    assert diff_runs(unmarked, unmarked).comparable.ok


def test_nothing_is_per_step_between_marked_steps_and_a_whole_trace() -> None:
    """Of 100 us per step against twice 100 us in one trace."""
    ops = [op("aten::item", 0, 60), op("aten::mm", 60, 30)]
    marked = Run("a", (build(step(0, 100), *ops),))
    later = [op("aten::item", 100, 60), op("aten::mm", 160, 30), op("aten::relu", 190, 10)]
    unmarked = Run("b", (build(*ops, *later),))
    for sides, change in (((marked, unmarked), "from step to trace"), ((unmarked, marked), "from trace to step")):
        result = diff_runs(*sides)
        text = "\n".join([*map(str, statements(result)), *(table.title + table.note for table in (waterfall(result),))])
        assert result.traced is not None
        assert f"{format_value(result.traced.delta_ns, Unit.DELTA_NS)} {change}" in text
        assert "per step" not in text
        counts = ["1 traced step", "1 whole trace"][:: 1 if sides[0] is marked else -1]
        assert f"({' and '.join(counts)} of rank 0; profiled)" in text


def test_calls_of_whole_traces_are_not_per_step() -> None:
    ops = [op(name, 100 * number, 90) for number, name in enumerate(("aten::mm", "aten::addmm", "aten::relu") * 2)]
    once, twice = Run("a", (build(*ops[:3]),)), Run("b", (build(*ops),))
    differences = str(only("work_differs", diff_runs(once, twice))["differences"])
    assert "runs 2 times in the trace" in differences
    assert "per step" not in differences


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"deviceProperties": [{"id": 0, "name": "NVIDIA A100"}]}, "device: NVIDIA H100 against NVIDIA A100"),
        ({"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}, "ranks of the job: 1 against 2"),
    ],
)
def test_other_hardware_or_another_world_is_inconclusive(metadata: dict[str, Any], reason: str) -> None:
    result = diff_runs(plain(20), plain(30, **metadata))
    assert result.comparable.reasons == (reason,)
    assert verdict(result) == ("inconclusive", f"not comparable: {reason}")
    assert (result.answer.code, result.answer.measures["reasons"]) == ("not_comparable", reason)


def test_runs_without_a_trace_are_compared_by_what_they_say_of_themselves() -> None:
    here = Run("here", (), MANIFEST, "off", PAIRS)
    there = Run("there", (), replace(MANIFEST, run_id="r2", num_ranks=4), "on", PAIRS)
    result = diff_runs(here, there)
    assert (verdict(result)[0], result.answer.code) == ("inconclusive", "not_comparable")
    reasons = str(result.answer.measures["reasons"]).split(", ")
    assert reasons == ["ranks of the job: 1 against 4", "samples per step unknown"]
    assert (result.traced, result.cells, result.causes) == (None, (), ())


@pytest.mark.parametrize(
    ("ours", "theirs", "ok"),
    [
        ({"O0": 2, "O1": 1}, {"O0": 1, "O1": 1}, False),
        ({"O0": 1}, {"O0": 1, "O1": 1}, True),  # an optimizer that one arm alone has is its change
        ({}, {"O0": 1}, True),
    ],
)
def test_steps_that_hold_other_numbers_of_iterations_are_refused(
    ours: dict[str, int], theirs: dict[str, int], ok: bool
) -> None:
    facts = ({f"{OPTIMIZER_STEPS}{name}": num for name, num in of_arm.items()} for of_arm in (ours, theirs))
    arms = tuple(
        Arm(name, "", baseline=name == "off", facts=of_arm) for name, of_arm in zip(("off", "on"), facts, strict=True)
    )
    off, on = (Run("run", (), replace(MANIFEST, arms=arms), name, PAIRS) for name in ("off", "on"))
    assert diff_runs(off, on).comparable.ok == ok


def test_a_side_that_lacks_much_of_the_devices_work_is_refused() -> None:
    """Of 32.5 ms that B took less, 21 were kernels of which its trace had no row."""

    def side(num_rows: int) -> Run:
        launches = [launch(10 * number, 5, number + 1) for number in range(100)]
        kernels = [kernel("add", 10 * number + 6, 3, number + 1) for number in range(num_rows)]
        return Run("run", (build(op("aten::add", 0, 1_000), *launches, *kernels),))

    (reason,) = diff_runs(side(99), side(60)).comparable.reasons
    assert reason.endswith(": none against 40 of 100")
    assert diff_runs(side(100), side(99)).comparable.ok


UNNAMED: dict[str, Any] = {"deviceProperties": []}
AMD = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X VF"}]}


def test_a_device_without_a_recorded_name_may_be_the_same_one() -> None:
    """Its calls are CUDA's: it may be an H100, and is neither an MI300X nor a CPU."""
    for sides, reason in (
        ((plain(20, **UNNAMED), plain(30)), "device: not recorded against NVIDIA H100"),
        ((plain(20), plain(30, **UNNAMED)), "device: NVIDIA H100 against not recorded"),
    ):
        result = diff_runs(*sides)
        assert result.comparable.ok
        assert f"possible confounder: {reason}" in {caveat.text for caveat in result.caveats}
    assert diff_runs(plain(20, **UNNAMED), plain(30, **UNNAMED)).comparable.ok
    other = diff_runs(plain(20, **UNNAMED), plain(30, **AMD))
    assert other.comparable.reasons == ("device: cuda against AMD Instinct MI300X VF",)
    on_cpu = Run("cpu", (build(step(0, 50), op("aten::mm", 5, 20)),))
    assert diff_runs(plain(20, **UNNAMED), on_cpu).comparable.reasons == ("device: cuda against cpu",)


def test_an_annotation_around_a_whole_side_is_a_phase_where_it_is_one_of_the_other_side() -> None:
    """By itself it tells no more than the step, which then has the phases of a training step."""
    mms = [row for n in range(1, 6) for row in (op("aten::mm", 10 * n, 8), launch(10 * n + 1, 2, n))]
    mms += [kernel("gemm", 10 * n + 5, 4, n) for n in range(1, 6)]
    copies = [op("aten::copy_", 70, 10), launch(71, 2, 9), kernel("copy", 75, 5, 9)]
    one = Run("a", (build(annotation("infer", 10, 55), *mms),))
    two = Run("b", (build(annotation("infer", 10, 55), *mms, annotation("inputs", 70, 20), *copies),))
    for a, b in ((one, two), (two, one)):
        result = diff_runs(a, b)
        assert {cell.phase for cell in result.cells if cell.a_ns or cell.b_ns} <= {"infer", "inputs", "other"}
        assert not [cause.name for cause in result.causes if "gemm" in cause.name]
    assert {cell.phase for cell in diff_runs(one, one).cells if cell.a_ns} >= {"forward"}
