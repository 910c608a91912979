"""One real recording of the outlier recipe on two ranks, checked in every respect."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from recording import Recording, start

from traceq.model import SourceLines
from traceq.recorder.tracing.line_marks import TraceRow, source_lines
from traceq.runs.embedded_recording import decode
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines, read_pairs

distributed = pytest.importorskip("torch._C._distributed_c10d", reason="recording needs torch with its processes")
pytest.importorskip("accelerate", reason="the outlier recipe gathers metrics through accelerate")
pytestmark = pytest.mark.torch

RECIPE = ROOT / "tests" / "support" / "recipes" / "outlier_small.py"
ARMS = ("off", "on", "absent")
STALL_NS = 20_000_000


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Two ranks, the least number of steps and arms, and a check that stalls its arm for 20 ms."""
    options = ["--ranks", "2", "--steps", "2", "--trace-steps", "2", "--set", "batch_size=1", "--set", "stall_us=20000"]
    done = start(tmp_path_factory.mktemp("recording"), *options, recipe=str(RECIPE)).finish()
    assert done.code == 0, done.stderr
    return done


@pytest.fixture(scope="session")
def folder(recording: Recording) -> RunFolder:
    return RunFolder(recording.out)


def trace(folder: RunFolder, arm: str, rank: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(folder.trace(arm, rank).read_bytes()))
    return document


def test_every_rank_leaves_every_file(folder: RunFolder) -> None:
    for rank in (0, 1):
        assert folder.samples(rank).is_file()
        assert folder.log(rank).is_file()
        for arm in ARMS:
            assert folder.trace(arm, rank).is_file()
            assert folder.stacks(arm, rank).is_file()
    assert not list(folder.path.rglob("*.part"))


@pytest.mark.parametrize("rank", [0, 1])
def test_traced_steps_of_the_arms_take_turns(folder: RunFolder, rank: int) -> None:
    """Recorded arm after arm, what drifts between them would be taken for their difference."""
    marks = [
        (event["ts"], arm)
        for arm in ARMS
        for event in trace(folder, arm, rank)["traceEvents"]
        if event.get("name", "").startswith("ProfilerStep#")
    ]
    order = [arm for _, arm in sorted(marks)]
    assert order == [*order[: len(order) // 2]] * 2
    assert set(order) == set(ARMS)


def test_it_ends_by_printing_what_to_type_next(recording: Recording) -> None:
    out = recording.out
    off, on = (out / arm / "rank0.json.gz" for arm in ("off", "on"))
    assert recording.stdout.splitlines() == [
        f"traceq diff {out}",
        f"traceq diff {off} {on}",
        f"traceq show {out}/on",
        f"traceq open {out}/on",
    ]


def test_the_manifest_says_what_was_verified(folder: RunFolder) -> None:
    manifest = folder.read_manifest()
    assert (manifest.status, manifest.fault, manifest.num_ranks) == ("complete", "", 2)
    assert manifest.baseline == "off"
    assert manifest.parameters["stall_us"] == 20000
    expected = {"backend": "gloo", "world_size": 2, "wrapper": "DistributedDataParallel", "accelerate_world_size": 2}
    assert {key: manifest.environment[key] for key in expected} == expected


def test_each_comparison_has_sixteen_pairs_on_both_ranks(folder: RunFolder) -> None:
    by_arms = {(pairs.a, pairs.b): pairs for pairs in read_pairs(folder.steps)}
    assert by_arms.keys() == {("off", "on"), ("off", "off")}
    for pairs in by_arms.values():
        assert pairs.first_ns.shape == pairs.second_ns.shape == (2, 16)
        assert pairs.b_second.sum() == 8


def test_a_known_stall_is_seen_in_the_samples(folder: RunFolder) -> None:
    """In the fastest forward of each arm: whatever else the machine does only adds to it.

    Of the step it may take nothing: on cores that the ranks share one computes while the other stalls.
    """
    steps = [line for line in read_lines(folder.samples(0)) if isinstance(line, StepLine) and line.pair >= 0]
    off_ns, on_ns = (min(line.phases["forward"] for line in steps if line.arm == arm) for arm in ("off", "on"))
    assert on_ns >= STALL_NS
    assert on_ns - off_ns > STALL_NS / 2


def test_phases_of_a_step_are_timed_in_order_and_fit_into_it(folder: RunFolder) -> None:
    steps = [line for line in read_lines(folder.samples(1)) if isinstance(line, StepLine) and line.pair >= 0]
    assert len(steps) == 2 * 2 * 32  # of each half the second one counts
    for step in steps:
        assert tuple(step.phases) == folder.read_manifest().phases
        assert 0 < sum(step.phases.values()) <= step.wall_ns
        assert step.peak_bytes > 0


def test_one_copied_trace_knows_the_samples_of_all_ranks(folder: RunFolder) -> None:
    embedded = decode(trace(folder, "on", rank=1)["traceq"])
    assert (embedded.arm, embedded.manifest.run_id) == ("on", folder.read_manifest().run_id)
    for copied, written in zip(embedded.pairs, read_pairs(folder.steps), strict=True):
        assert (copied.a, copied.b) == (written.a, written.b)
        assert np.array_equal(copied.first_ns, written.first_ns)
        assert np.array_equal(copied.second_ns, written.second_ns)


def test_the_sync_of_the_check_is_given_its_line(folder: RunFolder) -> None:
    lines = decode(trace(folder, "on")["traceq"]).lines
    assert lines is not None
    source = ROOT / "recipes" / "workload" / "outlier_check.py"
    numbers = [number for number, text in enumerate(source.read_text().splitlines(), 1) if "return bool(" in text]
    (index,) = lines.table["forward|aten::is_nonzero"]
    assert lines.lines[index] == f"outlier_check.py:{numbers[0]} outlier_seen"


def test_the_plain_trace_has_as_many_ops_as_the_lines_say(folder: RunFolder) -> None:
    document = trace(folder, "on")
    rows = [
        TraceRow(row["name"], row.get("cat", ""), row.get("tid", ""), float(row["ts"]), float(row["dur"]))
        for row in document["traceEvents"]
        if row.get("ph") == "X"
    ]
    plain: SourceLines = source_lines(rows, folder.read_manifest().phases)
    lines = decode(document["traceq"]).lines
    assert lines is not None
    in_forward = {key: len(indices) for key, indices in lines.table.items() if key.startswith("forward|")}
    assert in_forward == {key: len(indices) for key, indices in plain.table.items() if key.startswith("forward|")}


def test_switched_off_the_check_adds_not_one_op(folder: RunFolder) -> None:
    def ops(arm: str) -> Counter[str]:
        lines = decode(trace(folder, arm)["traceq"]).lines
        assert lines is not None
        return Counter({key: len(indices) for key, indices in lines.table.items() if key.startswith("forward|")})

    assert ops("off") == ops("absent")
    assert ops("on") - ops("off") == {
        "forward|aten::abs": 2,
        "forward|aten::max": 2,
        "forward|aten::view": 2,
        "forward|aten::cat": 1,
        "forward|aten::gt": 1,
        "forward|aten::any": 1,
        "forward|aten::is_nonzero": 1,
    }


def test_the_window_has_the_steps_asked_for(folder: RunFolder) -> None:
    names = [row["name"] for row in trace(folder, "off")["traceEvents"]]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2


@pytest.mark.skipif(not hasattr(distributed, "_dump_fr_trace_json"), reason="this torch records nothing of gloo")
def test_the_flight_recorder_counts_what_the_window_reduced(folder: RunFolder) -> None:
    assert "all_reduce" in str(folder.read_manifest().environment["collectives.on"])
    entries = json.loads(folder.flight("on", 0).read_text())["entries"]
    reduces = [entry for entry in entries if entry["profiling_name"] == "gloo:all_reduce"]
    rows = [row for row in trace(folder, "on")["traceEvents"] if row.get("name") == "gloo:all_reduce"]
    assert len(reduces) == len(rows) > 0
