"""Several recordings per side, one process each: what is read, compared and refused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builder import kernel, launch, step, world, write

from traceq.compare.diff import diff, diff_run
from traceq.compare.result import Diff
from traceq.errors import UnreadableInput, UsageFault
from traceq.model import Arm, Manifest
from traceq.runs.embedded_recording import KEY, Embedded, encode
from traceq.runs.run_folder import RunFolder, to_json_bytes
from traceq.runs.step_log import PairLine

LOOP = Manifest(
    version=1,
    run_id="r",
    recipe="loop",
    question="",
    parameters={},
    arms=(Arm("run", "the loop as it is", baseline=True),),
    phases=(),
    num_ranks=1,
    seed=1,
    status="complete",
    environment={"torch": "2.9", "host": "here", "device": "cpu"},
)
AB = replace(LOOP, recipe="check", arms=(Arm("off", "", baseline=True), Arm("on", "")))


def record(path: Path, manifest: Manifest = LOOP, *, traced: bool = False, **steps_us: int) -> Path:
    """A run whose arms take so many us in each of 16 halves; `traced`: with a window of the baseline."""
    folder = RunFolder(path)
    folder.steps.mkdir(parents=True)
    folder.write_manifest(replace(manifest, run_id=str(path)))
    base = manifest.baseline
    times = {base: 1000, **steps_us}
    lines = [
        PairLine(base, arm, pair, pair % 2 == 0, *(1000 * times[one] for one in order))
        for arm in times
        for pair in range(16)
        for order in [(base, arm) if pair % 2 == 0 else (arm, base)]
    ]
    folder.samples(0).write_bytes(b"".join(to_json_bytes(line) + b"\n" for line in lines))
    if traced:
        write(folder.trace(base, 0), step(0, times[base]), launch(1, 2, 1), kernel("gemm", 5, 50, 1))
    return path


def side(folder: Path, steps_us: Sequence[int], manifest: Manifest = LOOP, *, traced: bool = False) -> Path:
    for number, us in enumerate(steps_us):
        record(folder / str(number), manifest, traced=traced, **{manifest.baseline: us})
    return folder


def caveat_texts(result: Diff) -> dict[str, str]:
    return {caveat.code: caveat.text for caveat in result.caveats}


def test_the_processes_of_two_folders_are_compared_by_their_medians(tmp_path: Path) -> None:
    a, b = side(tmp_path / "before", [1000, 1001, 1002, 1003]), side(tmp_path / "after", [1100, 1101, 1102, 1104])
    result = diff(a, b)
    c = result.comparison
    assert c is not None
    # all 16 differences, ordered: 97 98 98 99 99 99 100 100 100 100 101 101 102 102 103 104; k = 1 at 95 %
    assert (c.delta_ns, c.ci95_ns, c.num_a, c.num_b, c.num_pairs) == (100_000, (97_000, 104_000), 4, 4, 0)
    assert (c.verdict.name, c.unprofiled) == ("material", True)
    assert (result.a_name, result.b_name, result.a.path) == ("before", "after", str(a))
    assert (result.answer.code, result.answer.measures["most_ci_delta_ns"]) == ("material", 104_000)


@pytest.mark.parametrize(("num_a", "num_b", "counts"), [(3, 3, "3"), (4, 1, "4 and 1"), (1, 6, "1 and 6")])
def test_fewer_than_four_a_side_are_no_test_and_the_reason_counts_them(
    tmp_path: Path, num_a: int, num_b: int, counts: str
) -> None:
    result = diff(side(tmp_path / "a", range(1000, 1000 + num_a)), side(tmp_path / "b", range(1100, 1100 + num_b)))
    assert result.comparison is not None
    verdict = result.comparison.verdict
    assert (verdict.name, verdict.pairs_needed, result.comparison.ci95_ns) == ("inconclusive", 4, None)
    assert verdict.reason.startswith(f"{counts} processes per side")
    assert verdict.reason.endswith("at least 4")


def test_two_runs_say_which_command_compares_more_of_each(tmp_path: Path) -> None:
    a, b = record(tmp_path / "before", run=1000), record(tmp_path / "after", run=1100)
    result = diff(a, b)
    assert result.comparison is not None
    reason = result.comparison.verdict.reason
    assert reason.startswith("1 process per side")
    assert reason.endswith(f" traceq diff '{a}*' '{b}*'")


def test_a_pattern_and_an_arm_of_every_run_are_sides_too(tmp_path: Path) -> None:
    for number in range(4):
        record(tmp_path / f"run-{number}", AB, off=1000 + number, on=1100 + number)
    by_arm = diff(tmp_path / "off", tmp_path / "on")
    by_pattern = diff(str(tmp_path / "run-*" / "off"), str(tmp_path / "run-[0-3]" / "on"))
    for result in (by_arm, by_pattern):
        assert result.comparison is not None
        assert (result.comparison.delta_ns, result.comparison.num_a, result.comparison.num_b) == (100_000, 4, 4)
        assert (result.a_name, result.b_name) == ("off", "on")


def test_a_pattern_that_fits_one_run_is_that_run(tmp_path: Path) -> None:
    record(tmp_path / "run-1", AB, off=1000, on=1100)
    result = diff(str(tmp_path / "run-*" / "off"), str(tmp_path / "run-*" / "on"))
    assert result.comparison is not None
    assert result.comparison.num_pairs == 16


def test_the_process_in_the_middle_explains(tmp_path: Path) -> None:
    a = side(tmp_path / "a", [1000, 1010, 1020], traced=True)
    b = side(tmp_path / "b", [1200, 1300, 1100], traced=True)
    result = diff(a, b)
    assert result.traced is not None
    assert result.traced.delta_ns == (1200 - 1010) * 1000
    reported = [caveat.text for caveat in result.caveats if caveat.code == "one_process_explains"]
    assert [text.partition(":")[0] for text in reported] == [str(a / "1" / "run"), str(b / "0" / "run")]


def test_processes_of_one_side_that_differ_much_are_listed(tmp_path: Path) -> None:
    even, uneven = side(tmp_path / "a", [1000, 1010, 1005, 1490]), side(tmp_path / "b", [1100, 4000, 1120, 4100])
    texts = caveat_texts(diff(even, uneven))
    assert "1.10 ms, 4.00 ms, 1.12 ms, 4.10 ms" in texts["uneven_processes"]
    assert "uneven_processes" not in caveat_texts(diff(even, even))


def test_a_process_without_steps_is_left_out_and_named(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", [1000, 1001, 1002, 1003]), side(tmp_path / "b", [1100, 1101, 1102, 1103])
    RunFolder(b / "2").samples(0).write_bytes(b"")
    RunFolder(b / "2").write_manifest(replace(LOOP, status="failed", fault="rank 0 was killed"))
    result = diff(a, b)
    assert result.comparison is not None
    assert (result.comparison.num_a, result.comparison.num_b) == (4, 3)
    assert caveat_texts(result)["no_steps"].startswith(f"{b / '2' / 'run'}: ")
    assert caveat_texts(result)["incomplete_run"].endswith("(failed): rank 0 was killed")


def test_one_side_after_the_other_is_a_doubt(tmp_path: Path) -> None:
    def started(folder: str, hours: Sequence[int]) -> Path:
        for hour in hours:
            record(tmp_path / folder / f"{hour}", replace(LOOP, started=f"2026-11-20T{hour:02}:00:00Z"))
        return tmp_path / folder

    early, late, between = started("a", [1, 2, 3, 4]), started("b", [5, 6, 7, 8]), started("c", [2, 4, 6, 8])
    assert "not_interleaved" in caveat_texts(diff(early, late))
    assert "not_interleaved" in caveat_texts(diff(late, early))
    assert "not_interleaved" not in caveat_texts(diff(early, between))


def test_what_differs_in_any_process_of_a_side_is_named(tmp_path: Path) -> None:
    other = replace(LOOP, environment={**LOOP.environment, "torch": "2.10"})
    side(tmp_path / "a", [1000, 1001])
    record(tmp_path / "b" / "0", run=1000)
    record(tmp_path / "b" / "1", other, run=1000)
    result = diff(tmp_path / "a", tmp_path / "b")
    assert caveat_texts(result)["confounded"] == "possible confounder: torch: 2.9 against 2.10 or 2.9"


def test_recordings_of_different_things_are_no_side(tmp_path: Path) -> None:
    record(tmp_path / "a" / "0")
    record(tmp_path / "a" / "1", AB, off=1000, on=1000)
    with pytest.raises(UnreadableInput, match="one recipe: check, loop;"):
        diff(tmp_path / "a", tmp_path / "a")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (replace(LOOP, num_ranks=2), "number of ranks: 1, 2;"),
        (replace(LOOP, environment={"device": "cuda"}), "device: cpu, cuda;"),
        (replace(LOOP, arms=(replace(LOOP.arms[0], samples_per_step=8),)), "number of samples per step: 0, 8;"),
    ],
)
def test_a_side_is_of_one_size_on_one_kind_of_device(tmp_path: Path, other: Manifest, what: str) -> None:
    record(tmp_path / "a" / "0")
    record(tmp_path / "a" / "1", other)
    with pytest.raises(UnreadableInput, match=f"more than one {what}"):
        diff(tmp_path / "a", tmp_path / "a")


def test_a_recording_counts_once(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", [1000, 1001, 1002, 1003]), side(tmp_path / "b", [1100, 1101, 1102, 1103])
    shutil.copytree(b / "0", b / "copy")
    with pytest.raises(UnreadableInput, match="1 of its 5 paths repeat"):
        diff(a, b)
    for number in range(4):
        reported = encode(Embedded(AB, "off", ()))
        write(tmp_path / f"rank{number}.json", step(0, 9), **world(number, 4), **{KEY: reported})
    with pytest.raises(UnreadableInput, match=r"3 of its 4 paths repeat .* RUN/ARM"):
        diff(str(tmp_path / "rank*.json"), a)


def test_an_arm_that_some_run_lacks_is_named_and_one_that_all_lack_is_no_path(tmp_path: Path) -> None:
    record(tmp_path / "0", AB, off=1000, on=1100)
    record(tmp_path / "1", replace(AB, arms=AB.arms[:1]), off=1000)
    with pytest.raises(UnreadableInput, match="no such arm") as fault:
        diff(tmp_path / "on", tmp_path / "off")
    assert (fault.value.where, fault.value.expected) == (str(tmp_path / "1" / "on"), "one of off")
    with pytest.raises(UnreadableInput, match="nothing: no such file"):
        diff(tmp_path / "nothing", tmp_path / "off")
    with pytest.raises(UnreadableInput, match="no path matches the pattern"):
        diff(str(tmp_path / "x-*"), tmp_path / "off")


def test_a_folder_of_runs_alone_says_what_to_type(tmp_path: Path) -> None:
    for number in range(2):
        record(tmp_path / "ab" / f"{number}", AB, off=1000, on=1100)
    off, on = tmp_path / "ab" / "off", tmp_path / "ab" / "on"
    with pytest.raises(UsageFault, match=f": traceq diff {off} {on}$"):
        diff_run(tmp_path / "ab")
    with pytest.raises(UsageFault, match=r"2 recorded runs, .* second path"):
        diff_run(side(tmp_path / "loops", [1000, 1001]))


def test_an_arm_that_was_only_timed_has_its_verdict(tmp_path: Path) -> None:
    run = record(tmp_path / "run", AB, off=1000, on=1100)
    result = diff(run / "off", run / "on")
    assert result.comparison is not None
    assert (result.comparison.num_pairs, result.comparison.verdict.name) == (16, "material")
    for name in ("steps", "om"):
        with pytest.raises(UnreadableInput) as fault:
            diff(run / "off", run / name)
        assert (fault.value.where, fault.value.expected) == (str(run / name), "one of off, on")
