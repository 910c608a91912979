"""Caveats of a diff."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import build
from made_sides import H100, MANIFEST, codes, paired, rows, run_of

from traceq.compare.diff import diff_runs
from traceq.model import BUILT_APART, Run, Trace


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
