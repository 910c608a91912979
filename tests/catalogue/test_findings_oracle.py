"""The time of each finding is computed a second time, from the events alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from catalogue import FILES, JOBS, sheet_of
from claims import FOUND_IN
from fleet import Fleet, play
from oracle.core_use import core_times
from oracle.efficiency import attention_ns, saved_ns
from oracle.exposed_waits import job_finding_times
from oracle.findings import finding_times
from oracle.memory import memory_of
from oracle.pipelines import bubble_ns
from oracle.reader import Event, integer, read
from oracle.savings import CODES as BY_REPLAY
from oracle.uneven import expert_excess_ns, late_ns
from oracle.unprofiled import outside_phases_ns
from paths import FIXTURES

from traceq.claims.claim import Claim
from traceq.claims.rules import RULES
from traceq.facts.timeline.steps import steps as steps_of
from traceq.facts.timeline.time_partition import lost_once_ns
from traceq.kineto.read import read_trace
from traceq.recorder.timing.clocks import core_facts
from traceq.runs.step_log import CoresLine, read_lines
from traceq.snapshots.compare import snapshot_diff
from traceq.snapshots.show import snapshot_sheet
from traceq.units import Unit, format_value

MS = 1_000_000

BY_EVENTS = {
    "host_bound", "exposed_comm", "exposed_memcpy", "sync_wait", "alloc_wait", "dataload_wait",
    "starved", "launch_bound", "host_round_trips", "metric_gathers",
    "unfused_optimizer", "device_bound", "cpu_bound", "python_bound", "host_op",
    "worker_restarts", "buffer_broadcasts", "repeated_reductions", "unused_search", "recompiles", "compiling",
    "anomaly_detection",
}  # fmt: skip
"""Codes whose time `oracle.findings` computes from one file."""

BY_MACHINE = {"cold_start"}
"""Codes whose time `tests/simulated/test_once.py` knows from the program that it carries out."""

BY_RANKS = {"exposed_wait", "exposed_transfer", "straggler"}
"""Codes whose time `oracle.exposed_waits` computes from the files of a job."""

BY_OPS = {"below_roof", "unfused_attention"}
"""Codes whose time `oracle.efficiency` computes from one file."""

BY_CASTS = {"casts"}
"""Codes whose time `tests/facts/timeline/test_casts.py` compares with a count over the rows of a file."""

BY_JOBS = {"expert_imbalance", "late_ranks", "pipeline_bubble"}
"""Codes whose time `oracle.uneven` and `oracle.pipelines` compute from the files of a job."""

BY_JOURNALS = {"outside_phases", "busy_machine", "contended_cores"}
"""Codes whose time `oracle.unprofiled` and `oracle.core_use` compute from the journals of a run."""

BY_BYTES = {"memory_peak", "out_of_memory", "memory_delta", "fragmentation"}
"""Codes whose bytes `oracle.memory` computes from a snapshot of the allocator."""

BY_COUNTS = {
    "desync",
    "never_arrived",
    "strategy",
    "ranks_alone",
    "missing_ops",
    "foreign_trace",
    "empty_recording",
    "wall_time",
    "garbage_collection",
    "memory_growth",
    "longer_steps",
}
"""Codes without a time, whose ranks, calls and elements `oracle.differences` and `oracle.strategies` count, and whose
ops are counted here; ranks alone in `tests/analysis/test_strategy.py`, odd steps in
`tests/recorder/timing/test_timed_steps.py`, foreign traces in `tests/analysis/test_no_device_rows.py`, and empty
ones in `tests/catalogue/test_reports.py`; bytes that a step keeps in `tests/recorder/tracing/test_line_table.py`."""

LONGEST = ("mtia/rank0", "resnet50-2021/bare-array")
"""Traces that the oracle reads for seconds; others have findings of the same codes."""

EVERY = 3
"""Of the real traces the oracle reads every third one in the default suite, of ours rank 0: each takes a second."""

EXAMPLES = ("example/job", "example/uneven")
OURS = [
    *sorted(FIXTURES.glob("strategies/*.json.gz")),
    *sorted(FIXTURES.glob("recompiles/*.json.gz")),
    *sorted(FIXTURES.glob("outlier_ab/*/rank*.json.gz")),
]


def once_of(path: Path) -> float:
    """How long a mean step does what is once, ns."""
    trace = read_trace(path)
    return lost_once_ns(trace) / int(steps_of(trace).counted.sum())


def expected_ns(finding: Claim, times: dict[str, float]) -> float:
    """What the oracle says of a finding."""
    if finding.code == "unfused_optimizer":
        return times[f"unfused_optimizer {finding.measures['optimizer']}"]
    if finding.code == "host_op":
        return times[f"host_op {finding.subject.op}"]
    return times[finding.code]


@pytest.mark.parametrize(
    "path",
    [
        *(
            pytest.param(
                path, id=f"{path.parent.name}/{path.stem}", marks=[pytest.mark.slow] * (path.stem == "rank1.json")
            )
            for path in OURS
        ),
        *(
            pytest.param(
                *file.values,
                id=file.id,
                marks=[*file.marks, *[pytest.mark.slow] * (number % EVERY > 0 or file.id in LONGEST)],
            )
            for number, file in enumerate(FILES)
        ),
    ],
)
def test_the_time_of_a_finding_is_that_of_its_events(path: Path) -> None:
    findings = [finding for finding in sheet_of(path).findings if finding.code in BY_EVENTS]
    times = finding_times(path) if findings else {}
    for finding in findings:
        ns = expected_ns(finding, times)
        if finding.code == "starved":  # its own time is what replay saves
            assert finding.measures["wait_ns"] == pytest.approx(ns, abs=1)
        else:  # the oracle does not tell what of the host's time is once
            once_ns = once_of(path) if finding.code in ("host_bound", "launch_bound") else 0
            assert finding.ns - 1 <= ns <= finding.ns + once_ns + 1


@pytest.mark.slow
@pytest.mark.parametrize("path", [*(pytest.param(FIXTURES / name, id=name) for name in EXAMPLES), *JOBS])
def test_the_time_of_a_finding_on_several_ranks_is_that_of_their_events(path: Path) -> None:
    """Real clocks are known to some us; those of the examples are exact."""
    findings = [finding for finding in sheet_of(path).findings if finding.code in BY_RANKS]
    times = job_finding_times(sorted(path.glob("rank*.json*"))) if findings else {}
    for finding in findings:
        key = f"straggler {finding.key.removeprefix('rank ')}" if finding.code == "straggler" else finding.code
        assert finding.ns == pytest.approx(times[key], abs=1 if path.parent.parent == FIXTURES else 5_000)


OPS = ("ep-moe-b200-ab/ref", "owlv2/h100", "owlv2/mi300", "sam-a100-ab/compile_false", "qwen-h100/qwen1.5-0.5b")
"""Traces that have a finding on an op's roof or on attention, and one that has none."""


@pytest.mark.parametrize("path", [file for file in FILES if file.id in OPS])
def test_the_time_of_a_finding_on_ops_is_that_of_their_kernels(path: Path) -> None:
    findings = [finding for finding in sheet_of(path).findings if finding.code in BY_OPS]
    assert bool(findings) == ("qwen" not in path.as_posix())
    for finding in findings:
        if finding.code == "below_roof":
            ns = saved_ns(path, finding.subject.op, finding.subject.phase)
        else:
            scores = str(finding.measures["scores"]).split(" x ")
            batch, rows, columns = (int(number.replace(",", "")) for number in scores)
            ns = attention_ns(path, finding.subject.phase, (batch, rows, columns))
        assert finding.ns == pytest.approx(ns, abs=100)  # bytes and FLOPs of a step are rounded


def only(path: Path, code: str) -> Claim:
    """The only finding of a code."""
    (finding,) = (finding for finding in sheet_of(path).findings if finding.code == code)
    return finding


def test_the_excess_of_experts_is_that_of_their_kernels() -> None:
    job = FIXTURES / "kinds" / "experts"
    assert only(job, "expert_imbalance").ns == pytest.approx(expert_excess_ns(sorted(job.glob("*.json"))), abs=1)


def test_the_bubble_is_that_of_a_sweep_over_the_events_of_all_ranks() -> None:
    job = FIXTURES / "kinds" / "pipeline"
    assert only(job, "pipeline_bubble").ns == pytest.approx(bubble_ns(sorted(job.glob("*.json"))), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("late_in", ["forward", "optimizer"])
def test_late_ranks_are_late_by_their_own_time(late_in: str, tmp_path: Path) -> None:
    late = (4, 5)
    play(Fleet(16, ranks_per_host=4, layers=3, steps=3, late_ranks=late, late_in=late_in)).write(tmp_path)
    finding = only(tmp_path, "late_ranks")
    assert finding.key == "rank 4"
    by_number = sorted(tmp_path.iterdir(), key=lambda path: int(re.findall(r"\d+", path.name)[0]))
    assert finding.ns == pytest.approx(late_ns(by_number, late), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["forward", "bwd"])
def test_what_is_outside_of_phases_is_what_their_journals_leave(phase: str, tmp_path: Path) -> None:
    """One phase is taken out of the journals, as if it had no range."""
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "outlier_ab", run)
    for journal in (run / "steps").iterdir():
        journal.write_text(re.sub(rf'"{phase}":\d+,', "", journal.read_text()))
    finding = only(run / "off", "outside_phases")
    assert finding.ns == pytest.approx(outside_phases_ns(run, "off"), abs=1)


CORES = 4


def blocks_of(rank: int, *, busy: bool) -> Iterator[dict[str, int | str]]:
    """Two blocks of a rank with two workers on half of a host of four cores; `busy`: others keep these busy."""
    for steps, wall_ms in ((16, 1_600 + 7 * rank), (48, 4_900 - 13 * rank)):
        job_ms = 1.1 * wall_ms + (0.2 if busy else 1.4) * wall_ms
        yield {
            "kind": "cores",
            "num_steps": steps,
            "wall_ns": wall_ms * MS,
            "process_ns": round(1.1 * wall_ms) * MS,
            "worker_ns": round((0.2 if busy else 1.4) * wall_ms) * MS,
            "process_wait_ns": round(0.4 * wall_ms) * MS,
            "thread_wait_ns": round((0.2 + 0.03 * rank) * wall_ms) * MS,
            "worker_wait_ns": round(0.3 * wall_ms) * MS,
            "machine_ns": round(2 * job_ms + (1.3 if busy else 0.1) * wall_ms) * MS,
            "num_workers": 2,
        }


@pytest.mark.slow
@pytest.mark.parametrize("code", ["busy_machine", "contended_cores"])
def test_the_wait_for_a_core_is_that_of_the_journals(code: str, tmp_path: Path) -> None:
    """The recorder sums the journals up in its manifest, and the finding is on what it says there."""
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "outlier_ab", run)
    ranks = []
    for rank, journal in enumerate(sorted((run / "steps").iterdir())):
        lines = [json.dumps(block) for block in blocks_of(rank, busy=code == "busy_machine")]
        journal.write_text(journal.read_text() + "\n".join([*lines, ""]))
        ranks.append([line for line in read_lines(journal) if isinstance(line, CoresLine)])
    manifest = json.loads((run / "run.json").read_text())
    facts = {**core_facts(ranks, ["h", "h"]), "cores_available": CORES, "num_threads": 1}
    (run / "run.json").write_text(json.dumps({**manifest, "environment": {**manifest["environment"], **facts}}))
    finding, times = only(run / "off", code), core_times(run, ["h", "h"])
    assert finding.ns == pytest.approx(times.wait_ns, abs=1)
    assert finding.measures["share_pct"] == pytest.approx(100 * times.waits)
    if code == "busy_machine":
        assert finding.measures["other_cores_mean"] == round(times.others, 2)
        assert finding.measures["num_cores"] == CORES
    else:
        assert finding.measures["num_workers"] == 2
        assert finding.measures["busy_pct"] == pytest.approx(100 * times.worker_busy)
        assert finding.measures["runnable_pct"] == pytest.approx(100 * times.worker_runnable)


SNAPSHOTS = [FIXTURES / "kinds" / f"snapshot{kind}.pickle" for kind in ("", "_longer", "_oom")]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SNAPSHOTS])
def test_the_bytes_of_a_snapshot_are_those_of_its_actions(path: Path) -> None:
    memory = memory_of(path)
    measures = {claim.code: claim.measures for claim in snapshot_sheet(path).findings}
    assert measures["memory_peak"]["peak_bytes"] == memory.peak
    assert measures["memory_peak"]["reserved_bytes"] == memory.reserved
    assert ("out_of_memory" in measures) == ("fragmentation" in measures) == (memory.requested is not None)
    if memory.requested is not None:
        request, pieces = measures["out_of_memory"], measures["fragmentation"]
        assert (request["asked_bytes"], request["free_bytes"]) == (memory.requested, memory.device_free)
        assert (pieces["free_bytes"], pieces["largest_bytes"]) == (memory.pool_free, memory.largest_free)


def test_the_peaks_of_two_snapshots_are_those_of_their_actions() -> None:
    a, b = SNAPSHOTS[:2]
    (claim,) = snapshot_diff(a, b).findings
    before, after = (memory_of(path).peak for path in (a, b))
    assert (claim.measures["before_bytes"], claim.measures["after_bytes"]) == (before, after)
    assert claim.measures["delta_pct"] == pytest.approx(100 * (after - before) / before)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            *file.values, id=file.id, marks=[] if str(file.id).startswith("hta-groups") else [pytest.mark.slow]
        )
        for file in FILES
        if file.id not in LONGEST
    ],
)
def test_a_trace_lacks_ops_if_the_numbers_of_those_it_has_lie_apart(path: Path) -> None:
    numbers = sorted({integer(event.args["external id"]) for event in read(path).events if is_numbered(event)})
    apart = sum(after - before > 2 for before, after in pairwise(numbers))
    findings = [finding for finding in sheet_of(path).findings if finding.code == "missing_ops"]
    assert len(findings) == (len(numbers) >= 100 and apart >= 0.2 * (len(numbers) - 1))
    for finding in findings:
        missing = numbers[-1] - numbers[0] + 1 - len(numbers)
        share_pct = 100 * missing / (numbers[-1] - numbers[0] + 1)
        assert finding.measures["missing_pct"] == pytest.approx(share_pct)


def is_numbered(event: Event) -> bool:
    return event.cat == "cpu_op" and integer(event.args.get("external id")) > 0


def size(number: int | None) -> str:
    """Bytes as findings write them."""
    assert number is not None
    return format_value(number, Unit.BYTES)


def test_every_finding_has_a_second_way() -> None:
    ways = [
        BY_EVENTS,
        BY_MACHINE,
        BY_RANKS,
        BY_OPS,
        BY_CASTS,
        BY_JOBS,
        BY_JOURNALS,
        BY_BYTES,
        BY_COUNTS,
        BY_REPLAY,
    ]
    assert sum(map(len, ways)) == len(set.union(*ways))
    assert set.union(*ways) == RULES.keys() >= FOUND_IN.keys()
