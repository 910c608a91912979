"""`traceq show`: what people and programs read, on any terminal, with any name in the trace."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builder import AUTOGRAD, Event, annotation, call, comms, frame, kernel, launch, memcpy, op, step, world, write
from golden_files import check_golden
from paths import FIXTURES
from terminal import PROGRAM, on_terminal, shell, traceq


def one_step(number: int, position: int) -> list[Event]:
    """A small training step of 1 ms: a sync in forward, an all-reduce in backward, an optimizer."""
    corr = 10 * number
    return [
        step(position, 1000, number),
        annotation("forward", position, 400),
        annotation("backward", position + 400, 400),
        annotation("optimizer", position + 800, 200),
        frame("train.py(41): check", position + 100, 250),
        op("aten::_local_scalar_dense", position + 110, 215),
        launch(position + 10, 5, corr + 1),
        kernel("void gemm<float>(int)", position + 20, 250, corr + 1),
        call("cudaMemcpyAsync", position + 112, 10, corr + 2),
        memcpy("DtoH (Device -> Pinned)", position + 275, 2, corr + 2),
        call("cudaStreamSynchronize", position + 123, 200, corr + 3),
        launch(position + 420, 5, corr + 4, tid=AUTOGRAD),
        kernel("void gemm<float>(int)", position + 430, 300, corr + 4),
        comms("allreduce", position + 600, 20, (262144, 262144), tid=AUTOGRAD),
        launch(position + 605, 5, corr + 5, tid=AUTOGRAD),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", position + 650, 150, corr + 5, stream=20),
        launch(position + 810, 5, corr + 6),
        kernel("multi_tensor_apply_kernel<4>(x)", position + 820, 100, corr + 6),
    ]


STEPS = [event for number in range(3) for event in one_step(number, 1000 * number)]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file in the working folder, so that no path of this machine is in a golden."""
    monkeypatch.chdir(tmp_path)
    device = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    return write(Path("rank0.json"), *STEPS, **world(0, 4), **device).name


@pytest.mark.parametrize(
    ("options", "golden"),
    [([], "show.txt"), (["--full"], "show_full.txt"), (["--markdown"], "show.md"), (["--json"], "show.json")],
)
def test_a_small_trace_reads_like_this(trace: str, options: list[str], golden: str) -> None:
    done = traceq("show", *options, trace)
    assert (done.code, done.err) == (0, "")
    check_golden(golden, done.out)


@pytest.mark.parametrize("form", ["json", "markdown", "text"])
def test_a_form_can_be_chosen_by_its_name(trace: str, form: str) -> None:
    assert traceq("show", "--to", form, trace) == traceq("show", *([] if form == "text" else [f"--{form}"]), trace)


def test_the_numbers_for_programs_are_whole_nanoseconds(trace: str) -> None:
    result = json.loads(traceq("show", "--json", trace).out)
    assert result["schema"] == "traceq.show/3"
    times = re.findall(r'"\w*ns": ([^,\n]+)', traceq("show", "--json", trace).out)
    assert len(times) > 50
    assert all(re.fullmatch(r"-?\d+", time) for time in times)


def test_a_group_of_one_rank_is_said(tmp_path: Path) -> None:
    rows = step(0, 100), launch(1, 1, 1), kernel("k", 5, 60, 1)
    in_group = write(tmp_path / "group.json", *rows, **world(0, 1))
    alone = write(tmp_path / "alone.json", *rows)
    assert [" · 1 of 1 rank · " in traceq("show", path).out for path in (in_group, alone)] == [True, False]


HOSTILE = [
    "void f<a, b>(x)",
    "a|b|c",
    "</script><b>",
    "[bold]loud[/bold]",
    "[/]",
    "`code`",
    "# heading",
    "\\[x]",
    "ünïcode →",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_kernel_name_passes_unharmed_and_harms_nothing(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "rank0.json", step(0, 100), launch(1, 1, 1), kernel(name, 5, 60, 1))
    shown = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]
    assert shown in traceq("show", path).out
    page = traceq("show", "--markdown", "--only", "kernels", path).out
    (row,) = (line for line in page.splitlines() if line.startswith("| forward "))
    cells = re.split(r"(?<!\\)\|", row)
    assert "<" not in row
    assert "`" not in row
    assert [cell.strip() for cell in cells[3:]] == ["1", "60.0 us", ""]
    assert json.loads(traceq("show", "--json", path).out)["kernels"][0]["name"] == name


def test_only_shows_what_is_asked_for_in_the_order_of_a_report(trace: str) -> None:
    result = json.loads(traceq("show", "--json", "--only", "kernels", "--only", "steps", trace).out)
    assert list(result) == ["schema", "source", "steps", "kernels", "findings", "unknown", "warnings"]


def test_an_unknown_analysis_is_a_usage_fault_that_names_the_nearest(trace: str) -> None:
    done = traceq("show", "--only", "kernel", trace)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("traceq: no analysis 'kernel'; ")
    assert "did you mean 'kernels'? " in done.err
    assert "did you mean" not in traceq("show", "--only", "xyz", trace).err


@pytest.mark.parametrize("ranks", ["", "a", "0,", "1-b", "-3", "0.5"])
def test_garbage_for_ranks_is_a_usage_fault(trace: str, ranks: str) -> None:
    done = traceq("show", f"--ranks={ranks}", trace)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.endswith("expected something like 0,8,16-31\n")


def test_two_forms_at_once_are_a_usage_fault(trace: str) -> None:
    assert traceq("show", "--json", "--markdown", trace).code == 2


@pytest.mark.parametrize(
    "options", ["", *(pytest.param(name, marks=pytest.mark.slow) for name in ("--json", "--markdown"))]
)
def test_a_reader_that_leaves_early_sees_no_traceback(trace: str, options: str) -> None:
    done = shell(f"$TRACEQ show {options} {' '.join([trace] * 24)} | head -1")
    assert done.err == ""
    assert done.out.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        pytest.param("--version", marks=pytest.mark.slow),
        pytest.param("recipes", marks=pytest.mark.slow),
        "show FILE",
        pytest.param("show --json FILE", marks=pytest.mark.slow),
        pytest.param("diff FILE FILE", marks=pytest.mark.slow),
        "check FILE --rule kernels<0",
    ],
)
def test_a_command_whose_reader_is_gone_ends_quietly_and_does_not_say_good(trace: str, arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", PROGRAM, *(trace if word == "FILE" else word for word in arguments.split())]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_pipe_gets_no_escape_codes_even_from_a_colourful_environment(trace: str) -> None:
    assert "\x1b" not in shell(f"$TRACEQ show {trace} | cat", TERM="xterm-256color").out


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_terminal_of_any_width_shows_every_number_in_lines_that_fit(trace: str, columns: int) -> None:
    screen = on_terminal("show", "--only", "syncs", trace, columns=columns, NO_COLOR="1")
    lines = [line.rstrip() for line in screen.splitlines()]
    (row,) = (line for line in lines if line.startswith("dtoh"))
    assert len(row) <= columns
    for number in ("3", "211 us", "206 us"):
        assert number in row


def test_colour_is_for_terminals_and_no_color_is_obeyed(trace: str) -> None:
    arguments = ("show", "--only", "steps", trace)
    assert "\x1b[" in on_terminal(*arguments, columns=100, TERM="xterm-256color")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", on_terminal(*arguments, columns=100, TERM="xterm", NO_COLOR="1"))


@pytest.mark.parametrize("text", ["²", "", "1-", "a", "0-99999999999", "-1"])
def test_garbage_for_ranks_is_a_usage_error(trace: str, text: str) -> None:
    result = traceq("show", f"--ranks={text}", trace)
    assert result.code == 2
    assert result.err.startswith(f"traceq: --ranks {text}: ")


def test_a_file_of_another_rank_than_asked_for_is_refused(trace: str) -> None:
    result = traceq("show", "--ranks", "7", trace)
    assert result.code == 2
    assert result.err.startswith(f"traceq: {trace}: no trace of rank 7")
    assert result.err.endswith("; expected rank 0\n")


def test_the_step_with_stacks_of_a_recording_names_the_trace_to_show_and_has_no_findings() -> None:
    arm = FIXTURES / "outlier_ab" / "on"
    shown = traceq("show", arm / "rank0.stacks.json.gz")
    assert shown.code == 0
    (note,) = (line for line in shown.err.splitlines() if line.startswith(f"traceq: note: {arm}/rank0.stacks.json.gz"))
    assert f"show {arm}/rank0.json.gz instead" in note
    assert "\n1  " not in shown.out
    assert "\n1  " in traceq("show", arm / "rank0.json.gz").out


@pytest.mark.parametrize("path", ["outlier_ab", "outlier_ab/on", "example/job"])
def test_ranks_that_a_recording_does_not_have_are_refused(path: str) -> None:
    refused = traceq("show", FIXTURES / path, "--ranks", "7")
    assert (refused.code, refused.out) == (2, "")
    assert ": no trace of rank 7; " in refused.err
    assert refused.err.endswith(" ranks 0-1\n")


def test_a_folder_with_a_folder_of_runs_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "traceq-runs" / "train").mkdir(parents=True)
    refused = traceq("show", tmp_path)
    assert refused.code == 1
    assert refused.err.endswith(f" recorded runs: {tmp_path}/traceq-runs\n")


def test_control_characters_in_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    events = [launch(1, 2, 1), kernel("\x1b[31mred\n", 10, 5, 1)]
    out = traceq("show", str(write(tmp_path / "trace.json", *events))).out
    assert "[31mred" in out
    assert "\x1b" not in out


def test_the_width_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", *one_step(0, 0), *one_step(1, 1000))
    shown = traceq("show", path, "--width", "60")
    assert shown.code == 0
    tables = [line for line in shown.out.splitlines() if "  " in line.strip() and not line.startswith(("  ", "*"))]
    assert 40 < max(map(len, tables)) <= 60


def test_five_steps_make_a_curve(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", *(step(100 * n, 100 if n != 3 else 99, n) for n in range(5)))
    assert "█████" in traceq("show", path, "--only", "steps").out


def test_a_folder_of_runs_is_listed_with_what_each_asked_and_its_result(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "outlier_ab", tmp_path / "runs" / "first")
    shutil.copytree(FIXTURES / "outlier_ab", tmp_path / "runs" / "second")
    (tmp_path / "runs" / "second" / "run.json").write_text("{")
    (tmp_path / "runs" / "notes").mkdir()
    rows = {row["run"]: row for row in json.loads(traceq("show", tmp_path / "runs", "--json").out)["runs"]}
    assert rows.keys() == {"first", "second"}
    manifest = json.loads((FIXTURES / "outlier_ab" / "run.json").read_text())
    assert rows["first"]["question"] == (manifest["question"] or manifest["recipe"])
    assert rows["first"]["started"] == manifest.get("started", "").replace("T", " ").removesuffix("Z")
    verdict = json.loads(traceq("diff", FIXTURES / "outlier_ab", "--json").out)["diffs"][0]["verdict"]["state"]
    assert verdict.replace("_", " ") in rows["first"]["result"]
    assert rows["second"]["status"] == "unreadable"
    text = traceq("show", tmp_path / "runs", "--width", "160")
    assert (text.code, text.err) == (0, "")
    assert "2 recorded runs" in text.out


def test_what_a_recording_lacks_is_no_option_of_it() -> None:
    assert "Not in a recording" not in traceq("show", FIXTURES / "outlier_ab").out
    out = traceq("show", FIXTURES / "outlier_ab", "--full").out
    assert "profile_memory=True" in out.partition("Not in a recording of traceq: ")[2]


def test_a_path_alone_is_shown() -> None:
    job = FIXTURES / "example" / "job"
    assert traceq(job).out == traceq("show", job).out
    assert "no such file" in traceq("missing.json.gz").err
