"""Steps that train on different numbers of samples are compared by the time of a sample, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_batches import compared, manifest, paired, run_of
from statements import of_code, only

from traceq.compare.diff import diff_runs
from traceq.compare.result import Diff, Diffs
from traceq.compare.sentences import UNKNOWN_SAMPLES
from traceq.compare.tables import matrix
from traceq.model import Pairs
from traceq.stats import Comparison, compare_pairs

MS = 1_000_000


def verdict_of(result: Diff) -> Comparison:
    assert result.comparison is not None
    return result.comparison


def test_a_longer_step_of_more_samples_can_save_time() -> None:
    result = compared(manifest(4, 8))  # 20 ms for 4 samples, 36 ms for 8: 5 ms and 4.5 ms each
    c = verdict_of(result)
    assert (c.each(c.a_ns), c.each(c.b_ns), c.each(c.delta_ns)) == (5 * MS, 4.5 * MS, -0.5 * MS)
    assert (c.delta_pct, c.verdict.name, c.samples) == (-10.0, "material", (4, 8))
    assert result.steps is not None
    assert (result.steps.a_ns, result.steps.b_ns, result.steps.delta_ns) == (20 * MS, 36 * MS, 16 * MS)
    keys = ("delta_ns", "least_ci_delta_ns", "most_ci_delta_ns", "per")
    assert [result.answer.measures[key] for key in keys] == [-500_000] * 3 + ["per sample"]
    samples = only("samples", result)
    assert (samples["num_a"], samples["num_b"], samples["delta_ns"]) == (4, 8, 16 * MS)
    assert (samples["num_a_per_s"], samples["num_b_per_s"]) == pytest.approx((200, 222.2), rel=1e-3)


def test_the_other_way_round_is_the_other_sign() -> None:
    c = verdict_of(compared(manifest(4, 8), swapped=True))
    assert (c.each(c.a_ns), c.each(c.delta_ns)) == (4.5 * MS, 0.5 * MS)
    assert c.noise_floor_ns == 0


def test_the_noise_of_the_control_is_in_the_same_measure() -> None:
    control = replace(paired("small", "small", 20, 22), b_second=np.arange(16) % 4 < 2)
    ours, theirs = paired("small", "large", 20, 36), paired("large", "small", 36, 20)
    of_a = compare_pairs(ours, control=control, samples=(4, 8)).noise_floor_ns
    of_b = compare_pairs(theirs, control=control, samples=(8, 4)).noise_floor_ns
    assert of_a is not None
    assert of_a > 0
    assert of_b == 2 * of_a  # for the 8 samples of a step of `large`


def test_as_many_samples_on_both_sides_compare_steps() -> None:
    result = compared(manifest(8, 8))
    assert verdict_of(result).samples is None
    assert (result.answer.measures["delta_ns"], result.answer.measures["per"]) == (16 * MS, "per step")


def test_a_batch_that_differs_and_samples_that_nobody_told_are_refused() -> None:
    for entries in (manifest(), manifest(4, 0), manifest(0, 8)):
        result = compared(entries)
        assert result.comparable.reasons == ("batch_size: 4 against 8, samples per step unknown",)
        assert verdict_of(result).verdict.name == "inconclusive"
    assert compared(manifest(varied=False)).comparable.ok


def test_jobs_of_different_size_are_compared_by_their_samples() -> None:
    one = run_of("small", manifest(4, 8))
    two = run_of("small", replace(manifest(8, 16), run_id="other", num_ranks=2))
    result = diff_runs(one, two)
    assert result.comparable.ok
    assert verdict_of(result).samples == (4, 8)
    assert (verdict_of(result).each(20 * MS), verdict_of(result).b_ns) == (5 * MS, 10 * MS)
    unknown = diff_runs(run_of("small", manifest()), run_of("small", replace(manifest(), run_id="x", num_ranks=2)))
    assert unknown.comparable.reasons == (f"ranks of the job: 1 against 2, {UNKNOWN_SAMPLES}",)
    assert of_code("count_samples", unknown)


def test_the_matrix_says_which_deltas_are_of_a_sample() -> None:
    result = compared(manifest(4, 8))
    table = matrix(Diffs("small", (result,)))
    baseline, row = (dict(zip((column.key for column in table.columns), each, strict=True)) for each in table.rows)
    assert (baseline["step"], baseline["delta"], baseline["verdict"]) == (20 * MS, None, "baseline")
    assert (row["step"], row["delta"], row["pct"], row["low"]) == (36 * MS, -0.5 * MS, -10.0, -0.5 * MS)
    assert "per sample" in table.note
    assert "per sample" not in matrix(Diffs("small", (compared(manifest(8, 8)),))).note
    narrow = matrix(Diffs("small", (result,)), narrow=True)
    assert "per sample" in narrow.note
    assert [column.key for column in narrow.columns] == ["arm", "step", "pct", "verdict"]


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(10**6, 10**7), st.integers(10**6, 10**7)), min_size=16))
def test_a_step_of_k_times_the_samples_in_k_times_the_time_is_the_same(k: int, halves: list[tuple[int, int]]) -> None:
    b_second = np.arange(len(halves)) % 2 == 0
    first, second = np.array(halves, np.int64).T
    pairs = Pairs("a", "b", b_second, first[None], second[None])
    larger = Pairs(
        "a", "b", b_second, np.where(b_second, first, k * first)[None], np.where(b_second, k * second, second)[None]
    )
    same, scaled = compare_pairs(pairs), compare_pairs(larger, samples=(3, 3 * k))
    assert (scaled.delta_ns, scaled.ci95_ns, scaled.verdict.name) == (same.delta_ns, same.ci95_ns, same.verdict.name)


@pytest.mark.parametrize("samples", [(4, 8), (8, 4)])
def test_the_threshold_is_in_percent_of_the_time_of_a_sample(samples: tuple[int, int]) -> None:
    ratio = samples[1] / samples[0]
    pairs = paired("a", "b", 20, 20 * ratio * 1.01)
    assert compare_pairs(pairs, samples=samples, threshold_pct=2).verdict.name == "in_the_noise"
    assert compare_pairs(pairs, samples=samples, threshold_pct=0.5).verdict.name == "material"


def test_a_doubt_says_for_how_many_samples_its_time_is() -> None:
    stalled = paired("a", "b", 20, 40, num=64)
    slow = stalled.second_ns.copy()
    slow[0, np.flatnonzero(stalled.b_second)[:12]] *= 3
    doubts = {
        doubt.code: doubt.text for doubt in compare_pairs(replace(stalled, second_ns=slow), samples=(4, 8)).caveats
    }
    assert "4 samples" in doubts["mean_disagrees"]
    assert doubts["slow_steps_differ"].endswith("one arm stalls more")
