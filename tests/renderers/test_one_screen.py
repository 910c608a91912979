"""Reports on one screen: at most 40 lines at 100 columns, the answer first, places in the source never cut."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from catalogue import FILES, JOBS, sheet_of
from claims import rows_of
from paths import FIXTURES, TRACES
from terminal import on_terminal, traceq

from traceq.claims.claim import Basis, Claim
from traceq.claims.rules import judged
from traceq.compare.diff import diff, diff_run
from traceq.compare.result import Diffs
from traceq.compare.tables import causes_table
from traceq.renderers.diff_text import print_diffs
from traceq.renderers.limits import LINE_WIDTH, SCREEN_LINES
from traceq.renderers.one_screen import print_screen
from traceq.renderers.text import open_console, print_table
from traceq.report import Column, Report, Sheet, Source, StepTime, Table
from traceq.units import Unit

OURS = [pytest.param(path, id=path.name) for path in (*sorted(FIXTURES.glob("example/*")), FIXTURES / "outlier_ab")]
QUICK = 1
PAIRS = [
    ("ep-moe-b200-ab/ref.json.gz", "ep-moe-b200-ab/syncless.json.gz"),
    ("resnet50-2021/workers0.json.gz", "resnet50-2021/workers4.json.gz"),
    ("sam-a100-ab/compile_false.json.gz", "sam-a100-ab/compile_true.json.gz"),
    ("hta-diff/control-a100-rank3.json.gz", "hta-diff/test-v100-rank1.json.gz"),
    ("torchrec-v100-ab/a", "torchrec-v100-ab/b"),
    ("owlv2/h100.json.gz", "owlv2/mi300.json.gz"),
    ("nanogpt-h100-8r/rank0.json.gz", "nanogpt-h100-8r/rank1.json.gz"),
    ("dlrm-v100-8r/rank0.json.gz", "dlrm-v100-8r/rank5.json.gz"),
    ("inference/vllm-piecewise-mi300.json.gz", "inference/sglang-prefill-decode-mi300.json.gz"),
    ("cuda-sync/alexnet.json.gz", "cuda-sync/multi-stream.json.gz"),
    ("ddp-a100/rank0.json.gz", "resnet-ddp-mi300/rank0.json.gz"),
    ("hta-groups/sampled-rank0.json.gz", "hta-groups/no-device-rows.json.gz"),
]


def screen(result: Sheet, width: int) -> str:
    file = StringIO()
    print_screen(result, open_console(file, width, is_terminal=True))
    return re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())


@pytest.mark.parametrize("path", [*(path for path in OURS if path.values[0].is_dir()), *FILES, *JOBS])
def test_a_report_is_one_screen_and_cuts_no_line_number(path: Path) -> None:
    result = sheet_of(path)
    assert screen(result, 100).count("\n") <= SCREEN_LINES
    narrow = screen(result, 80)
    assert max(map(len, narrow.splitlines())) <= 80 + 1  # a word as long as the path of a trace
    for view in (view for report in result.reports for view in report.first or report.views):
        check_lines(view, narrow)


def test_a_shortened_table_keeps_the_longest_phases_and_names_the_analysis_that_has_the_others() -> None:
    result = sheet_of(FIXTURES / "outlier_ab" / "off")
    text = screen(result, 100)
    lines = text.partition("An unprofiled step, by phase")[2].partition("left out: ")[0].splitlines()[2:-2]
    phases, ns = [line.split()[0] for line in lines], dict[str, int]()
    for row in rows_of(result, "step_phases"):
        ns[row["phase"]] = ns.get(row["phase"], 0) + row["mean_ns"]
    assert 3 < len(phases) < len(ns)  # how many depends on the length of the path in the header
    assert set(phases) == set(sorted(ns, key=lambda name: -ns[name])[: len(phases)])
    named = re.findall(r"left out: --only (\w+)", text)
    assert named
    assert set(named) <= {report.name for report in result.reports}


@pytest.mark.parametrize(("name", "is_lost"), [("no_device_rows.json", True), ("groups.json", False)])
def test_a_trace_without_rows_of_its_device_says_first_that_no_bottleneck_is_known(name: str, is_lost: bool) -> None:
    _, _, third, *_ = screen(sheet_of(FIXTURES / "kinds" / name), 200).splitlines()
    assert third.startswith("What the device does ") == is_lost


def check_lines(view: Table, narrow: str) -> None:
    """Each `file.py:LINE` of a table on a narrow screen is there, of a long name the end."""
    index = next((index for index, column in enumerate(view.columns) if column.key == "line"), None)
    if index is None or f"\n{view.title}\n" not in narrow:
        return
    table = narrow.partition(f"\n{view.title}\n")[2].partition("\n\n")[0]
    for row in view.rows[: len(table.splitlines()) - 3]:
        place = str(row[index]).partition(" ")[0].rpartition("/")[2]
        assert place[-LINE_WIDTH:] in table or " line" not in table.partition("\n")[0]


def test_texts_that_would_be_cut_alike_are_cut_before_their_first_difference() -> None:
    names = ["aten::cudnn_convolution_backward_weight", "aten::cudnn_convolution_backward_input", "aten::mm"]
    table = Table("ops", "", (Column("op", "op"), Column("ns", "time", Unit.NS)), tuple((name, 5) for name in names))
    file = StringIO()
    print_table(table, open_console(file, 30, is_terminal=False))
    assert [line.split()[0] for line in file.getvalue().splitlines()[1:]] == [
        "aten::cudnn_con…weight",
        "aten::cudnn_conv…input",
        "aten::mm",
    ]


def test_a_line_of_a_generated_file_is_shortened_from_the_left_before_it_is_hidden() -> None:
    """Inductor names files by hashes of 50 characters."""
    columns = Column("op", "op"), Column("line", "line"), Column("phase", "phase"), Column("ns", "time", Unit.NS)
    line = f"torchinductor_root/m3/{'c' * 40}lknhzkdl5ha.py:1234 call"
    table = Table("idle", "", columns, (("vllm::moe_forward", line, "forward", 5), ("aten::mm", "a.py:7 f", "loss", 6)))
    file = StringIO()
    print_table(table, open_console(file, 70, is_terminal=False))
    first, second = (text.split()[1] for text in file.getvalue().splitlines()[1:])
    assert first.startswith("…ccc")
    assert first.endswith("lknhzkdl5ha.py:1234")
    assert second == "a.py:7"
    assert "Hidden" not in file.getvalue()


def test_the_first_screen_is_what_matters_and_full_is_all() -> None:
    short, full = (traceq("show", *options, FIXTURES / "outlier_ab" / "on").out for options in ((), ("--full",)))
    assert "An unprofiled step, by phase" in short
    assert "\nSteps\n" not in short  # of two profiled steps, beside a hundred that are not
    assert "\nSteps\n" in full
    assert "Host ops by self time" in full
    assert full.count("\n") > 2 * short.count("\n")
    assert re.search(r"\nNext: .*--full \(\d+ more tables\).*\n$", short)
    only = traceq("show", "--only", "host", FIXTURES / "outlier_ab" / "on").out
    assert "Host ops by self time" in only
    assert "Next:" not in only


@pytest.mark.parametrize("words", [("show", "outlier_ab/on"), ("show", "example/job"), ("diff", "outlier_ab")])
def test_sentences_are_wrapped_to_a_width_that_is_asked_for_and_else_are_lines(words: tuple[str, str]) -> None:
    command, path = words
    lines = traceq(command, FIXTURES / path, *(["--full"] if command == "show" else [])).out.splitlines()
    wrapped = traceq(command, FIXTURES / path, "--width", "60").out.splitlines()
    assert max(map(len, lines)) > 140
    assert max(len(line) for line in wrapped if "/" not in line) <= 60  # no path is broken


def test_names_of_ops_are_hidden_before_they_are_cut_to_pieces() -> None:
    lines = traceq("show", FIXTURES / "outlier_ab" / "on", "--only", "lines", "--width", "60").out
    assert "Hidden at this width: ops" in lines
    assert "…" not in lines


def test_a_terminal_of_40_columns_is_no_error() -> None:
    assert "phase" in on_terminal("show", str(FIXTURES / "outlier_ab" / "on"), columns=40)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=pair[0].partition("/")[0], marks=[] if number < QUICK else [pytest.mark.slow])
        for number, pair in enumerate(PAIRS)
    ],
)
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")
def test_a_comparison_is_one_screen_and_cuts_no_line_number(pair: tuple[str, str]) -> None:
    result = diff(*(TRACES / name for name in pair))
    diffs = Diffs(result.a_name, (result,))
    assert printed(diffs, 100).count("\n") <= SCREEN_LINES
    check_lines(causes_table(result, width=80, top=5), printed(diffs, 80))


def test_a_comparison_of_arms_is_one_screen() -> None:
    assert printed(diff_run(str(FIXTURES / "outlier_ab")), 100).count("\n") <= SCREEN_LINES


def printed(diffs: Diffs, width: int) -> str:
    file = StringIO()
    print_diffs(diffs, open_console(file, width, is_terminal=True))
    return re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())


def test_of_a_table_without_rows_its_note_is_printed_without_headings() -> None:
    file = StringIO()
    table = Table("facts", "Facts", (Column("arm", "arm"),), (), note="moments: float32 in all arms.")
    print_table(table, open_console(file, 80, is_terminal=False))
    assert file.getvalue() == "Facts\n  moments: float32 in all arms.\n"


def a_sheet(*findings: Claim) -> Sheet:
    source = Source("job", 1, (0,), 1, "cuda", "", traced=StepTime(10e6, 10e6, 10e6, 1))
    return Sheet(source, (Report("found", findings=findings),))


def test_leads_are_by_what_the_step_gains_and_what_questions_the_rest_is_first() -> None:
    waits = Claim("x_late", 8_000_000, lead="rank 1 late", gain=(200_000, 300_000), severity="high")
    sync = Claim("x_sync", 900_000, lead="sync at a.py:3: remove it", gain=(900_000, 900_000), severity="high")
    bound = Claim("x_device_bound", 9_700_000, lead="device-bound", severity="low")
    cold = Claim("x_cold_start", 1_000_000, lead="cold start", severity="high")
    wall = Claim("wall_time", lead="compiling in steps", severity="high")
    assert a_sheet(bound, waits, sync, cold, wall).leads == (wall, cold, sync, waits, bound)


def test_what_gains_an_unknown_time_is_before_what_is_hardly_worth_a_change() -> None:
    """Communication took 91 % of a rank's step, and stood below a sync that gains 1.3 %."""
    sync = Claim("x_sync", 130_000, lead="sync at a.py:3: remove it", gain=(0, 130_000), severity="medium")
    copies = Claim("exposed_memcpy", 2_000_000, gain=(0, 2_000_000), severity="high")
    waits = Claim("exposed_comm", 9_000_000, remedy="all_ranks", severity="high")
    assert a_sheet(sync, copies, waits).leads == (copies, waits, sync)


def test_of_what_gains_an_unknown_time_notes_are_last_and_the_one_on_the_machine_is_the_last_of_these() -> None:
    outside = Claim("x_outside", 3_000_000, lead="outside all phases", severity="high")
    python = Claim("x_python", 5_000_000, lead="Python takes 50 %", severity="low")
    busy = Claim("x_busy", 9_000_000, lead="busy machine", severity="low", basis=Basis(60, is_unprofiled=True))
    assert a_sheet(busy, python, outside).leads == (outside, python, busy)


def test_what_gains_less_than_a_hundredth_of_the_step_is_no_lead() -> None:
    little = Claim("x_costly_sync", 12_000, lead="sync at a.py:3: remove it", gain=(12_000, 12_000), severity="high")
    bound = Claim("x_device_bound", 9_700_000, lead="device-bound", severity="low")
    result = a_sheet(little, bound)
    assert (result.leads, result.without_gain) == ((bound,), (little,))
    (line,) = (line for line in screen(result, 80).splitlines() if "sync" in line)
    assert line.startswith("Little or nothing to gain: ")
    assert line.endswith(" sync at a.py:3")


@pytest.mark.parametrize(("gain_ns", "leads"), [(0, ["exposed_wait"]), (3_000_000, ["straggler"])])
def test_waits_for_others_are_explained_by_a_late_rank_if_the_step_gains_without_its_lateness(
    gain_ns: int, leads: list[str]
) -> None:
    late = Claim("straggler", 4_000_000, lead="rank 1 is late", gain=(0, gain_ns), severity="high")
    waits = Claim("exposed_wait", 5_000_000, lead="ranks wait", severity="high")
    assert [lead.code for lead in a_sheet(late, waits).leads] == leads


def test_a_lead_on_waits_has_the_table_of_ranks_with_those_most_waited_for_before_others() -> None:
    columns = Column("rank", "rank", Unit.COUNT), Column("caused_ns", "others wait for it", Unit.NS)
    rows = [*((rank, 1_000 * rank) for rank in range(7)), (7, 0)]
    sizes = {"facts": 1, "partition": 3, "syncs": 8, "collectives": 8, "ranks": 8}
    views = tuple(Table(key, key.capitalize(), columns, rows[:num]) for key, num in sizes.items())
    waits = Claim("exposed_wait", 5_000_000, lead="ranks wait", severity="high")
    for findings, last in (((waits,), ["Ranks", "5", "6"]), ((), ["Facts", "0"])):
        result = replace(a_sheet(), reports=(Report("found", findings=findings, views=views),))
        text = screen(result, 100)
        assert text.count("\n") <= SCREEN_LINES
        *_, table, _ = text.split("\n\n")
        title, _, *shown = table.splitlines()
        assert [title, *(line.split()[0] for line in shown if "left out: " not in line)] == last


def test_two_leads_are_not_about_one_line() -> None:
    removed = Claim("x_sync", 900_000, lead="sync at a.py:3: remove it", gain=(900_000, 900_000), severity="high")
    left = Claim("x_free_sync", 800_000, lead="sync at a.py:3: leave it", gain=(800_000, 800_000), severity="low")
    assert a_sheet(left, removed).leads == (removed,)


def test_with_ranks_missing_it_is_known_only_what_a_step_gains_at_most() -> None:
    sync = Claim("x_sync", 900_000, lead="sync at a.py:3: remove it", gain=(900_000, 900_000))
    (whole,), (part,), (two,) = (judged([sync], Basis(1), 10e6, num_alone=num) for num in (0, 1, 2))
    assert (whole.gain, part.gain) == ((900_000, 900_000), (0, 900_000))
    assert "up to 900 us" in screen(a_sheet(part), 80)
    gainers = [screen(a_sheet(claim), 80).partition("Gain first")[2].split()[:3] for claim in (whole, part, two)]
    assert [*map(" ".join, gainers)] == ["a step gains", "this rank gains", "these ranks gain"]
    one_of_8 = replace(a_sheet(part), source=replace(a_sheet(part).source, world_size=8))
    assert "1 of 8 ranks (0)" in screen(one_of_8, 80)
