"""What a job gains, in findings of `show`: the numbers of `traceq whatif`, and none where it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import Event, build, call, comms, kernel, launch, memcpy, op, step, table, world
from paths import ROOT, TRACES

from traceq.analysis.registry import analyze, analyze_all
from traceq.claims.claim import BY_JOB_REPLAY, BY_REPLAY, Claim
from traceq.claims.saying import text_of
from traceq.model import Run, Trace
from traceq.runs.read import read
from traceq.whatif.interventions import WithoutStraggler, WithoutSyncs
from traceq.whatif.job_replay import job_replay
from traceq.whatif.predict import predict

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def meeting(number: int, issued: int, start: int, end: int) -> list[Event]:
    call_of = comms("allreduce", issued, 3, (500, 500), **{"Process Group Name": "0", "Seq": number})
    return [call_of, launch(issued + 1, 1, 100 + number), kernel(NCCL, start, end - start, 100 + number)]


def rank(number: int, issued: int, start: int, *events: Event) -> Trace:
    """A rank that comes to the first of three meetings at `start`."""
    first, later = meeting(0, issued, start, 100), ((1, 100), (2, 110))
    rest = [event for n, begin in later for event in meeting(n, issued + 4 * n, begin, begin + 10)]
    return build(step(0, 70), *events, *first, *rest, **world(number, 2))


def job(late: int) -> Run:
    """Rank 0 waits from 10 to 50 for a kernel on another stream, and comes to the meeting at 60; rank 1 at `late`."""
    sync = launch(2, 2, 1), kernel("short", 7, 43, 1, stream=9), call("cudaDeviceSynchronize", 10, 40)
    return Run("job", (rank(0, 55, 60, *sync), rank(1, 11, late, launch(2, 1, 1), kernel("long", 7, late - 7, 1))))


def finding_of(run: Run, analysis: str, code: str) -> Claim:
    (finding,) = (each for each in analyze(run, analysis).findings if each.code == code)
    return finding


def is_replayed(claim: Claim) -> bool:
    return claim.gain_by in (BY_REPLAY, BY_JOB_REPLAY) or "(replay" in text_of(claim)


def test_a_straggler_without_which_nothing_is_gained_says_so() -> None:
    """The hosts of all ranks are busy throughout, so that no step ends earlier, whoever is late."""
    finding = finding_of(read(ROOT / "fixtures" / "kinds" / "experts"), "ranks", "straggler")
    assert (finding.severity, finding.gain, finding.measures["pace"]) == ("low", (0, 0), "hosts")


@pytest.mark.parametrize(("name", "is_noise"), [("torchrec-v100-straggler-4r", False), ("nanogpt-h100-8r", True)])
def test_a_straggler_has_what_the_job_would_gain(name: str, is_noise: bool) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip("needs the public traces")
    run = read(TRACES / name)
    claim = finding_of(run, "ranks", "straggler")
    change = predict(job_replay(run), [WithoutStraggler((claim.subject.rank or 0,))]).together
    saved_ns = change.least_saved_ns, change.most_saved_ns
    assert claim.gain == ((0, 0) if is_noise else saved_ns)
    assert claim.measures.get("replayed_ns") == (saved_ns[1] if is_noise else None)


@pytest.mark.parametrize(("late", "gain_ns"), [(30, 30_000), (90, 0)])
def test_a_sync_gains_what_the_job_does(late: int, gain_ns: int) -> None:
    """Without it rank 0 comes to the meeting at 20, where rank 1 is at 30, or only at 90."""
    finding = finding_of(job(late), "syncs", "costly_sync")
    assert (finding.ns, finding.gain, finding.gain_by) == (40_000, (gain_ns, gain_ns), BY_JOB_REPLAY)


@pytest.mark.parametrize(("late", "gain_ns"), [(30, 30_000), (90, 0)])
def test_pageable_copies_gain_what_the_job_does(late: int, gain_ns: int) -> None:
    """Of rank 0 that waits from 10 to 50 in a copy, on another stream than its kernels."""
    copy = call("cudaMemcpyAsync", 10, 40, 1), memcpy("HtoD (Pageable -> Device)", 12, 38, 1, stream=9)
    others = rank(1, 11, late, launch(2, 1, 2), kernel("long", 7, late - 7, 2))
    run = Run("job", (rank(0, 55, 60, *copy), others))
    finding = finding_of(run, "memcpy", "pageable_copies")
    assert (finding.ns, finding.gain, finding.gain_by) == (40_000, (gain_ns, gain_ns), BY_JOB_REPLAY)
    assert (finding.subject.rank, finding.severity) == (0, "high" if gain_ns else "low")
    change = predict(job_replay(run), [WithoutSyncs(is_pageable=True)]).together
    assert change.least_saved_ns == gain_ns
    alone = predict(job_replay(Run("rank", run.traces[:1])), [WithoutSyncs(is_pageable=True)]).together
    assert alone.least_saved_ns == 40_000


def test_all_syncs_gain_what_the_job_does() -> None:
    name = "dlrm-v100-8r"
    if not (TRACES / name).is_dir():
        pytest.skip("needs the public traces")
    run = read(TRACES / name)
    joint = finding_of(run, "replay", "joint_syncs")
    change = predict(job_replay(run), [WithoutSyncs()]).together
    assert (joint.ns, joint.gain_by, change.least_saved_ns) == (4_636_000, BY_JOB_REPLAY, 930_500)
    assert joint.gain == (round(change.least_saved_ns), round(change.most_saved_ns))


@pytest.mark.parametrize("name", ["dlrm-v100-8r/rank5", "torchrec-v100-ab/a/rank2", "ep-moe-b200-ab/ref"])
def test_a_row_of_syncs_saves_here_and_in_whatif_the_same(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("needs the public traces")
    run = read(path)
    replay, rows = job_replay(run), table(run, "syncs")
    for row in rows:
        if row["replay_ns"]:
            change = predict(replay, [WithoutSyncs(keys=(row["key"],))]).together
            saved_ns = change.least_saved_ns, change.most_saved_ns
            assert saved_ns == (row["replay_ns"], row["most_replay_ns"]), row["key"]
    assert any(row["replay_ns"] for row in rows)


def test_show_claims_nothing_where_whatif_refuses() -> None:
    """A third of these steps waits for work that the trace lacks: `free communication saves 0` was no result."""
    path = TRACES / "hta-groups" / "sampled-rank0.json.gz"
    if not path.exists():
        pytest.skip("needs the public traces")
    run = read(path)
    reports = analyze_all(run)
    assert not any(is_replayed(finding) for report in reports for finding in report.findings)
    assert {row["label"] for row in table(run, "syncs")} == {"unknown"}
    assert [row["removed"] for row in table(run, "replay")] == ["nothing"]
    (caveat,) = (each for report in reports for each in report.caveats if each.code == "not_replayed")
    assert caveat.text.startswith("31.2 % of the step")


def test_no_finding_rests_on_a_replay_that_does_not_hold() -> None:
    """A kernel that starts 330 after its launch, and nobody knows why, makes none of what are findings without it."""
    copy = call("cudaMemcpyAsync", 10, 30, 1), memcpy("HtoD (Pageable -> Device)", 12, 28, 1)
    frees = call("cudaFree", 42, 20), call("cudaDeviceSynchronize", 64, 8)
    events = step(0, 82), op("aten::to", 9, 32), *copy, *frees, launch(74, 2, 2)
    for start, is_claimed in ((78, True), (412, False)):
        reports = analyze_all(Run("job", (build(*events, kernel("k", start, 30, 2)),)))
        claims = {each.code for report in reports for each in report.findings if is_replayed(each)}
        assert bool(claims) == is_claimed, claims
        frees_memory = [each for report in reports for each in report.findings if each.code == "allocator_retries"]
        assert [bool(each.ns) for each in frees_memory] == [is_claimed]


def test_show_has_what_gains_most_of_a_job_by_the_numbers_of_whatif() -> None:
    run = read(ROOT / "fixtures" / "example" / "job")
    (view,) = (each for each in analyze(run, "replay").views if each.key == "whatif")
    rows = {row["option"]: row["saved_ns"] for row in view.to_dicts()}
    assert list(rows) == ["--without loader", "--without-straggler=1", "--without sync:train.py:31"]
    sync = predict(job_replay(run), [WithoutSyncs("train.py:31")]).together
    assert rows["--without sync:train.py:31"] == sync.least_saved_ns


@pytest.mark.parametrize(("bound", "of_more"), [("_MOST_RANKS", "1 ranks"), ("_MOST_EVENTS", "1 events")])
def test_show_says_that_the_ranks_of_a_large_job_are_replayed_alone(
    bound: str, of_more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"traceq.analysis._basis.{bound}", 1)
    views = {each.key: each for each in analyze(read(ROOT / "fixtures" / "example" / "job"), "replay").views}
    assert set(views) == {"replay"}
    assert f"more than {of_more}" in views["replay"].note


@pytest.mark.parametrize(("late", "gain_ns"), [(20, 30_000), (90, 0)])
def test_an_op_below_its_roof_gains_what_the_job_does(late: int, gain_ns: int) -> None:
    """A product of 8 GFLOP takes 42 us on rank 0, at 70 % of the roof of 989 TFLOP/s 11.6 us."""
    product = {"Input Dims": [[1000, 4000], [4000, 1000]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    gemm = op("aten::mm", 1, 6, **product), launch(2, 2, 1), kernel("gemm", 7, 42, 1)
    first, second = rank(0, 9, 50, *gemm), rank(1, 11, late, launch(2, 1, 1), kernel("long", 7, late - 7, 1))
    h100 = Run("job", tuple(replace(each, device="NVIDIA H100 80GB HBM3") for each in (first, second)))
    finding = finding_of(h100, "efficiency", "below_roof")
    assert finding.gain_by == BY_JOB_REPLAY
    assert finding.gain == pytest.approx((gain_ns, gain_ns), abs=500)
    assert finding.measures["reachable_ns"] == pytest.approx(11_600, rel=0.01)
