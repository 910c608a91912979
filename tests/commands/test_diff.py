"""`traceq diff`: what it prints, in every form, and the code it exits with."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builder import Event, annotation, call, kernel, launch, memcpy, op, step, text, write
from golden_files import check_golden
from json_shape import fits
from paths import ROOT

from traceq.cli import main
from traceq.compare.diff import diff_run
from traceq.compare.verdict import judge_delta
from traceq.escaped_console import EscapedConsole
from traceq.model import Arm, Manifest
from traceq.renderers.diff_text import print_diffs
from traceq.runs.run_folder import RunFolder, to_json_bytes
from traceq.runs.step_log import PairLine

Shell = Callable[..., tuple[int, str, str]]

MANIFEST = Manifest(
    version=1,
    run_id="r1",
    recipe="outlier_ab",
    question="does it cost?",
    parameters={"batch_size": 8},
    arms=(Arm("off", "no check", baseline=True), Arm("on", "a check"), Arm("absent", "reference", timed=False)),
    phases=("forward", "backward"),
    num_ranks=1,
    seed=1,
    status="complete",
    environment={"torch": "2.9", "host": "here"},
)
KINDS = ("sync", "collective", "kernel", "memcpy", "host", "pace", "minor", "jitter", "residual")
JITTER = (0, 3, -2, 1, -3, 2, -1, 4)


def one_step(position: int, number: int, *, check: bool) -> list[Event]:
    """1000 us without the check, 1200 with it: the host waits for a copy, and then launches the rest late."""
    run, late = 10 * number, 200 if check else 0
    rows = [
        step(position, 1000 + late, number),
        annotation("forward", position, 500 + late),
        annotation("backward", position + 500 + late, 500),
        op("aten::linear", position + 10, 20),
        launch(position + 12, 8, run + 1),
        kernel("void gemm<float, 128>(float*)", position + 30, 250, run + 1),
        op("aten::mul|<b>", position + 400 + late, 20),
        launch(position + 405 + late, 8, run + 2),
        kernel("void mul<a|b>(int)", position + 430 + late, 100, run + 2),
        op("aten::sgd", position + 600 + late, 20),
        launch(position + 605 + late, 8, run + 3),
        kernel("sgd|<script>x", position + 630 + late, 370, run + 3),
    ]
    if not check:
        return rows
    return [
        *rows,
        op("aten::_local_scalar_dense", position + 290, 200),
        call("cudaMemcpyAsync", position + 295, 5, run + 4),
        memcpy("DtoH (Device -> Pinned)", position + 302, 2, run + 4),
        call("cudaStreamSynchronize", position + 300, 185),
    ]


def arm(folder: RunFolder, name: str, *, check: bool) -> None:
    length = 1200 if check else 1000
    rows = [row for number in range(3) for row in one_step(number * length, number, check=check)]
    write(folder.trace(name, 0), *rows, deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])


def record(path: Path, manifest: Manifest = MANIFEST, *, traced: bool = True, num_pairs: int = 16) -> Path:
    """A run on disk: two timed arms, a reference, and pairs in alternating order with a control."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.write_manifest(manifest)
    for entries in manifest.arms if traced else ():
        arm(folder, entries.name, check=entries.name == "on")
    folder.steps.mkdir()
    lines = []
    for b in [entries.name for entries in manifest.arms if entries.timed]:
        for pair in range(num_pairs):
            of_a = 1_000_000 + 1000 * JITTER[pair % 8]
            of_b = (1_200_000 if b == "on" else 1_000_000) + 1000 * JITTER[(pair + 3) % 8]
            b_second = pair % 2 == 0
            first, second = (of_a, of_b) if b_second else (of_b, of_a)
            lines.append(PairLine("off", b, pair, b_second, first, second))
    folder.samples(0).write_bytes(b"".join(to_json_bytes(line) + b"\n" for line in lines))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record(tmp_path / "run")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """The command as a shell runs it: (exit code, stdout, stderr)."""

    def shell(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["traceq", "diff", *map(str, words)])
        monkeypatch.setenv("NO_COLOR", "1")
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        return int(end.value.code or 0), out, err

    return shell


# What it prints


def drawn(run: Path, width: int) -> str:
    file = io.StringIO()
    console = EscapedConsole(file, width=width, no_color=True, color_system=None, force_terminal=True)
    print_diffs(diff_run(run), console)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize("width", [60, 140])
def test_a_run_in_a_terminal(run: Path, width: int) -> None:
    result = drawn(run, width)
    assert max(map(len, result.splitlines())) <= width
    check_golden(f"diff_{width}.txt", result)


def test_a_run_in_markdown(run: Path, shell: Shell) -> None:
    code, out, _ = shell(run, "--markdown")
    assert code == 0
    check_golden("diff.md", out)


def test_nothing_is_never_less_than_nothing(run: Path, shell: Shell) -> None:
    for form in ("--markdown", "--json", "--threshold=1%"):
        code, out, _ = shell(run / "on", run / "off", form)
        assert (code, re.findall(r"-0(?:\.0+)?\b(?!\.)", out.replace(str(run), "RUN"))) == (0, [])


def test_markdown_lets_no_name_end_a_cell_or_open_a_tag(tmp_path: Path, shell: Shell) -> None:
    def named(path: Path, dur: int) -> Path:
        name = "<img src=x>|y`z`" if dur == 80 else "aten::mm"
        rows = [step(0, 300), annotation("a|<b>", 0, 300), op(name, 10, dur), launch(dur, 2, 1)]
        return write(path, *rows, kernel("void k<a|b>(<c>)", dur + 5, dur, 1), kernel("|# <u>", 250, dur // 10, 0))

    code, out, _ = shell(named(tmp_path / "a.json", 50), named(tmp_path / "b|<i>.json", 80), "--markdown")
    assert code == 0
    tables = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for lines in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "&lt;img src=x>\\|y'z'" in out
    assert not re.search(r"<|`|^#[^#]* #|(?<!\\)\|&lt;", out)


# JSON, as the design promises it

NUMBER, OPTIONAL = (int, float), (int, float, type(None))
DIFF: dict[str, Any] = {
    "schema": str,
    "a": dict,
    "b": dict,
    "comparable": {"ok": bool, "reasons": list},
    "step": {
        "a_ns": int,
        "b_ns": int,
        "delta_ns": int,
        "delta_pct": NUMBER,
        "ci95_ns": (list, type(None)),
        "ci90_ns": (list, type(None)),
        "noise_floor_ns": (int, type(None)),
        "num_pairs": int,
        "unprofiled": bool,
        "num_looks": int,
        "num_a": int,
        "num_b": int,
        "mean_delta_ns": int,
        "rank_delta_ns": list,
    },
    "sample": (dict, type(None)),
    "cpu_step": (dict, type(None)),
    "verdict": {
        "state": str,
        "measures": dict,
        "text": str,
        "name": str,
        "threshold_pct": NUMBER,
        "reason": str,
        "pairs_needed": (int, type(None)),
        "of": str,
    },
    "basis": [{"code": str, "measures": dict, "text": str}],
    "reasons": [{"code": str, "measures": dict, "text": str}],
    "doubt": (dict, type(None)),
    "traced": {
        "rank": int,
        "a_ns": int,
        "b_ns": int,
        "delta_ns": int,
        "num_a": int,
        "num_b": int,
        "matched_pct": OPTIONAL,
    },
    "cells": [{"phase": str, "category": str, "a_ns": int, "b_ns": int, "delta_ns": int}],
    "residual_ns": int,
    "causes": [
        {
            "key": str,
            "kind": str,
            "phase": str,
            "name": str,
            "line": str,
            "module": str,
            "self_op": str,
            "delta_bytes": int,
            "chain": (dict, type(None)),
            "delta_num": NUMBER,
            "delta_ns": int,
            "count_ns": int,
            "dur_ns": int,
            "share_pct": OPTIONAL,
            "sd_ns": int,
        }
    ],
    "warnings": [{"code": str, "text": str}],
}


def test_json_keeps_its_contract(run: Path, shell: Shell) -> None:
    code, out, err = shell(run / "off", run / "on", "--json")
    result = json.loads(out)
    assert (code, err, result["schema"]) == (0, "", "traceq.diff/3")
    result["warnings"] = result["warnings"] or [{"code": "", "text": ""}]
    fits(result, DIFF, "diff")
    assert {cause["kind"] for cause in result["causes"]} <= set(KINDS)
    assert (result["verdict"]["name"], result["traced"]["delta_ns"], result["residual_ns"]) == ("material", 200_000, 0)
    first = result["causes"][0]
    assert (first["key"], first["delta_num"]) == ("sync|forward|dtoh aten::_local_scalar_dense|", 1)
    assert first["delta_ns"] == 200_000  # the op around it included
    assert first["chain"] == {"copied_ns": 2_000, "waited_ns": 188_000, "rest_ns": 10_000, "idle_ns": 10_000}
    assert "-0.0" not in re.findall(r"-?\d+\.\d+", out)
    assert json.loads(shell(run, "--json")[1]) == {
        **json.loads(out),
        "free": json.loads(shell(run, "--json")[1])["free"],
    }


def test_json_of_steps_that_train_on_other_numbers_of_samples_has_both(tmp_path: Path, shell: Shell) -> None:
    off, on, *rest = MANIFEST.arms
    arms = (replace(off, samples_per_step=10), replace(on, samples_per_step=30), *rest)
    result = json.loads(shell(record(tmp_path / "run", replace(MANIFEST, arms=arms)), "--json")[1])
    sample = result["sample"]
    assert (sample["num_a"], sample["num_b"]) == (10, 30)
    assert (sample["a_ns"], sample["b_ns"], sample["delta_ns"]) == (100_050, 40_017, -60_033)
    assert sample["delta_pct"] == pytest.approx(-60, abs=0.1)
    assert sample["ci95_ns"][0] <= sample["delta_ns"] <= sample["ci95_ns"][1]
    assert result["step"]["delta_ns"] == pytest.approx(200_000, abs=5_000)
    assert (result["verdict"]["of"], result["verdict"]["name"]) == ("sample", "material")


def test_more_than_two_arms_are_a_list_of_diffs(tmp_path: Path, shell: Shell) -> None:
    three = replace(MANIFEST, arms=(*MANIFEST.arms[:2], Arm("later", "a check now and then")))
    result = json.loads(shell(record(tmp_path / "run", three), "--json")[1])
    assert (result["schema"], result["baseline"]) == ("traceq.diffs/3", "off")
    assert [one["b"]["arm"] for one in result["diffs"]] == ["on", "later"]


def test_only_a_change_is_asked_whether_it_can_be_switched_off(tmp_path: Path) -> None:
    off, on, absent = MANIFEST.arms
    arms = (off, on, Arm("alone", "elsewhere"), Arm("on_alone", "the check there", against="alone"), absent)
    result = diff_run(record(tmp_path / "run", replace(MANIFEST, arms=arms)))
    assert {one.b_name: bool(one.free) for one in result.diffs} == {"on": True, "alone": False, "on_alone": False}


# Exit codes


@pytest.mark.parametrize(
    ("verdict", "code"), [("material", 3), ("detectable", 3), ("inconclusive", 0), ("garbage", 2), ("in_the_noise", 2)]
)
def test_fail_on(run: Path, shell: Shell, verdict: str, code: int) -> None:
    result, out, err = shell(run, "--fail-on", verdict)
    assert (result, bool(out), err.count("\n")) == (code, code != 2, int(code > 0))
    problem = {2: f"--fail-on {verdict}: .* material, detectable, inconclusive$", 3: ": on is material$"}
    assert re.search(problem.get(code, "^$"), err)


@pytest.mark.parametrize(
    ("percent", "code", "sentence"),
    [
        ("19%", 3, "on takes more than 19.0 % longer"),
        ("25 %", 0, "on takes at most 25.0 % longer"),
        ("20", 0, "not decided whether on takes"),  # the interval includes it
    ],
)
def test_a_limit_has_to_hold_for_the_whole_interval(
    run: Path, shell: Shell, percent: str, code: int, sentence: str
) -> None:
    low, high = json.loads(shell(run, "--json")[1])["step"]["ci95_ns"]
    assert low < 200_100 < high  # 20 % of 1000.5 us
    result, out, err = shell(run, "--fail-on-delta", percent)
    assert (result, bool(out), err.count("\n")) == (code, True, 1)
    assert sentence in err
    assert "the 95 % interval of unprofiled steps" in err
    assert shell(run / "on", run / "off", "--fail-on-delta", percent)[0] == 0  # a saving


def traces_alone(run: Path) -> tuple[Path, Path]:
    """The traces of both arms, of which nothing else is known."""
    a, b = (run.parent / f"{name}.json.gz" for name in ("a", "b"))
    for name, path in (("off", a), ("on", b)):
        path.write_bytes((run / name / "rank0.json.gz").read_bytes())
    return a, b


def test_two_traces_trip_a_limit_and_never_a_verdict(run: Path, shell: Shell) -> None:
    a, b = traces_alone(run)
    assert shell(a, b, "--fail-on", "material")[0] == 0
    code, out, err = shell(a, b, "--fail-on-delta", "5%")
    assert (code, bool(out)) == (3, True)
    last = err.splitlines()[-1]
    assert last.startswith("traceq: --fail-on-delta: b takes more than 5.0 % longer than a: +20.0 % per step, from 3 ")
    assert last.endswith("without an interval")
    assert shell(a, b, "--fail-on-delta", "20 %")[0] == 0
    assert shell(b, a, "--fail-on-delta", "0")[0] == 0


def test_a_limit_without_a_comparison_is_no_pass(tmp_path: Path, shell: Shell) -> None:
    empty = record(tmp_path / "empty", traced=False, num_pairs=0)
    code, _, err = shell(empty / "off", empty / "on", "--fail-on-delta", "5%")
    assert (code, err.splitlines()[-1].startswith("traceq: --fail-on-delta: ")) == (1, True)
    assert shell(empty / "off", empty / "on", "--fail-on-delta", "5%", "--fail-on", "inconclusive")[0] == 3


def test_an_interval_that_the_control_refutes_decides_nothing(run: Path) -> None:
    (diff,) = diff_run(run).diffs
    assert diff.comparison is not None
    assert judge_delta(diff, 5).state == "exceeded"
    refuted = replace(diff.comparison, verdict=replace(diff.comparison.verdict, name="inconclusive"))
    assert judge_delta(replace(diff, comparison=refuted), 5).state == "undecided"


@pytest.mark.parametrize("percent", ["garbage", "", "-1%", "nan", "inf", "1%%"])
def test_a_limit_that_is_no_percentage_is_refused(run: Path, shell: Shell, percent: str) -> None:
    code, out, err = shell(run, f"--fail-on-delta={percent}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert shell(run, "--fail-on-delta", "150 %")[0] == 0


@pytest.mark.parametrize("threshold", ["garbage", "", "-1%", "nan", "inf", "101 %", "1%%"])
def test_a_threshold_that_is_no_percentage_is_refused(run: Path, shell: Shell, threshold: str) -> None:
    code, out, err = shell(run, f"--threshold={threshold}")
    assert (code, out) == (2, "")
    assert err.startswith(f"traceq: --threshold {threshold}: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("threshold", "verdict"), [("25 %", "in_the_noise"), ("19.9%", "detectable"), ("1", "material")]
)
def test_the_threshold_decides(run: Path, shell: Shell, threshold: str, verdict: str) -> None:
    assert json.loads(shell(run, "--json", "--threshold", threshold)[1])["verdict"]["name"] == verdict


@pytest.mark.parametrize("words", [["nothing"], ["nothing", "nothing"], ["nothing.json.gz", "other.json"]])
def test_a_missing_path_is_one_line(tmp_path: Path, shell: Shell, words: list[str]) -> None:
    code, out, err = shell(*(tmp_path / word for word in words))
    assert (code, out) == (1, "")
    assert err.startswith(f"traceq: {tmp_path / words[0]}")
    assert err.count("\n") == 1


def test_a_trace_alone_asks_for_a_second_path(run: Path, shell: Shell) -> None:
    path = run / "on" / "rank0.json.gz"
    code, out, err = shell(path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"traceq: {path}: not a recorded run")
    assert "second path" in err


def test_a_run_of_one_arm_asks_for_a_second_path(tmp_path: Path, shell: Shell) -> None:
    run = record(tmp_path / "run", replace(MANIFEST, arms=MANIFEST.arms[:1]))
    code, out, err = shell(run)
    assert (code, out) == (2, "")
    assert err.startswith(f"traceq: {run}: only one arm, off; ")
    assert f": traceq diff {run} OTHER; " in err
    assert err.endswith(": traceq record --toggle NAME=A,B\n")


def test_an_arm_alone_is_compared_with_its_run_or_another_arm(run: Path, shell: Shell) -> None:
    code, out, err = shell(run / "on")
    assert (code, out) == (2, "")
    assert err.startswith(f"traceq: {run / 'on'}: one arm of a run")
    assert err.endswith(f" {run}, or: traceq diff {run / 'off'} {run / 'on'}\n")


def test_a_run_that_is_not_there_is_named_as_it_was_given(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "nowhere"
    code, out, err = shell(path)
    assert (code, out) == (1, "")
    assert err.startswith(f"traceq: {path}: no such file")
    assert err.endswith("; expected a recorded run\n")


def test_two_forms_at_once_are_refused(run: Path, shell: Shell) -> None:
    code, out, err = shell(run, "--json", "--markdown")
    assert (code, out) == (2, "")
    assert err.endswith(": choose one\n")


@pytest.mark.slow
def test_a_gate_on_profiled_windows_says_that_it_cannot_hold_anything(tmp_path: Path, shell: Shell) -> None:
    paths = [tmp_path / name for name in ("before.json", "after.json")]
    for path, check in zip(paths, (False, True), strict=True):
        path.write_bytes(text(*one_step(0, 1, check=check)))
    note = "note: --fail-on: profiled windows"
    for verdict, expected in (("material", 0), ("detectable", 0), ("inconclusive", 3)):
        code, _, err = shell(*paths, "--fail-on", verdict)
        assert (code, note in err) == (expected, True)
    assert note not in shell(*paths)[2]
    assert note in shell(*paths, "--json", "--fail-on", "material")[2]


def test_a_gate_on_a_recording_says_nothing_of_the_kind(run: Path, shell: Shell) -> None:
    assert "no verdict" not in shell(run, "--fail-on", "inconclusive")[2]


# Runs cut short


def test_a_run_cut_short_has_the_verdict_of_the_pairs_it_finished(tmp_path: Path, shell: Shell) -> None:
    run = record(tmp_path / "run", replace(MANIFEST, status="interrupted", fault="Ctrl-C"), traced=False)
    with RunFolder(run).samples(0).open("ab") as file:
        file.write(b'{"kind":"pair","a":"off","b":"on","pai')
    code, out, err = shell(run)
    assert code == 0
    assert out.strip().startswith("on costs 20")
    assert "material at the 0.50 % threshold." in out
    assert err.endswith("incomplete (interrupted): Ctrl-C\n")
    assert err.count("\n") == 1
    assert shell(run, "--fail-on", "material")[0] == 3


def test_a_run_cut_short_before_its_first_pair_says_so(tmp_path: Path, shell: Shell) -> None:
    run = record(tmp_path / "run", replace(MANIFEST, status="recording"), traced=False, num_pairs=0)
    code, out, err = shell(run)
    assert (code, out.strip().count("\n"), err.count("\n")) == (0, 0, 1)
    assert out.strip().startswith("Nothing to compare: no unprofiled pairs")
    assert err.endswith("incomplete (recording)\n")
    assert shell(run, "--fail-on", "inconclusive")[0] == 3
    result = json.loads(shell(run, "--json")[1])
    assert (result["step"], result["traced"], result["verdict"]["name"]) == (None, None, "inconclusive")
    assert "Nothing to compare" in shell(run, "--markdown")[1]


def test_a_damaged_trace_is_one_line(run: Path, shell: Shell) -> None:
    path = run / "on" / "rank0.json.gz"
    path.write_bytes(b"not a trace")
    code, _, err = shell(run)
    assert code == 1
    assert err.startswith(f"traceq: {path}: ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_durations_that_are_no_evidence_are_shown_only_in_full(shell: Shell) -> None:
    """The verdict of the fixture is inconclusive, and its traced delta is outside the interval."""
    run = str(ROOT / "fixtures" / "outlier_ab")
    short, full = shell(run)[1], shell(run, "--full")[1]
    assert "outliers.py:17-18 outlier_seen in forward: 1 aten::is_nonzero" in short
    assert "not their durations (--full)." in short
    assert "Delta by phase and category" not in short
    assert "Delta by phase and category" in full
    assert "## on against off" in shell(run, "--markdown")[1]
    assert "Delta by phase" not in shell(run, "--markdown")[1]


@pytest.mark.slow
def test_plain_traces_are_told_to_be_profiled(tmp_path: Path, shell: Shell) -> None:
    paths = [tmp_path / name for name in ("before.json", "after.json")]
    for path, check in zip(paths, (False, True), strict=True):
        path.write_bytes(text(*one_step(0, 1, check=check)))
    code, out, err = shell(*paths)
    assert (code, err.count("profiled, few, and not interleaved")) == (0, 1)
    assert "after costs 200 us per step (+20.0 %)" in out
    step = msgspec.json.decode(shell(*paths, "--json")[1])["step"]
    assert (step["unprofiled"], step["ci95_ns"]) == (False, None)
