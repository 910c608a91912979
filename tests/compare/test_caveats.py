"""Caveats of a diff."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import build
from made_pairs import recording
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
    assert "only rank 1 of 4 " in texts["ranks_apart"]


def test_jobs_without_a_common_rank_are_not_explained() -> None:
    def rank(number: int) -> Trace:
        return replace(build(*rows(), **H100), rank=number, world_size=4)

    result = diff_runs(Run("a", (rank(0), rank(1))), Run("b", (rank(2), rank(3))))
    assert result.traced is None
    assert "ranks_apart" in codes(result)


def doubt(b_us: float, jitter_us: int, traced_b_us: float) -> tuple[str, object] | None:
    """Why the traced difference to steps of 1,020 us is no evidence, of arms of 1,020 and `b_us` that vary so much."""
    pairs = (recording(1_020_000, round(1000 * b_us), jitter_ns=1000 * jitter_us),)
    a, b = run_of("off", dur=1000, pairs=pairs), run_of("on", dur=traced_b_us - 20, pairs=pairs)
    why = diff_runs(a, b).doubt
    return (why.code, why.measures["delta_ns"]) if why else None


def test_durations_of_traced_steps_are_no_evidence_where_unprofiled_steps_say_otherwise() -> None:
    assert doubt(1020, 1, 1100) == ("outside_interval", 80_000)
    assert doubt(1020, 100, 1030) == ("undecided", 10_000)
    assert doubt(1020, 2, 1021) == ("not_seen", 1_000)
    assert doubt(1100, 1, 1100) is None


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
