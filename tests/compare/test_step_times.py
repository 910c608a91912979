"""Where the verdict comes from, and what it says where there is little to go by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import Event, build, kernel, launch, op, step, write

from traceq.compare.diff import diff, diff_runs
from traceq.compare.result import Diff
from traceq.errors import UnreadableInput
from traceq.model import BUILT_APART, Arm, Manifest, Pairs, Run, Trace
from traceq.runs.embedded import KEY, Embedded, encode
from traceq.runs.read import read

MANIFEST = Manifest(
    version=1,
    run_id="r1",
    recipe="outlier_ab",
    question="does it cost?",
    parameters={"batch_size": 8, "size": "tiny"},
    arms=(Arm("off", "", baseline=True), Arm("on", ""), Arm("deferred", "")),
    phases=(),
    num_ranks=1,
    seed=1,
    status="complete",
    environment={"torch": "2.9", "host": "here", "device": "cpu"},
)
H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}


def paired(a: str, b: str, a_us: float, b_us: float, num: int = 16) -> Pairs:
    """Alternating pairs whose halves jitter by 1 us in a fixed pattern."""
    b_second = np.arange(num) % 2 == 0
    jitter = 1000 * np.array([1, -1, -1, 1, 0])[np.arange(2 * num) % 5].reshape(num, 2)
    first = np.where(b_second, a_us, b_us) * 1000 + jitter[:, 0]
    second = np.where(b_second, b_us, a_us) * 1000 + jitter[:, 1]
    return Pairs(a, b, b_second, first.astype(np.int64)[None], second.astype(np.int64)[None])


PAIRS = (paired("off", "on", 1000, 1100), paired("off", "deferred", 1000, 1000), paired("off", "off", 1000, 1000))


def rows(dur: float = 20) -> list[Event]:
    return [step(0, dur + 20), launch(2, 2, 1), kernel("gemm", 5, dur, 1)]


def run_of(arm: str, *, dur: float = 20, manifest: Manifest = MANIFEST, pairs: tuple[Pairs, ...] = PAIRS) -> Run:
    return Run(arm, (build(*rows(dur), **H100),), manifest, arm, pairs)


def plain(dur: float = 20, **metadata: Any) -> Run:
    trace = build(*rows(dur), **{**H100, **metadata})
    return Run("plain", (trace,))


def codes(result: Diff) -> set[str]:
    return {caveat.code for caveat in result.caveats}


def verdict(result: Diff) -> tuple[str, str]:
    assert result.comparison is not None
    return result.comparison.verdict.name, result.comparison.verdict.reason


def test_two_copied_files_give_the_verdict_of_their_run(tmp_path: Path) -> None:
    paths = []
    for arm in ("off", "on"):
        reported = encode(Embedded(MANIFEST, arm, PAIRS))
        paths.append(write(tmp_path / f"{arm}.json", *rows(), **H100, **{KEY: reported}))
    copied, recorded = diff(*paths), diff_runs(run_of("off"), run_of("on"))
    assert copied.comparison == recorded.comparison
    assert verdict(copied)[0] == "material"
    assert copied.comparison is not None
    assert (copied.comparison.unprofiled, copied.comparison.num_pairs) == (True, 16)
    assert copied.comparison.delta_ns == pytest.approx(100_000, abs=2_000)
    assert copied.comparison.noise_floor_ns is not None


def test_the_other_order_has_the_other_sign() -> None:
    there, back = diff_runs(run_of("off"), run_of("on")).comparison, diff_runs(run_of("on"), run_of("off")).comparison
    assert there is not None
    assert back is not None
    assert there.delta_ns == -back.delta_ns
    assert there.ci95_ns is not None
    assert back.ci95_ns == (-there.ci95_ns[1], -there.ci95_ns[0])
    assert (there.a_ns, there.b_ns) == (back.b_ns, back.a_ns)


def test_arms_that_were_never_paired_fall_back_to_medians_and_say_so() -> None:
    result = diff_runs(run_of("on"), run_of("deferred"))
    assert result.comparison is not None
    assert (result.comparison.delta_ns, result.comparison.ci95_ns) == (pytest.approx(-100_000, abs=2_000), None)
    assert verdict(result)[0] == "inconclusive"
    assert result.comparison.unprofiled
    texts = {caveat.code: caveat.text for caveat in result.caveats}
    assert texts["not_paired"].startswith("on and deferred were never paired with each other")


def test_two_runs_are_one_process_a_side_and_no_test() -> None:
    other = replace(MANIFEST, run_id="r2")
    result = diff_runs(run_of("off"), run_of("on", manifest=other))
    assert result.comparison is not None
    assert result.comparison.ci95_ns is None
    assert (result.comparison.num_pairs, result.comparison.unprofiled) == (0, True)
    assert verdict(result) == ("inconclusive", "1 process per side gives no confidence interval; record at least 4")
    assert "not_paired" not in codes(result)
    assert "confounded" not in codes(result)


def test_other_parameters_and_versions_are_named() -> None:
    other = replace(
        MANIFEST,
        run_id="r2",
        parameters={"batch_size": 16, "size": "tiny", "extra": 1},
        environment={"torch": "2.10", "host": "here", "device": "cpu"},
    )
    result = diff_runs(run_of("off"), run_of("off", manifest=other))
    texts = [caveat.text for caveat in result.caveats if caveat.code == "confounded"]
    assert texts == [
        "possible confounder: batch_size: 8 against 16",
        "possible confounder: extra: None against 1",
        "possible confounder: torch: 2.9 against 2.10",
    ]


def test_what_an_arm_declares_is_no_confounder_and_clocks_and_throttling_are() -> None:
    def recording(size: int, mhz: int, throttled: str) -> Manifest:
        arms = (Arm("large", "", baseline=True, samples_per_step=8, varied={"batch_size": size}),)
        environment = {"torch": "2.9", "host": "here", "device": "cuda", "sm_mhz": mhz, "throttled": throttled}
        return replace(MANIFEST, run_id=f"r{size}", arms=arms, environment=environment)

    ours = Run("a", (), recording(8, 1980, ""), "large", PAIRS)
    theirs = Run("b", (), recording(16, 1900, "sw_power_cap"), "large", PAIRS)
    texts = [caveat.text for caveat in diff_runs(ours, theirs).caveats if caveat.code == "confounded"]
    assert texts == [
        "possible confounder: throttled: no against sw_power_cap",
        "possible confounder: clocks: 1,980 MHz against 1,900 MHz",
    ]


def test_versions_and_options_of_the_profiler_that_differ_are_named() -> None:
    old, new = {"cuda_driver_version": 12080, "with_stack": 1}, {"cuda_driver_version": 13000}
    job = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "nccl_version": "2.28.9"}}
    texts = [caveat.text for caveat in diff_runs(plain(20, **old), plain(30, **new, **job)).caveats]
    assert [text for text in texts if text.startswith("possible confounder")] == [
        "possible confounder: cuda driver version: 12080 against 13000",
        "possible confounder: profiler's with_stack: yes against no",
    ]


def shaped(*ops: tuple[str, list[object]]) -> Run:
    """One step in which these ops have inputs of these shapes."""
    each = [op(name, 5 + 5 * index, 4, **{"Input Dims": dims}) for index, (name, dims) in enumerate(ops)]
    return Run("plain", (build(*rows(), *each, **H100),))


def test_matmuls_that_never_have_the_same_shapes_are_named_by_the_largest() -> None:
    a = shaped(
        ("aten::mm", [[8, 64], [64, 64]]), ("aten::addmm", [[9], [8, 64], [64, 9], []]), ("aten::mm", [[2], [2]])
    )
    b = shaped(("aten::mm", [[16, 64], [64, 64]]), ("aten::addmm", [[9], [16, 64], [64, 9], []]))
    (text,) = (caveat.text for caveat in diff_runs(a, b).caveats if caveat.code == "confounded")
    assert text == (
        "possible confounder: shapes: the largest aten::mm is [[8, 64], [64, 64]] against [[16, 64], [64, 64]], "
        "and 1 more op differs"
    )


def typed(*ops: tuple[str, list[object]]) -> Run:
    """One step in which these ops have inputs of these types."""
    each = [op(name, 5 + 5 * index, 4, **{"Input type": kinds}) for index, (name, kinds) in enumerate(ops)]
    return Run("plain", (build(*rows(), *each, **H100),))


@pytest.mark.parametrize(
    ("ours", "theirs", "reported"),
    [
        (["float", "float"], ["c10::BFloat16", "c10::BFloat16"], ["dtype: aten::mm of float32 against bfloat16"]),
        (["c10::Half", "float"], ["double"], ["dtype: aten::mm of float16 against float64"]),
        (["float"], ["float", "c10::BFloat16"], []),
        (["float"], [], []),
        (["float"], [7], []),
    ],
)
def test_matmuls_of_another_type_are_other_work(ours: list[object], theirs: list[object], reported: list[str]) -> None:
    result = diff_runs(typed(("aten::mm", ours)), typed(("aten::mm", theirs))).caveats
    texts = [caveat.text for caveat in result if caveat.code == "confounded"]
    assert texts == [f"possible confounder: {text}" for text in reported]


def test_a_change_that_replaces_one_op_of_several_is_no_other_work() -> None:
    same = ("aten::mm", [[8, 64], [64, 64]])
    a, b = shaped(same, ("aten::bmm", [[4, 99, 99], [4, 99, 9]])), shaped(same, ("aten::mm", [[1, 2], [2, 3]]))
    assert "confounded" not in codes(diff_runs(a, b))
    odd = shaped(("aten::mm", ["x"]), ("aten::mm", [[[8, 8]], [8]]), ("aten::bmm", [[], []]))
    assert "confounded" not in codes(diff_runs(a, odd))


def test_marked_steps_against_a_whole_trace_are_refused() -> None:
    unmarked = Run("b", (build(*rows()[1:], **H100),))
    reason = "steps: one side has marked steps, the other is one whole trace"
    assert diff_runs(plain(20), unmarked).comparable.reasons == (reason,)
    assert diff_runs(unmarked, unmarked).comparable.ok


def test_plain_traces_are_compared_by_their_profiled_steps() -> None:
    result = diff_runs(plain(20), plain(30))
    assert result.comparison is not None
    assert (result.comparison.unprofiled, result.comparison.delta_ns) == (False, 10_000)
    assert verdict(result)[0] == "inconclusive"
    assert "profiled_steps" in codes(result)


def test_a_run_against_a_plain_trace_is_profiled_too() -> None:
    result = diff_runs(run_of("off"), plain(30))
    assert result.comparison is not None
    assert result.comparison.unprofiled is False


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
    assert (
        result.words[0] == f"Not comparable ({reason}): the breakdown shows where time goes, not what a change costs."
    )


def test_runs_without_a_trace_are_compared_by_what_they_say_of_themselves() -> None:
    here = Run("here", (), MANIFEST, "off", PAIRS)
    there = Run("there", (), replace(MANIFEST, run_id="r2", num_ranks=4), "on", PAIRS)
    result = diff_runs(here, there)
    assert verdict(result) == (
        "inconclusive",
        "not comparable: ranks of the job: 1 against 4, samples per step unknown",
    )
    assert (result.traced, result.cells, result.causes) == (None, (), ())


def test_without_pairs_and_without_traces_the_answer_says_what_is_missing() -> None:
    off, on = (Run(arm, (), MANIFEST, arm, ()) for arm in ("off", "on"))
    result = diff_runs(off, on)
    assert result.comparison is None
    assert result.words == ("Nothing to compare: no unprofiled pairs yet, and no trace of off or on.",)
    assert diff_runs(run_of("off", pairs=()), on).words[0].endswith("no unprofiled pairs yet, and no trace of on.")


def test_a_comparison_that_holds_no_pair_yet_counts_for_nothing() -> None:
    nothing = Pairs("off", "on", np.empty(0, np.bool_), np.empty((1, 0), np.int64), np.empty((1, 0), np.int64))
    off, on = (Run(arm, (), MANIFEST, arm, (nothing,)) for arm in ("off", "on"))
    assert diff_runs(off, on).comparison is None


def test_only_ranks_that_stand_on_both_sides_decide() -> None:
    def rank(number: int, dur: float) -> Trace:
        return replace(build(*rows(dur), **H100), rank=number, world_size=4)

    a = Run("a", tuple(rank(number, 20 + number) for number in range(4)))
    result = diff_runs(a, Run("b", (rank(1, 30),)))
    assert result.comparison is not None
    assert (result.comparison.a_ns, result.comparison.b_ns) == (41_000, 50_000)
    texts = {caveat.code: caveat.text for caveat in result.caveats}
    assert texts["ranks_apart"] == "only rank 1 of 4 is on both sides; the others are ignored"


def test_jobs_without_a_common_rank_are_not_explained() -> None:
    def rank(number: int) -> Trace:
        return replace(build(*rows(), **H100), rank=number, world_size=4)

    result = diff_runs(Run("a", (rank(0), rank(1))), Run("b", (rank(2), rank(3))))
    assert result.traced is None
    assert any(caveat.text.endswith("so the delta is not explained") for caveat in result.caveats)


def test_the_traced_delta_outside_the_interval_is_a_doubt() -> None:
    assert "traced_disagrees" in codes(diff_runs(run_of("off"), run_of("on", dur=20)))
    assert "traced_disagrees" not in codes(diff_runs(run_of("off", dur=20), run_of("on", dur=120)))


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="nothing"):
        read(tmp_path / "nothing.json")


def test_the_main_threads_cpu_time_has_a_verdict_of_its_own() -> None:
    """The step says nothing, since it waits; the CPU time of the same pairs says 10 us."""
    waits, busy = paired("off", "on", 1000, 1000), paired("off", "on", 200, 210)
    timed = replace(waits, first_cpu_ns=busy.first_ns, second_cpu_ns=busy.second_ns)
    result = diff_runs(run_of("off", pairs=(timed,)), run_of("on", pairs=(timed,)))
    assert result.comparison is not None
    assert result.cpu is not None
    assert (result.comparison.verdict.name, result.cpu.verdict.name) == ("in_the_noise", "material")
    assert result.cpu.delta_ns == pytest.approx(10_000, abs=2_000)
    assert result.words[2].startswith("CPU time of the main thread (excludes blocked time): +")
    assert diff_runs(run_of("off"), run_of("on")).cpu is None


@pytest.mark.parametrize(
    ("names", "b_us", "printed"),
    [("off on", 1010, True), ("off on", 1100, False), ("off on", 1000, False), ("off deferred", 1010, False)],
    ids=["small", "large", "none", "one build"],
)
def test_a_small_difference_of_arms_that_were_built_apart_may_be_where_they_lie(
    names: str, b_us: float, printed: bool
) -> None:
    pairs = (paired("off", "on", 1000, b_us, num=64), paired("off", "off", 1000, 1000, num=64))
    reported = replace(MANIFEST, environment={**MANIFEST.environment, BUILT_APART: names})
    result = diff_runs(run_of("off", manifest=reported, pairs=pairs), run_of("on", manifest=reported, pairs=pairs))
    assert ("built_apart" in codes(result)) == printed
