"""Arms that ran apart: each process is one value on its side of a diff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from builder import build, op
from builder import step as step_row
from terminal import traceq

from traceq.compare.diff import diff_runs
from traceq.model import Arm, Manifest, Processes, Run
from traceq.runs.embedded_recording import Embedded, decode, encode
from traceq.runs.read import read_timing
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_processes

MS = 1_000_000
ARMS = (Arm("a", "", baseline=True), Arm("b", ""), Arm("alone", "", num_ranks=1))
MANIFEST = Manifest(1, "r", "apart", "?", {}, ARMS, (), 2, 1, "complete", apart=True)


def line(arm: str, process: int, number: int, ms: float, *, device_ms: float = 0) -> StepLine:
    wall, device = round(ms * MS), round(device_ms * MS)
    return StepLine(arm, "", "", number, 0, 0, {}, wall, wall, device, 5 + process, process=process)


def written(folder: Path, ranks: Sequence[Sequence[StepLine]], manifest: Manifest = MANIFEST) -> Path:
    """A run of these samples, without traces."""
    run = RunFolder(folder)
    run.steps.mkdir(parents=True)
    run.write_manifest(manifest)
    for rank, lines in enumerate(ranks):
        run.samples(rank).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    return folder


def process(arm: str, number: int, ms: float, num: int = 3) -> list[StepLine]:
    """A warm-up step that does not count, then so many steps of one length."""
    return [line(arm, number, -1, 99), *(line(arm, number, index, ms) for index in range(num))]


def medians(folder: Path) -> Mapping[str, Sequence[float]]:
    return {each.arm: (each.median_ns / MS).tolist() for each in read_processes(folder / "steps", MANIFEST)}


def test_a_process_is_the_median_step_of_its_slowest_rank_step_by_step(tmp_path: Path) -> None:
    first = [line("a", 0, 0, 1), line("a", 0, 1, 8), line("a", 0, 2, 3)]
    second = [line("a", 0, 0, 6), line("a", 0, 1, 2), line("a", 0, 2, 2)]
    assert medians(written(tmp_path, [first, second])) == {"a": [6.0]}


def test_a_devices_time_counts_where_there_is_one(tmp_path: Path) -> None:
    lines = [line("a", 0, 0, 1, device_ms=4)]
    assert medians(written(tmp_path, [lines, lines])) == {"a": [4.0]}


def test_steps_that_a_rank_lacks_are_left_out_but_for_arms_of_fewer_ranks(tmp_path: Path) -> None:
    first = [*process("a", 0, 5, num=3), *process("b", 1, 7), *process("alone", 2, 9)]
    folder = written(tmp_path, [first, process("a", 0, 5, num=2)])
    assert medians(folder) == {"a": [5.0], "alone": [9.0]}
    assert [each.num_steps.tolist() for each in read_processes(folder / "steps", MANIFEST)] == [[2], [3]]
    assert read_processes(folder / "steps", replace(MANIFEST, apart=False)) == ()


def test_a_copied_trace_carries_the_processes(tmp_path: Path) -> None:
    lines = [*process("a", 0, 5), *process("b", 1, 7), *process("a", 2, 6)]
    result = read_processes(written(tmp_path, [lines, lines]) / "steps", MANIFEST)
    carried = decode(encode(Embedded(MANIFEST, "a", processes=result))).processes
    assert [vars_of(each) for each in carried] == [vars_of(each) for each in result]
    assert vars_of(carried[0]) == ("a", [0, 2], [5 * MS, 6 * MS], [3, 3], [5, 7])


def vars_of(each: Processes) -> tuple[str, list[int], list[int], list[int], list[int]]:
    return each.arm, each.process.tolist(), each.median_ns.tolist(), each.num_steps.tolist(), each.peak_bytes.tolist()


def four_each(folder: Path, b_ms: float) -> tuple[Run, Run]:
    """Processes abbaabba, each a little slower than the one before."""
    lines = [
        step
        for number, arm in enumerate("abbaabba")
        for step in process(arm, number, (b_ms if arm == "b" else 20.0) + number / 1000)
    ]
    written(folder, [lines, lines])
    return read_timing(folder / "a"), read_timing(folder / "b")


def test_four_processes_a_side_give_a_verdict(tmp_path: Path) -> None:
    result = diff_runs(*four_each(tmp_path, b_ms=22.0)).comparison
    assert result is not None
    assert (result.verdict.name, result.num_pairs, result.num_a, result.num_b) == ("material", 0, 4, 4)
    assert result.delta_ns == pytest.approx(2 * MS, abs=10_000)
    assert result.caveats == ()
    same = diff_runs(*four_each(tmp_path / "same", b_ms=20.0)).comparison
    assert same is not None
    assert same.verdict.name == "in_the_noise"


def test_the_process_that_is_traced_is_named_beside_all(tmp_path: Path) -> None:
    sides = four_each(tmp_path, b_ms=22.0)
    assert [caveat.code for caveat in diff_runs(*sides).caveats] == []
    trace = build(step_row(0, 1000), op("aten::mm", 10, 20))
    texts = [each.text for each in diff_runs(*(replace(side, traces=(trace,)) for side in sides)).caveats]
    named = [text for text in texts if "processes is traced" in text]
    for text, arm, median in zip(named, ("a", "b"), ("20.0 ms", "22.0 ms"), strict=True):
        assert text.startswith(f"arm {arm}: ")
        assert f"(median step {median}; of all {median})" in text


def test_one_process_a_side_gives_none_and_the_answer_says_what_would(tmp_path: Path) -> None:
    lines = [*process("a", 0, 5), *process("b", 1, 7)]
    out = traceq("diff", written(tmp_path / "run", [lines, lines])).out
    assert "+40.0 %" in out
    assert "record at least 4" in out


def test_an_arm_that_left_nothing_is_one_line_of_show_and_of_diff(tmp_path: Path) -> None:
    skipped = replace(ARMS[2], status="skipped", fault="not installed")
    lines = [*process("a", 0, 5), *process("b", 1, 7)]
    out = written(tmp_path / "run", [lines, lines], replace(MANIFEST, arms=(*ARMS[:2], skipped)))
    reason = f"arm alone: {skipped.failure}"
    done = traceq("show", out / "alone")
    assert (done.code, done.err.strip()) == (1, f"traceq: {out / 'alone'}: {reason}")
    done = traceq("diff", out)
    assert (done.code, done.err.splitlines()[-1]) == (0, f"traceq: note: {reason}")


def test_without_its_baseline_a_run_is_not_compared(tmp_path: Path) -> None:
    ended = replace(ARMS[0], status="out of memory", fault="rank 0: MemoryError")
    out = written(tmp_path / "run", [process("b", 1, 7)] * 2, replace(MANIFEST, arms=(ended, *ARMS[1:])))
    done = traceq("diff", out)
    assert done.code == 1
    assert f"{out}: arm a: {ended.failure}; expected the baseline" in done.err


def test_one_recording_has_several_processes_on_its_side_of_a_diff(tmp_path: Path) -> None:
    for name, b_ms in (("before", 20.0), ("after", 22.0)):
        for index in range(2):
            lines = [step for number in range(2) for step in process("a", number, b_ms + (2 * index + number) / 1000)]
            written(tmp_path / name / str(index), [lines, lines], replace(MANIFEST, run_id=f"{name}{index}"))
    out = traceq("diff", tmp_path / "before", tmp_path / "after").out
    assert "after costs 2.00 ms per step" in out
    assert "material at the 0.50 % threshold" in out
