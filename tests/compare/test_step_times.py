"""Where the verdict comes from, and what it says where there is little to go by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builder import write
from made_sides import H100, MANIFEST, PAIRS, codes, paired, plain, rows, run_of, verdict
from statements import only, statements

from traceq.compare.diff import diff, diff_runs
from traceq.errors import UnreadableInput
from traceq.model import Pairs, Run
from traceq.runs.embedded_recording import KEY, Embedded, encode
from traceq.runs.read import read


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
    assert "not_paired" in texts


def test_two_runs_are_one_process_a_side_and_no_test() -> None:
    other = replace(MANIFEST, run_id="r2")
    result = diff_runs(run_of("off"), run_of("on", manifest=other))
    assert result.comparison is not None
    assert result.comparison.ci95_ns is None
    assert (result.comparison.num_pairs, result.comparison.unprofiled) == (0, True)
    name, reason = verdict(result)
    assert name == "inconclusive"
    assert "record at least 4: " in reason
    assert "not_paired" not in codes(result)
    assert "confounded" not in codes(result)


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


def test_without_pairs_and_without_traces_the_answer_says_what_is_missing() -> None:
    off, on = (Run(arm, (), MANIFEST, arm, ()) for arm in ("off", "on"))
    result = diff_runs(off, on)
    assert result.comparison is None
    assert [(each.code, each.measures) for each in statements(result)] == [
        ("nothing_to_compare", {"untraced": "off or on"})
    ]
    assert diff_runs(run_of("off", pairs=()), on).answer.measures["untraced"] == "on"


def test_an_older_reading_of_a_run_without_these_pairs_has_their_verdict() -> None:
    for older in ((), (replace(PAIRS[0], b="other"),)):
        result = diff_runs(run_of("off", pairs=older), run_of("on"))
        assert verdict(result) == verdict(diff_runs(run_of("off"), run_of("on")))


def test_a_comparison_that_holds_no_pair_yet_counts_for_nothing() -> None:
    nothing = Pairs("off", "on", np.empty(0, np.bool_), np.empty((1, 0), np.int64), np.empty((1, 0), np.int64))
    off, on = (Run(arm, (), MANIFEST, arm, (nothing,)) for arm in ("off", "on"))
    assert diff_runs(off, on).comparison is None


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
    assert only("cpu_time", result)["delta_ns"] == result.cpu.delta_ns
    assert diff_runs(run_of("off"), run_of("on")).cpu is None
