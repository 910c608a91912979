"""Functions that are compiled again in steady steps."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from builder import Event, annotation, build, comms, kernel, launch, op, step, table
from made_sides import MANIFEST
from oracle.spans import clip, measure
from paths import FIXTURES

from traceq.analysis.registry import analyze, sheet
from traceq.claims.claim import Basis, Claim
from traceq.kineto.read import read_trace
from traceq.model import Run, Timings, Trace


def steps(*compiled: Sequence[str], us: float = 60) -> Trace:
    """A step of 100 us for each sequence of ids, which it compiles for as long together."""
    rows = list[Event]()
    for number, ids in enumerate(compiled):
        rows += [step(100 * number, 100, number), op("aten::mm", 100 * number + 90, 5)]
        for place, each in enumerate(ids):
            start = 100 * number + 10 + place * us / len(ids)
            rows += [op("dynamo", start, us / len(ids))]
            rows += [annotation(f"dynamo_data: compile_id={each}", start, 1)] if each else []
    return build(*rows)


def findings_on(*compiled: Sequence[str], us: float = 60) -> list[Claim]:
    return list(analyze(Run("", (steps(*compiled, us=us),)), "compiling").findings)


def test_most_steps_that_recompile_are_a_finding_with_what_it_takes() -> None:
    (finding,) = findings_on(["0/3"], ["0/4"], [], ["0/5"])
    assert (finding.code, finding.severity, finding.ns) == ("recompiles", "high", 45_000)
    assert [finding.measures[name] for name in ("functions", "num_again", "num_steps")] == ["frame 0", 3, 4]


def test_a_host_that_takes_no_time_still_compiles() -> None:
    rows: list[Event] = [step(0, 100_000)]
    rows += [launch(10, 5, 1), kernel("gemm", 20, 5_000, 1), op("dynamo", 5_100, 60_000)]
    rows += [annotation("dynamo_data: compile_id=0/0", 5_101, 1), op("aten::relu", 65_200, 24_000)]
    rows += [launch(89_300, 5, 2), kernel("gemm", 89_310, 10_000, 2)]
    findings = {each.code: each for each in sheet(Run("", (build(*rows),))).leads}
    assert findings["compiling"].severity == "high"
    host_bound = findings["host_bound"]
    assert host_bound.gain == (29_990_000, 29_990_000)  # what is left is 60 ms of compiling, a launch and 10 ms of gemm


def test_a_short_compilation_is_no_finding() -> None:
    assert [each.severity for each in findings_on(["0/3"], ["0/4"], ["0/5"], us=8)] == ["medium"]
    assert findings_on(["0/3"], ["0/4"], ["0/5"], us=4) == []


def test_first_compilations_of_other_functions_are_once() -> None:
    (finding,) = findings_on(["0/0"], ["1/0"], ["2/0"])
    assert finding.code == "compiling"


def test_a_second_compilation_with_dynamic_sizes_is_once() -> None:
    (finding,) = findings_on(["0/0"], ["0/1"], [], [])
    assert (finding.code, finding.ns) == ("compiling", 30_000)


def test_one_step_does_not_show_whether_later_ones_recompile() -> None:
    assert [each.code for each in findings_on(["0/7"])] == ["compiling"]
    (finding,) = findings_on(["0/1", "0/2", "0/3"])
    assert (finding.code, finding.measures["num_times"]) == ("compiling", 3)


def test_without_numbers_the_first_step_that_compiles_does_so_for_the_first_time() -> None:
    assert [each.code for each in findings_on([""], [""])] == ["compiling"]
    assert [each.code for each in findings_on([""], [""], [""])] == ["recompiles"]


LENGTHS = "tensor 't' size mismatch at index 1. expected 57, actual 179"
SCHEDULE = "self.t == 48        # self.t += 1  # train.py:11 in forward (HINT: convert this integer into a tensor.)"


@pytest.mark.parametrize(
    ("guard", "shown", "remedy"),
    [(LENGTHS, LENGTHS, "dynamic_sizes"), (SCHEDULE, "self.t == 48", "values_in_tensors")],
)
def test_a_recording_names_the_function_and_the_guard_that_failed(guard: str, shown: str, remedy: str) -> None:
    entry = {"name": "forward", "file": "jobs/train.py", "line": 9, "count": 44, "s": 40.8, "reason": guard}
    once = {"name": "setup", "file": "jobs/train.py", "line": 2, "count": 1, "s": 50.0, "reason": ""}
    (finding,) = recorded_findings(json.dumps([once, entry]))
    assert (finding.remedy, finding.measures["guard"]) == (remedy, shown)
    assert finding.measures["functions"] == "train.py:9 forward"


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '[{"name": "forward"}]', "[]"])
def test_facts_that_cannot_be_read_tell_nothing(text: str) -> None:
    (finding,) = recorded_findings(text)
    assert finding.measures["functions"] == "frame 0"


def recorded_findings(text: str) -> tuple[Claim, ...]:
    """On steps that recompile, of a recording with this fact."""
    manifest = replace(MANIFEST, environment={"compiled": text})
    return analyze(Run("", (steps(["0/3"], ["0/4"], ["0/5"]),), manifest), "compiling").findings


def test_what_is_tuned_or_checked_in_each_step_is_no_compilation() -> None:
    checks = [op("guard_collective (dynamo_timed)", 100 * number + 10, 20) for number in range(3)]
    trace = build(*(step(100 * number, 100, number) for number in range(3)), *checks)
    assert analyze(Run("", (trace,)), "compiling").findings == ()


def test_the_function_that_takes_longest_is_named_beside_the_number_of_others() -> None:
    (finding,) = findings_on(["4/3", "5/3", "5/4"], ["4/4", "5/5", "5/6"])
    assert finding.measures["functions"].startswith("frame 5 and 1 other")


def test_a_rank_that_compiles_while_another_waits_for_it_is_late_by_that() -> None:
    """Rank 1 compiles for 9 ms of each step of 20 ms, and rank 0 waits in the all-reduce as long."""
    traces = []
    for rank in (0, 1):
        rows = list[Event]()
        for number in range(4):
            start, corr = 20_000 * number, 10 * number
            arrives, ends = start + 200 + 9_000 * rank, start + 9_500
            rows += [
                step(start, 20_000, number),
                launch(arrives, 5, corr + 1),
                kernel("gemm", arrives + 5, 10, corr + 1),
            ]
            rows += [op("dynamo", start + 100, 9_000)] * rank
            rows += [
                comms("allreduce", arrives + 20, 10, (1000, 1000), Seq=number + 1),
                launch(arrives + 22, 5, corr + 2),
            ]
            rows += [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", arrives + 30, ends - arrives - 30, corr + 2)]
        world = {"backend": "nccl", "rank": rank, "world_size": 2}
        traces.append(build(*rows, distributedInfo=world))
    _, late = table(Run("", tuple(traces)), "ranks")
    assert (late["verdict"], late["late_phase"], late["late_category"]) == ("straggler", "compiling", "compiling")


def test_rows_are_the_compilations_with_their_steps() -> None:
    rows = table(steps(["0/3"], [], ["0/4", "1/0"]), "compiling")
    assert [(row["step"], row["compile_id"], row["dur_ns"]) for row in rows] == [
        (0, "0/3", 60_000),
        (2, "0/4", 30_000),
        (2, "1/0", 30_000),
    ]


def test_a_program_that_compiles_nothing_has_no_rows() -> None:
    assert table(steps([], []), "compiling") == []
    assert findings_on([], []) == []


def unprofiled(*us: float) -> list[Claim]:
    """Of unprofiled steps of 100 us, of which these are in the recorded phase of compiling."""
    step_ns = np.full((1, len(us)), 100_000)
    phase_ns = np.stack([1000 * np.array([us]), step_ns - 1000 * np.array([us])], axis=2).astype(np.int64)
    none = np.zeros(1, np.int64)
    times = Timings(
        ("compiling", "forward"), step_ns, phase_ns, phase_ns, np.arange(len(us)), none, none, none,
        num_warmup=0, by_device=False, host_step_ns=step_ns,
    )  # fmt: skip
    return list(analyze(Run("", (), timings=times), "compiling").findings)


def test_unprofiled_steps_that_compile_are_a_finding() -> None:
    noise = np.random.default_rng(1).normal(60, 2, 48)
    (finding,) = unprofiled(*noise)
    assert (finding.code, finding.severity, finding.ns) == ("recompiles", "high", pytest.approx(60_000, rel=0.01))
    assert finding.basis == Basis(48, is_unprofiled=True)
    assert [finding.measures[name] for name in ("num_again", "num_steps")] == [48, 48]
    assert unprofiled(*noise[:16], *[0] * 32) == []  # most do not
    assert unprofiled(*(noise / 60)) == []  # of little of the step


RECORDED = {
    "lengths": ("recompiles", "dynamic_sizes", [1, 1, 1]),  # a batch of another length each step, dynamic=False
    "attribute": ("recompiles", "values_in_tensors", [1, 1, 1]),  # each step changes a float of the module
    "once": ("compiling", "", [1, 0, 0]),
    "none": ("", "", [0, 0, 0]),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_jobs_take_what_a_count_over_their_raw_rows_gives(name: str) -> None:
    code, remedy, num = RECORDED[name]
    path = FIXTURES / "recompiles" / f"{name}.json.gz"
    raw = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    spans = [(row["name"], int(row["ts"] * 1000), int((row["ts"] + row["dur"]) * 1000)) for row in raw]
    ranges = [
        (a, b) for name, a, b in spans if re.search(r"\(dynamo_timed\)$|^dynamo$|^entire_backward_compile$", name)
    ]
    windows = [(a, b) for name, a, b in spans if name.startswith("ProfilerStep#")]
    trace = read_trace(path)
    cells = [row for row in table(trace, "partition") if row["category"] == "compiling"]
    numbers = sorted({row["step"] for row in table(trace, "partition")})
    ns = [sum(row["dur_ns"] for row in cells if row["step"] == number) for number in numbers]
    assert ns == [measure(clip(ranges, *window)) for window in windows]
    begun = [sum(a <= start < b for name, start, _ in spans if name == "dynamo") for a, b in windows]
    assert begun == num
    rows = [row for row in table(trace, "compiling") if row["pass"] == "forward"]
    assert [sum(row["step"] == number for row in rows) for number in numbers] == num
    findings = analyze(Run("", (trace,)), "compiling").findings
    assert [(finding.code, finding.remedy) for finding in findings] == [(code, remedy)] * bool(code)
