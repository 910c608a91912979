"""What a reader of real traces took the first lines to say, where that was not so."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from paths import FIXTURES, TRACES
from statements import of_code, only, statements

import traceq
from traceq.analysis.registry import analyze
from traceq.claims.claim import BY_JOB_REPLAY, LOW, Basis, Claim
from traceq.facts.events.kernels import launched_kernels
from traceq.model import Run
from traceq.runs.read import read

slow = partial(pytest.param, marks=pytest.mark.slow)


def real(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no {TRACES}")
    return path


def claim(run: Run, analysis: str, code: str) -> Claim:
    (only,) = (each for each in analyze(run, analysis).findings if each.code == code)
    return only


def test_what_a_device_catches_up_with_is_not_what_free_communication_saves() -> None:
    """36 ms of launched work wait at the start of two steps of 18.8 ms, in which the host takes 15.9 ms.

    One rank of several does not tell transfers from waits, so that no gain is promised.
    """
    exposed = claim(read(real("resnet-ddp-mi300/rank0.json.gz")), "partition", "exposed_comm")
    assert (exposed.ns, exposed.gain, exposed.remedy) == (11_699_040, None, "all_ranks")


def test_pageable_copies_of_a_rank_say_what_the_job_gains() -> None:
    """Its neighbours did; the rank gains 1.46 ms to 1.75 ms, and most of that is a wait for others then."""
    copies = claim(read(real("dlrm-v100-8r")), "memcpy", "pageable_copies")
    assert (copies.ns, copies.gain, copies.gain_by) == (1_463_000, (91_000, 91_000), BY_JOB_REPLAY)


def test_a_pool_that_was_emptied_in_the_partial_step_is_no_warm_up() -> None:
    """25 times aten::cat frees memory in the first, partial step; the two counted ones allocate it again."""
    run = read(real("torchrec-v100-ab/a"))
    (first, *_) = (each for each in analyze(run, "syncs").findings if each.code == "costly_allocation")
    assert (first.measures["once"], first.measures["num_returned"]) == ("pool_refill", 25)


@pytest.mark.slow
def test_a_host_that_copies_all_the_time_is_not_advised_to_compile() -> None:
    """A third of the kernels passed as tiny, which last 19 us and longer: a launch of this runtime waits for them.

    Half of its copies are descriptors of launches, three each.
    """
    run = read(real("mtia/rank0.json.gz"))
    trips = claim(run, "launches", "host_round_trips")
    assert (trips.subject.op, trips.measures["copies_mean"], trips.measures["kernels_mean"]) == (
        "aten::_copy_from",
        11_028,
        3_453,
    )
    assert {each.code for each in analyze(run, "launches").findings} == {"host_round_trips"}
    (trace,) = run.traces
    assert not launched_kernels(trace).tiny.any()


def test_a_rank_that_is_late_in_both_of_two_steps_is_not_called_irregular() -> None:
    report = analyze(read(real("torchrec-v100-ab/a")), "ranks")
    assert "rank 2 in both" in report.views[0].note
    assert {row["rank"]: row["verdict"] for row in report.tables[0].to_dicts()}[2] == "undecided"


def test_waits_in_a_first_collective_are_told_apart() -> None:
    """Table `ranks` leaves them out: profilers start one after the other."""
    waits = claim(read(real("dlrm-v100-8r")), "partition", "exposed_wait")
    assert (waits.ns, waits.measures["first_collective_ns"], waits.basis) == (5_664_438, 3_283_969, Basis(1))


def test_a_mean_of_unlike_steps_has_their_range_and_what_the_job_gains_is_told_of_all_allocations() -> None:
    """One row saved more on all ranks than all rows did on one; a step that three ranks have in part counts on none."""
    run = read(real("torchrec-v100-straggler-4r"))
    retries = claim(run, "memory", "allocator_retries")
    assert (retries.ns, retries.gain, retries.gain_by) == (59_475_500, (59_475_500, 59_475_500), BY_JOB_REPLAY)
    cat = next(each for each in analyze(run, "syncs").findings if each.subject.op == "aten::cat").measures
    assert cat["blocked_ns"] == 53_745_000
    assert (cat["least_blocked_by_step_ns"], cat["most_blocked_by_step_ns"]) == (4_842_000, 102_648_000)


@pytest.mark.slow
def test_a_wait_for_work_before_the_window_is_not_of_it() -> None:
    """115 ms of a trace of 55.3 ms."""
    capture = read(real("inference/vllm-piecewise-mi300-capture.json.gz"))
    first, *_ = (each.measures for each in analyze(capture, "syncs").findings if each.code == "costly_sync")
    assert first["unrecorded_ns"] == pytest.approx(115e6, rel=0.01)
    assert first["window_ns"] == pytest.approx(55.3e6, rel=0.01)


@pytest.mark.slow
def test_savings_that_overlap_are_not_left_to_be_added() -> None:
    """Without the loader 619 ms less, without syncs 302: 4.2 ms are Python with the last result."""
    joint = claim(read(real("owlv2/h100.json.gz")), "replay", "joint_syncs").measures
    assert joint["together_ns"] == pytest.approx(302e6, rel=0.01)
    assert joint["with_loader_ns"] == pytest.approx(636e6, rel=0.01)


def test_a_sync_that_costs_nothing_alone_may_go_with_the_others() -> None:
    control = read(real("hta-diff/control-a100-rank3.json.gz"))
    joint, free = claim(control, "replay", "joint_syncs"), claim(control, "syncs", "free_sync")
    assert joint.ns == joint.measures["together_ns"] == 7_218_000
    assert (free.ns, free.measures["blocked_ns"], free.severity) == (0, 5_913_200, LOW)


def test_two_ranks_of_a_job_are_no_change() -> None:
    first, fourth = (real(f"nanogpt-h100-8r/rank{rank}.json.gz") for rank in (0, 3))
    answer = traceq.diff(first, fourth).answer
    assert answer.code == "ranks_of_one_job"
    assert answer.measures["delta_ns"] == pytest.approx(95_800, abs=50)
    assert traceq.diff(first, real("resnet-ddp-mi300/rank0.json.gz")).answer.code != "ranks_of_one_job"
    of_rank1 = traceq.diff(first, real("nanogpt-h100-8r/rank1.json.gz"))
    assert not of_code("delta_within_jitter", of_rank1)  # +1.60 ms ± 262 us of a delta of +152 us
    late = only("later_host", of_rank1)
    assert late["late_side"] == "b"
    assert (late["host_bound_ns"], late["in_collectives_ns"]) == pytest.approx((9_040_000, 8_920_000), abs=5_000)


def test_a_step_that_one_rank_counts_alone_is_no_difference_between_ranks() -> None:
    """Rank 2 counts ProfilerStep#4, which is 59 ms shorter; the two steps that both count take equally long."""
    other, late = (real(f"torchrec-v100-straggler-4r/rank{rank}.json.gz") for rank in (0, 2))
    diff = traceq.diff(other, late)
    assert (diff.answer.code, diff.answer.measures["num_a"]) == ("same_time", 2)
    assert only("later_host", diff)["late_side"] == "b"
    assert not {"line_changes", "syncs", "replaced"} & {each.code for each in diff.reasons}  # by clocks in us


def test_a_wait_in_one_collective_of_one_step_is_not_called_jitter() -> None:
    """Rank 1 begins its step 5.47 ms earlier, and waits in the first message."""
    first, second = (real(f"dlrm-v100-8r/rank{rank}.json.gz") for rank in (0, 1))
    diff = traceq.diff(first, second)
    (exchange, *_) = of_code("cause_of_collective", diff)
    assert str(exchange["what"]).startswith("all_to_all for activation exchange in")
    assert exchange["delta_ns"] == pytest.approx(5_490_000, abs=5_000)
    assert not any("jitter" in str(each) for each in statements(diff))


@pytest.mark.slow
def test_what_is_captured_once_follows_the_verdict() -> None:
    diff = traceq.diff(*(real(f"sam-a100-ab/compile_{side}.json.gz") for side in ("false", "true")))
    assert "cold_start" in [each.code for each in diff.basis]


def test_twice_the_microbatches_are_other_work() -> None:
    once, twice = (FIXTURES / "strategies" / f"fsdp2{side}.json.gz" for side in ("", "_accumulated"))
    differences = only("work_differs", traceq.diff(once, twice))["differences"]
    assert re.match(r"calls: aten::mm .* 28 .* 14\b", str(differences))


@pytest.mark.parametrize(
    ("a", "b", "code", "delta_us"),
    [
        slow("owlv2/h100.json.gz", "owlv2/mi300.json.gz", "all_else", 128_000),
        slow("resnet50-2021/workers0.json.gz", "resnet50-2021/workers4.json.gz", "all_else", -4_410),
    ],
)
def test_what_a_lead_leaves_out_or_is_on_the_host_is_said(a: str, b: str, code: str, delta_us: int) -> None:
    assert only(code, traceq.diff(real(a), real(b)))["delta_ns"] == pytest.approx(1000 * delta_us, rel=0.005)


def test_a_straggler_behind_a_queue_of_work_is_late_by_its_host() -> None:
    """Its own cudaMalloc takes less than that of the others; before its all_to_all it is 20 ms longer in Python."""
    (claim,) = analyze(read(real("torchrec-v100-ab/b")), "ranks").findings
    assert claim.measures["excess_ns"] == pytest.approx(20.2e6, abs=5e4)
    assert (claim.measures["what"], claim.measures["before"]) == ("Python in # running sparse arch", "_AlltoAllSingle")
    assert "category" not in claim.measures


def test_experts_in_eight_bits_are_other_work() -> None:
    sides = (real(f"ep-moe-b200-ab/{name}.json.gz") for name in ("ref", "syncless"))
    differences = str(only("work_differs", traceq.diff(*sides))["differences"])
    assert differences.endswith("aten::_grouped_mm of bfloat16 against aten::_scaled_grouped_mm of float8_e4m3fn")


def test_the_rank_whose_waiting_is_told_is_named() -> None:
    """It waits for nobody on either side; the mean rank waits 13 ms less."""
    parts = only("waits_and_transfers", traceq.diff(*(real(f"torchrec-v100-ab/{side}") for side in "ab")))
    assert (parts["rank"], parts["wait_delta_ns"]) == (2, pytest.approx(-1_320_000, abs=5_000))


def test_a_sample_of_a_trace_has_no_idle_time() -> None:
    """It keeps 2,329 of the 170,156 ops by their numbers, and 1,154 kernels in two steps of 613 ms."""
    run = read(real("hta-groups/sampled-rank0.json.gz"))
    assert claim(run, "coverage", "missing_ops").measures["missing_pct"] == pytest.approx(98.6, abs=0.05)
    assert not analyze(run, "partition").findings
    assert not analyze(run, "strategy").findings


def test_a_wait_for_an_autograd_thread_without_rows_is_no_python() -> None:
    """Between the ends of backward the main thread is in 9 ops, for 95 us of 34.2 ms."""
    (table,) = analyze(read(real("hta-groups/no-device-rows.json.gz")), "partition").tables
    backward = {row["category"]: row["dur_ns"] for row in table.to_dicts() if row["phase"] == "## backward ##"}
    assert backward == {"cpu_compute": 95_000, "unrecorded": 34_065_000}


def test_a_device_that_a_trace_does_not_name_is_not_another_one() -> None:
    """The oldest profiler wrote a list of events without the properties of the device; the kernels are the same."""
    bare, named = (real(f"resnet50-2021/{name}.json.gz") for name in ("bare-array", "workers0"))
    result = traceq.diff(bare, named)
    assert (result.answer.code, result.answer.measures["num_a"]) == ("observed", 5)
    device = only("unrecorded_device", result)["device"]
    assert device == "not recorded against Tesla V100-DGXS-32GB"
    assert any(caveat.text.endswith(f"device: {device}") for caveat in result.caveats)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sam-a100-ab/compile_true", "inference/vllm-piecewise-mi300-capture"])
def test_what_a_graph_takes_once_is_not_told_as_if_it_recurred(name: str) -> None:
    """Its capture, with what prepares it, is the cold start's."""
    run = read(real(f"{name}.json.gz"))
    capture_ns = claim(run, "partition", "cold_start").measures["graph_capture_ns"]
    cells = [row for row in analyze(run, "partition").table("partition").to_dicts() if row["category"] == "once"]
    assert 0 < float(capture_ns) <= sum(int(row["dur_ns"] or 0) for row in cells)
