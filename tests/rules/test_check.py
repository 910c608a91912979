"""`traceq check`: what a rule says, what it comes to on a trace, and what must not pass by accident."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from builder import annotation, build, call, comms, frame, kernel, launch, memcpy, op, step, world, write
from golden_files import UPDATE
from paths import DOCS, FIXTURES, TRACES
from terminal import traceq

from traceq.cli import main
from traceq.errors import UnreadableInput, UsageFault
from traceq.model import Arm, Manifest, Run, Trace
from traceq.rules.evaluate import Contribution, RuleOutcome, judge_run
from traceq.rules.messages import annotation as github
from traceq.rules.messages import line
from traceq.rules.parse import Measure, parse, read_rules
from traceq.runs.run_folder import RunFolder

DOC = DOCS / "check.md"
Event = dict[str, Any]
Shell = Callable[..., tuple[int, str, str]]


def one_step(start: int, number: int, *, item: bool = True) -> list[Event]:
    """1000 us: a kernel and, with `item`, a DtoH copy that is waited for; then an all-reduce and another kernel."""
    corr = 10 * number
    waited = [
        frame("model.py(41): forward", start + 295, 110),
        op("aten::_local_scalar_dense", start + 300, 100),
        call("cudaMemcpyAsync", start + 305, 10, corr + 2),
        memcpy("DtoH (Device -> Pageable)", start + 310, 10, corr + 2, size=4),
        call("cudaStreamSynchronize", start + 316, 60),
    ]
    return [
        step(start, 1000, number),
        annotation("## forward ##", start, 500),
        annotation("## backward ##", start + 500, 500),
        launch(start + 10, 5, corr + 1),
        kernel("gemm", start + 20, 200, corr + 1),
        *(waited if item else []),
        comms("allreduce", start + 600, 20, (1000, 1000)),
        launch(start + 605, 5, corr + 3),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start + 620, 100, corr + 3),
        launch(start + 725, 5, corr + 4),
        kernel("gemm_backward", start + 730, 200, corr + 4),
    ]


def gpu_events(*, item: bool = True, extra: int = 0) -> list[Event]:
    """Two steps; windows of 930 and 1000 us. `extra` kernels at the end of the last forward."""
    more = [
        event
        for index in range(extra)
        for event in (launch(1400 + 10 * index, 2, 100 + index), kernel("fill", 1405 + 10 * index, 3, 100 + index))
    ]
    return [*one_step(0, 1, item=item), *one_step(1000, 2, item=item), *more]


def cpu_events(*, item: bool = False) -> list[Event]:
    read = [op("aten::_local_scalar_dense", 50, 2)] if item else []
    return [step(0, 100), annotation("forward", 0, 60), annotation("backward", 60, 40), op("aten::mm", 1, 40), *read]


def run_of(*traces: Trace) -> Run:
    return Run("job", traces)


def outcome(rule: str, *traces: Trace) -> RuleOutcome:
    return judge_run(run_of(*traces), [parse(rule)])[0]


def reason(rule: str, *traces: Trace) -> str:
    """Why a rule has no answer."""
    result = outcome(rule, *traces)
    assert result.state == "cannot tell"
    return result.unanswered


def value(metric: str, trace: Trace, unit: str = "") -> Fraction:
    """What a metric comes to: the value of a rule that cannot hold."""
    result = outcome(f"{metric} == 123456789{unit}", trace)
    return result.breaches[0].value


@pytest.fixture(scope="module")
def gpu() -> Trace:
    return build(*gpu_events())


@pytest.fixture(scope="module")
def cpu() -> Trace:
    return build(*cpu_events(item=True))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """`traceq check ARGUMENT...` -> exit code, stdout, stderr."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("COLUMNS", "400")

    def check(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["traceq", "check", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return check


# The grammar.


@pytest.mark.parametrize(
    ("text", "metric", "statistic", "phase", "per_step", "comparison", "bound", "measure"),
    [
        ("dtoh == 0", "dtoh", "mean", "", False, "==", 0, Measure.COUNT),
        ("dtoh in forward == 0", "dtoh", "mean", "forward", False, "==", 0, Measure.COUNT),
        ("  all_gather in  ## forward ##  per step<=1.5 ", "all_gather", "mean", "## forward ##", True, "<=",
         Fraction(3, 2), Measure.COUNT),
        ('dtoh in "a < b per step" != 1', "dtoh", "mean", "a < b per step", False, "!=", 1, Measure.COUNT),
        ("exposed_comm < 5 %", "exposed_comm", "mean", "", False, "<", Fraction(1, 20), Measure.SHARE),
        ("exposed_comm<0.1%", "exposed_comm", "mean", "", False, "<", Fraction(1, 1000), Measure.SHARE),
        ("step p95 >= 1.5ms", "step", "p95", "", False, ">=", 1_500_000, Measure.NS),
        ("host_bound max in step per step > 2 s", "host_bound", "max", "step", True, ">", 2 * 10**9, Measure.NS),
        ("sync_cost == 0", "sync_cost", "mean", "", False, "==", 0, Measure.NS),
        ("all_reduce < 1 GiB", "all_reduce", "mean", "", False, "<", 2**30, Measure.BYTES),
        ("all_reduce < 1 GB", "all_reduce", "mean", "", False, "<", 10**9, Measure.BYTES),
    ],
)  # fmt: skip
def test_a_rule_says(
    text: str, metric: str, statistic: str, phase: str, per_step: bool, comparison: str, bound: Any, measure: Measure
) -> None:
    rule = parse(text)
    parsed = (rule.metric, rule.statistic, rule.phase, rule.per_step, rule.comparison, rule.bound, rule.measure)
    assert parsed == (metric, statistic, phase, per_step, comparison, bound, measure)


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("dtho == 0", "'dtho'", "'dtoh'?"),
        ("allgather == 0", "'allgather'", "'all_gather'?"),
        ("exposed-comm < 5 %", "'exposed-comm'", "'exposed_comm'?"),
        ("xyz == 0", "'xyz'", "a metric: dtoh htod stream"),
        ("== 0", "no metric", "a metric: dtoh"),
        ("dtoh", "no comparison", "== != <= < >= >"),
        ("dtoh = 0", "'='", "== != <= < >= >"),
        ("dtoh ==", "no number", "(2 GiB)"),
        ("dtoh == -1", "'-1'", "(2 GiB)"),
        ("dtoh == 3 ms", "'3 ms'", "(2 GiB)"),
        ("step < 3", "'3'", "(5 %)"),
        ("all_gather < 3 gib", "'gib'", "'GiB'?"),
        ("step < 3 weeks", "'weeks'", "a unit: ns us ms s B KiB MiB GiB kB MB GB %"),
        ("dtoh max == 0", "'max'", "none: dtoh is a sum"),
        ("sync_cost p95 < 3 ms", "'p95'", "none: sync_cost is a sum"),
        ("step p96 < 3 ms", "'p96'", "[mean|median|p95|max|min]"),
        ("dtoh per step in forward == 0", "'per step in forward'", "[mean|"),
        ("dtoh in == 0", "'in'", "[mean|"),
        ("copies in forward == 0", "'in forward'", "none: copies has no phases"),
    ],
)
def test_what_is_no_rule_is_answered_with_what_was_expected(text: str, part: str, expected: str) -> None:
    with pytest.raises(UsageFault) as fault:
        parse(text)
    where, _, answer = str(fault.value).partition("; expected ")
    assert where == f"rule '{text}': found {part}"
    assert expected in answer
    assert fault.value.exit_code == 2


# What a metric comes to.


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("dtoh", 2),
        ("dtoh in forward", 2),
        ("dtoh in ## forward ##", 2),
        ("dtoh in backward", 0),
        ("dtoh per step", 1),
        ("htod", 0),
        ("syncs", 2),
        ("dtoh_copies", 2),
        ("copies", 2),
        ("all_reduce", 2),
        ("all_reduce in backward per step", 1),
        ("all_gather", 0),
        ("collectives", 2),
        ("kernels", 6),
        ("kernels in forward", 2),
        ("gpu_ops", 8),
        ("gpu_ops in forward per step", 2),
    ],
)
def test_counts_are_of_the_whole_trace(gpu: Trace, metric: str, expected: int) -> None:
    assert value(metric, gpu) == expected


@pytest.mark.parametrize(
    ("metric", "expected_us"),
    [
        ("step", 965),
        ("step max", 1000),
        ("step min", 930),
        ("step median", 965),
        ("step p95", 1000),
        ("compute", 400),
        ("compute in forward", 200),
        ("exposed_comm", 100),
        ("exposed_memcpy", 10),
        ("gpu_busy", 510),
        ("gpu_busy in backward", 300),
    ],
)
def test_times_are_of_a_step(gpu: Trace, metric: str, expected_us: int) -> None:
    assert value(metric, gpu, "us") == 1000 * expected_us


def test_phases_add_up_to_the_step(gpu: Trace) -> None:
    phases = ("forward", "backward", "other", "before_window", "unattributed")
    assert sum(value(f"step in {phase}", gpu, "ns") for phase in phases) == value("step", gpu, "ns")


def test_shares_are_of_the_whole_step(gpu: Trace) -> None:
    assert value("exposed_comm", gpu, "%") == Fraction(200, 1930)
    assert value("gpu_busy in backward", gpu, "%") == Fraction(600, 1930)
    assert value("exposed_comm max", gpu, "%") == Fraction(100, 930)


def test_the_cost_of_syncs_is_of_a_step(gpu: Trace) -> None:
    """Copy and synchronize block for 71 us of each step; the device then idles for longer than that."""
    assert value("sync_cost in forward", gpu, "us") == 71_000
    assert value("sync_cost", gpu, "%") == Fraction(2 * 71, 1930)


def test_bytes_are_those_of_the_larger_side(gpu: Trace) -> None:
    assert value("all_reduce", gpu, "B") == 8000
    assert value("all_reduce per step", gpu, "B") == 4000
    assert value("dtoh", gpu, "B") == 8


def test_the_partial_first_window_is_in_counts_and_not_in_times() -> None:
    earlier = kernel("gemm", -50, 60)
    trace = build(earlier, *gpu_events(), origin=1000)
    assert value("kernels", trace) == 7
    assert value("step", trace, "us") == 1_000_000


def test_p95_is_the_nearest_rank() -> None:
    lengths = [100 + index for index in range(20)]
    starts = [sum(lengths[:index]) for index in range(20)]
    trace = build(*(step(start, dur, n) for n, (start, dur) in enumerate(zip(starts, lengths, strict=True))))
    assert value("step p95", trace, "us") == 118_000


def test_a_comparison_is_exact_and_says_every_digit_where_rounding_would_hide_it(gpu: Trace) -> None:
    assert outcome("step <= 965 us", gpu).holds
    assert line(outcome("step < 965 us", gpu)).startswith("BROKEN step < 965 us: 965 us on rank 0")
    assert line(outcome("step == 965.01 us", gpu)) == "BROKEN step == 965.01 us: 965,000 ns on rank 0"


# What broke it.


def test_a_broken_rule_names_op_and_line(gpu: Trace) -> None:
    (breach,) = outcome("dtoh in forward == 0", gpu).breaches
    assert (breach.rank, breach.value) == (0, 2)
    line = "model.py:41 forward"
    assert breach.causes == (Contribution(f"aten::_local_scalar_dense at {line}", Fraction(2), line),)


def test_a_broken_rule_names_the_three_largest_causes() -> None:
    result = outcome("kernels < 6", build(*gpu_events(extra=5)))
    (breach,) = result.breaches
    assert [(each.value, each.name) for each in breach.causes] == [
        (5, "fill in ## forward ##"),
        (2, "gemm in ## forward ##"),
        (2, "gemm_backward in ## backward ##"),
    ]
    assert (breach.value, breach.num_more_causes) == (11, 1)
    assert line(result).startswith("BROKEN kernels < 6: 11 on rank 0 (5 fill ")
    assert line(result).endswith(", 1 more)")


def test_a_value_that_is_too_small_has_no_causes(gpu: Trace) -> None:
    assert line(outcome("gpu_busy > 80 %", gpu)) == "BROKEN gpu_busy > 80 %: 52.8 % on rank 0"


def test_a_cause_that_repeats_the_metric_is_left_out(gpu: Trace) -> None:
    assert line(outcome("dtoh_copies == 0", gpu)) == "BROKEN dtoh_copies == 0: 2 on rank 0"


# Ranks.


def rank(number: int, *, extra: int = 0) -> Trace:
    return build(*gpu_events(extra=extra), **world(number, 3))


def test_a_rule_must_hold_on_every_rank_and_the_worst_is_shown() -> None:
    ranks = rank(0), rank(1, extra=1), rank(2, extra=4)
    result = outcome("kernels in forward <= 2", *ranks)
    assert [(breach.rank, breach.value) for breach in result.breaches] == [(2, 6), (1, 3)]
    assert [(each.value, each.name) for each in result.breaches[0].causes] == [(4, "fill"), (2, "gemm")]
    assert line(result).endswith("; also broken on rank 1")
    assert outcome("kernels in forward <= 6", *ranks).holds


# What must not pass by accident.


@pytest.mark.parametrize("metric", ["dtoh", "htod", "stream", "event", "device"])
def test_a_wait_for_a_device_cannot_be_counted_without_one(cpu: Trace, metric: str) -> None:
    assert "; use 'scalar in forward == 0'" in reason(f"{metric} in forward == 0", cpu)


@pytest.mark.parametrize("rule", ["alloc == 0", "kernels == 0", "copies == 0", "host_bound < 1 ms", "sync_cost == 0"])
def test_a_device_metric_has_no_answer_without_a_device(cpu: Trace, rule: str) -> None:
    assert reason(rule, cpu).endswith("has no device work")


def test_without_a_device_reads_of_scalars_are_counted(cpu: Trace) -> None:
    assert value("scalar in forward", cpu) == value("syncs", cpu) == 1
    assert value("step in forward", cpu, "us") == 60_000
    assert outcome("scalar in other == 0", cpu).holds


@pytest.mark.parametrize("rule", ["scalar in forward == 0", "python < 1 ms"])
def test_a_metric_of_cpu_traces_has_no_answer_on_a_device(gpu: Trace, rule: str) -> None:
    assert "only traces without device work" in reason(rule, gpu)


def test_an_unknown_phase_is_answered_with_those_there_are(gpu: Trace) -> None:
    mistyped, unknown = (reason(f"dtoh in {phase} == 0", gpu) for phase in ("forwad", "xyz"))
    assert re.search(r"'forwad'; .* 'forward'\? .* ## forward ##, ## backward ##,", mistyped)
    assert re.search(r"'xyz'; [^'?]* ## forward ##, ## backward ##,", unknown)


def test_kernels_of_collectives_without_calls_are_not_zero_calls() -> None:
    trace = build(*(event for event in gpu_events() if event["name"] != "record_param_comms"))
    assert "2 kernels of collectives" in reason("all_reduce == 0", trace)


def test_bytes_that_the_trace_does_not_tell_are_not_zero() -> None:
    trace = build(*cpu_events(), annotation("gloo:all_reduce", 10, 5))
    assert value("all_reduce", trace) == 1
    assert "sizes of its all_reduce calls" in reason("all_reduce < 1 GiB", trace)


def test_one_rank_without_collectives_has_none_of_them() -> None:
    alone = build(step(0, 100), op("aten::mm", 1, 40))
    assert outcome("all_gather == 0", alone).holds
    assert not outcome("all_gather > 0", alone).holds


def test_a_run_without_traces_is_no_pass() -> None:
    with pytest.raises(UnreadableInput, match="no traces"):
        judge_run(run_of(), [parse("dtoh == 0")])


# The command.


def test_exit_codes(shell: Shell, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json.gz", *gpu_events())
    assert shell(trace, "--rule", "htod == 0") == (0, "ok     htod == 0\n", "")
    code, out, err = shell(trace, "--rule", "dtoh == 0", "--rule", "htod == 0")
    assert (code, err) == (3, "traceq: 1 of 2 rules broken\n")
    assert [text.split()[0] for text in out.splitlines()] == ["BROKEN", "ok"]
    assert shell(trace, "--rule", "dtho == 0")[0] == 2
    assert shell(trace)[0] == 2
    assert shell(trace, "--rule", "dtoh in nowhere == 0")[0] == 1
    assert shell(tmp_path / "absent.json", "--rule", "dtoh == 0")[0] == 1


def test_a_trace_that_ends_early_cannot_pass(shell: Shell, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", *gpu_events(item=False))
    trace.write_bytes(trace.read_bytes()[:-200])
    code, out, err = shell(trace, "--rule", "dtoh == 0")
    assert (code, out) == (1, "")
    assert str(trace) in err


def test_a_folder_with_two_of_eight_ranks_cannot_pass(shell: Shell, tmp_path: Path) -> None:
    for rank in (0, 3):
        write(tmp_path / f"rank{rank}.json", *gpu_events(), **world(rank, 8))
    code, out, err = shell(tmp_path, "--rule", "htod == 0", "--rule", "collectives identical across ranks")
    assert (code, err) == (1, "traceq: 2 of 2 rules cannot be told\n")
    assert [text.partition(": ")[0] for text in out.splitlines()] == [
        "CANNOT TELL htod == 0",
        "CANNOT TELL collectives identical across ranks",
    ]
    assert "traces of 2 of its 8 ranks" in out
    code, out, _ = shell(tmp_path, "--rule", "htod == 0", "--rule", "dtoh == 0")  # a missing rank mends no other
    assert (code, [text.split()[0] for text in out.splitlines()]) == (3, ["CANNOT", "BROKEN"])


def test_a_recording_with_a_missing_rank_cannot_pass(shell: Shell, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    phases = ("## forward ##", "## backward ##")
    run.write_manifest(Manifest(1, "id", "r", "?", {}, (Arm("on", "", baseline=True),), phases, 2, 0, "complete"))
    trace = write(run.trace("on", 0), *gpu_events(), **world(0, 2))
    code, out, _ = shell(tmp_path, "--rule", "htod == 0")
    assert code == 1
    assert "traces of 1 of its 2 ranks" in out
    assert shell(trace, "--rule", "htod == 0")[0] == 0
    write(run.trace("on", 1), *gpu_events(), **world(1, 2))
    assert shell(tmp_path / "on", "--rule", "htod == 0")[0] == 0


def test_exposed_communication_of_several_ranks_is_waits_and_transfers(shell: Shell) -> None:
    code, out, _ = shell(FIXTURES / "example" / "job", "--rule", "exposed_comm < 1 ms")
    assert code == 3
    assert out.startswith("BROKEN exposed_comm < 1 ms: 1.38 ms on rank 0 (")
    parts = [("700", "exposed_transfer"), ("682", "exposed_wait")]
    assert re.findall(r"(\d+) us (exposed_\w+) in backward", out) == parts


def test_each_line_names_its_path_where_there_are_several(shell: Shell, tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.json", *gpu_events(item=name == "a")) for name in "ab")
    code, out, _ = shell(a, b, "--rule", "dtoh in forward == 0")
    assert code == 3
    assert out.splitlines()[0].startswith(f"BROKEN {a}: dtoh in forward == 0: 2 on rank 0 (")
    assert out.splitlines()[1] == f"ok     {b}: dtoh in forward == 0"


def test_github_gets_an_annotation_a_broken_rule(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write(tmp_path / "trace.json", *gpu_events())
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, out, _ = shell(trace, "--rule", "htod == 0", "--rule", "gpu_busy > 80 %")
    assert out.splitlines()[2].startswith(f"::error title=traceq check::{trace}: ")
    assert out.splitlines()[2].endswith(": gpu_busy > 80 %25: 52.8 %25 on rank 0")
    assert out.count("::error") == 1


def test_a_name_in_a_trace_cannot_give_github_a_command() -> None:
    trace = build(step(0, 100), launch(1, 2, 1), kernel("a\n::set-output name=x::y\r", 5, 3, 1))
    result = outcome("kernels == 0", trace)
    assert "\n" not in line(result)
    assert "\r" not in line(result)
    command = github(result, "a\nb")
    assert command.startswith("::error title=traceq check::a%0Ab: kernels == 0: ")
    assert " a\ufffd::set-output name=x::y\ufffd in " in command
    assert not {"\n", "\r"} & set(command)


# The file.


def test_a_file_holds_rules_and_their_reasons(tmp_path: Path, gpu: Trace) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('rules = ["htod == 0"]\n[[rule]]\nrule = "dtoh == 0"\nwhy = "it stops the launches"\n')
    plain, explained = read_rules(path)
    assert (plain.text, plain.why, explained.text, explained.why) == (
        "htod == 0",
        "",
        "dtoh == 0",
        "it stops the launches",
    )
    assert line(judge_run(run_of(gpu), [explained])[0]).endswith("; it stops the launches")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('rule = ["dtoh == 0"]', "expected rules ="),
        ('rules = "dtoh == 0"', "expected rules ="),
        ("rules = [0]", "expected rules ="),
        ("[[rule]]\nwhy = 'x'", "expected rules ="),
        ("[[rule]]\nrule = 'dtoh == 0'\nwhen = 'x'", "expected rules ="),
        ("limits = ['dtoh == 0']", "found 'limits'; expected rules ="),
        ("", "expected rules ="),
        ("rules = [", "expected TOML"),
        ("rules = ['dtho == 0']", "rules.toml: rule 'dtho == 0': "),
    ],
)
def test_a_file_that_holds_no_rules_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(content)
    with pytest.raises(UsageFault, match=re.escape(complaint)):
        read_rules(path)


def test_an_absent_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"rules\.toml: No such file"):
        read_rules(tmp_path / "rules.toml")


# The page, and a real trace.


def test_every_example_of_the_page_does_what_the_page_says(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", DOC.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    write(Path("trace.json.gz"), *gpu_events())
    write(Path("cpu.json.gz"), *cpu_events())
    Path("src").mkdir()
    Path("src/model.py").write_text("def forward(x):\n" + "    x = x + 1\n" * 40)
    for number, extra in enumerate((0, 1, 4)):
        write(Path(f"ranks/rank{number}.json.gz"), *gpu_events(extra=extra), **world(number, 3))
    for number in range(3):
        wrong = [
            row | {"args": row["args"] | {"In msg nelems": 2000, "Out msg nelems": 2000}}
            if number == 1 and row["name"] == "record_param_comms" and row["ts"] > 1000
            else row
            for row in gpu_events()
        ]
        write(Path(f"desync/rank{number}.json.gz"), *wrong, **world(number, 3))
    Path("rules.toml").write_text(next(body for kind, body in blocks if kind == "toml"))
    examples = [body for kind, body in blocks if kind == "console"]
    assert len(examples) >= 6
    for body in examples:
        output, code = "", 0
        for command in re.findall(r"^\$ (.*)$", body, re.MULTILINE):
            output += f"$ {command}\n"
            if command == "echo $?":
                output += f"{code}\n"
                continue
            program, name, *arguments = shlex.split(command)
            assert (program, name) == ("traceq", "check")
            code, out, err = shell(*arguments)
            output += out + err
        if UPDATE:
            DOC.write_text(DOC.read_text("utf-8").replace(body, output), "utf-8")
        else:
            assert output == body


def test_the_textbook_removal_of_syncs_is_seen(shell: Shell) -> None:
    folder = TRACES / "ep-moe-b200-ab"
    if not folder.is_dir():
        pytest.skip(f"no {TRACES}")
    code, out, _ = shell(folder / "ref.json.gz", "--rule", "dtoh in forward == 0", "--rule", "dtoh_copies == 30")
    causes = "10 aten::_local_scalar_dense, 10 aten::copy_"
    assert (code, out.splitlines()) == (
        3,
        [f"BROKEN dtoh in forward == 0: 20 on rank 0 ({causes})", "ok     dtoh_copies == 30"],
    )
    assert shell(folder / "syncless.json.gz", "--rule", "dtoh in forward == 0")[0] == 0


PRODUCT = {"Input Dims": [[1000, 500], [500, 1000]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}


@pytest.mark.parametrize(
    ("rule", "code", "text"),
    [
        ("mfu >= 0.1", 0, "ok     mfu >= 0.1"),
        ("mfu >= 9 %", 0, "ok     mfu >= 9 %"),
        ("hfu < 0.4", 0, "ok     hfu < 0.4"),
        ("mfu >= 0.4", 3, "BROKEN mfu >= 0.4: 10.0 % on rank 0"),
    ],
)
def test_utilisation_is_checked_as_a_share_of_the_peak(rule: str, code: int, text: str, tmp_path: Path) -> None:
    rows = step(0, 10_000), op("aten::mm", 0, 10, **PRODUCT), launch(1, 1, corr=1), kernel("gemm", 100, 2000, corr=1)
    path = write(tmp_path / "trace.json", *rows)
    done = traceq("check", str(path), "--rule", rule, "--peak", "bf16=0.99999999", "--peak", "memory=100")
    assert (done.code, done.out.splitlines()[0]) == (code, text)


def test_utilisation_without_peaks_or_shapes_has_no_answer(tmp_path: Path) -> None:
    rows = step(0, 10_000), op("aten::mm", 0, 10, **PRODUCT), launch(1, 1, corr=1), kernel("gemm", 100, 2000, corr=1)
    done = traceq("check", str(write(tmp_path / "trace.json", *rows)), "--rule", "mfu >= 0.1")
    assert (done.code, "give them with --peak" in done.out) == (1, True)
    bare = write(tmp_path / "bare.json", step(0, 10_000), launch(1, 1, corr=1), kernel("gemm", 100, 2000, corr=1))
    done = traceq("check", str(bare), "--rule", "mfu >= 0.1", "--peak", "bf16=1")
    assert (done.code, "record_shapes=True" in done.out) == (1, True)
