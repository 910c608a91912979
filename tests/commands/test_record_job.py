"""What `traceq record -- COMMAND` says and advises at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_pairs import MS, recording
from made_sides import run_of
from paths import ROOT

from traceq.commands._record_job import _largest_phase, _reports, _verdicts, _with_replicates
from traceq.compare.diff import diff_runs
from traceq.runs.run_folder import RunFolder


@pytest.mark.parametrize("given", [["--replicates", "1"], ["--replicates=2"]])
def test_the_command_with_enough_replicates_is_the_same_otherwise(given: list[str]) -> None:
    job = ["--", "torchrun", "train.py", "--replicates", "9", "{arm}"]
    words = _with_replicates(["record", "--arm", "a=", *given, "--steps", "32", *job])
    assert words == ["record", "--arm", "a=", "--replicates=4", "--steps", "32", *job]


@pytest.mark.parametrize(
    ("jitter_ns", "cpu_jitter_ns", "num_lines"),
    [(5 * MS, MS // 100, 2), (5 * MS, 5 * MS, 1), (MS // 100, MS // 100, 1)],
)
def test_cpu_time_is_told_where_it_decides_what_step_times_do_not(
    jitter_ns: int, cpu_jitter_ns: int, num_lines: int
) -> None:
    steps, cpu = (recording(10 * MS, 11 * MS, jitter_ns=each) for each in (jitter_ns, cpu_jitter_ns))
    pairs = (replace(steps, first_cpu_ns=cpu.first_ns, second_cpu_ns=cpu.second_ns),)
    lead, *more = _verdicts([diff_runs(run_of("off", pairs=pairs), run_of("on", pairs=pairs))])
    assert lead.startswith("Not decided") == (jitter_ns > MS)
    assert len(more) == num_lines - 1
    assert all("CPU time of the main thread" in each and each.endswith(": material.") for each in more)


@pytest.mark.parametrize(("rank", "where"), [(0, ("in bwd", pytest.approx(53.9, abs=0.1))), (9, ("", 0.0))])
def test_the_largest_phase_is_that_of_the_rank_whose_time_is_told(rank: int, where: tuple[str, float]) -> None:
    """A rank without a timed step has none."""
    profile = _reports(RunFolder(ROOT / "fixtures/outlier_ab"), "step_profile")
    assert _largest_phase(profile, rank) == where
