"""The pages: what they say, the data that their charts draw, and that nothing a trace holds can act in them."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import builder
import numpy as np
import pytest
from builder import annotation, kernel, launch, op, write
from fleet import MS, Fleet, play
from pages import Elements, figures, labels
from paths import ROOT
from typer.testing import CliRunner

import traceq
from traceq.analysis.registry import sheet
from traceq.claims.saying import lead_of, text_of
from traceq.cli import app
from traceq.compare.diff import diff_run
from traceq.compare.result import Diffs
from traceq.errors import UsageFault
from traceq.model import Pairs
from traceq.renderers.html.diff import diffs_to_html
from traceq.renderers.html.sections import SECTIONS
from traceq.runs.run_folder import RunFolder
from traceq.stats import compare_pairs
from traceq.units import Unit, format_value

NASTY = '</script><script>alert`1`</script><img src=x onerror="alert`2`">'


def trace(path: Path, name: str = NASTY) -> Path:
    events = []
    for number, (start, dur) in enumerate((120 * k, 120) for k in range(7)):
        events += [
            *(
                builder.step(start, dur, number + 3),
                annotation("forward", start, 60),
                annotation("backward", start + 60, 40),
            ),
            *(op("aten::mm", start + 1, 8), launch(start + 2, 3, corr=number + 1)),
            kernel(name, start + 10, 40, corr=number + 1),
        ]
    return write(path, *events)


def run(*words: str) -> str:
    return CliRunner().invoke(app, words, catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`show.html` of a trace with a nasty name, `diff.html` of the recorded fixture."""
    folder = tmp_path_factory.mktemp("pages")
    run("show", str(trace(folder / "trace.json")), "--html", str(folder / "show.html"))
    run("diff", str(ROOT / "fixtures" / "outlier_ab"), "--html", str(folder / "diff.html"))
    return folder


@pytest.fixture(params=["show", "diff"])
def page(folder: Path, request: pytest.FixtureRequest) -> str:
    return (folder / f"{request.param}.html").read_text()


@pytest.mark.slow
def test_a_page_loads_nothing_and_runs_nothing_but_its_own_script(page: str) -> None:
    elements = Elements(page)
    scripts = [attributes for tag, attributes in elements.tags if tag == "script"]
    assert [attributes for attributes in scripts if attributes != {"type": "application/json"}] == [{}]
    assert not any({"src", "style"} & attributes.keys() for _, attributes in elements.tags)
    assert not any(name.startswith("on") for _, attributes in elements.tags for name in attributes)
    assert all((attributes["href"] or "").startswith("#") for tag, attributes in elements.tags if "href" in attributes)
    [policy] = [a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    for tag in ("script", "style"):
        [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")
    assert (policy or "").endswith("base-uri 'none'; form-action 'none'")
    assert "unsafe" not in (policy or "")
    assert len(page) < 1_000_000


def test_a_kernels_name_is_text_and_nothing_else(folder: Path) -> None:
    page = (folder / "show.html").read_text()
    assert NASTY not in page
    assert NASTY in Elements(page).text


@pytest.mark.slow
def test_the_verdict_stands_first(folder: Path) -> None:
    """Of one arm, the sentence of the terminal; of several one sentence on all, and each sentence with its arm."""
    page = (folder / "diff.html").read_text()
    words = run("diff", str(ROOT / "fixtures" / "outlier_ab"), "--markdown")
    sentences = [unescape(text) for text in re.findall(r"^\*\*(.*?)\*\*$", words, re.MULTILINE)]
    [heading] = re.findall(r"<h1[^>]*>(.*?)</h1>", page)
    assert heading.startswith("Against off: on and deferred ")
    assert heading.endswith(" inconclusive.")
    arms = [unescape(text) for text in re.findall(r'<p data-key="verdict"[^>]*>(.*?)</p>', page)]
    assert [text.split(" per step")[0] for text in arms] == [text.split(" per step")[0] for text in sentences]
    assert page.index("<h1") < page.index("<figure") < page.index("<table")
    assert re.findall(r'data-verdict="(\w+)"', page) == ["inconclusive"] * len(arms)


@pytest.mark.slow
def test_of_one_arm_the_heading_is_its_sentence_and_three_numbers_follow(folder: Path, tmp_path: Path) -> None:
    pair = [str(ROOT / "fixtures" / "example" / name) for name in ("job", "uneven")]
    run("diff", *pair, "--html", str(tmp_path / "pair.html"))
    page = (tmp_path / "pair.html").read_text()
    [heading] = re.findall(r"<h1[^>]*>(.*?)</h1>", page)
    assert unescape(heading) == traceq.diff(*pair).answer.lead
    assert len(re.findall('<dd class="figure', page)) == 3


@pytest.mark.parametrize(
    ("delta_ns", "colour", "words"), [(50_000, "costs", "▲ +50.0 us"), (-50_000, "saves", "▼ -50.0 us")]
)
def test_a_cost_is_red_and_a_saving_green_and_both_have_an_arrow(delta_ns: int, colour: str, words: str) -> None:
    """Only a difference has a colour: an estimate whose verdict is open is none."""
    steps = 1_000_000 + np.arange(64) % 7 * 100
    b_second = np.arange(64) % 2 == 0
    first, second = np.where(b_second, steps, steps + delta_ns), np.where(b_second, steps + delta_ns, steps)
    of_b = Pairs("off", "on", b_second, first[None], second[None])
    diff = replace(diff_run(ROOT / "fixtures" / "outlier_ab").diffs[0], doubt="")
    certain = replace(diff, comparison=compare_pairs(of_b), steps=compare_pairs(of_b))
    page = diffs_to_html(Diffs("off", (certain,), pairs=(of_b,)))
    assert f'<dd class="figure {colour}">{words}</dd>' in page
    [interval] = figures(page, "intervals")
    assert [row["colour"] for row in interval.data["rows"]] == [colour]
    assert interval.data["rows"][0]["low"] <= delta_ns <= interval.data["rows"][0]["high"]
    [pairs] = figures(page, "pairs")
    assert pairs.data["pairs"] == [[k + 1, int(s), int(s + delta_ns), int(k % 2 == 0)] for k, s in enumerate(steps)]
    assert '<dd class="figure costs' not in (open_page := diffs_to_html(Diffs("off", (diff,))))
    assert '<dd class="figure saves' not in open_page


@pytest.mark.slow
def test_the_waterfall_adds_up_to_the_traced_delta() -> None:
    for diff in diff_run(ROOT / "fixtures" / "outlier_ab").diffs:
        [drawn] = figures(diffs_to_html(Diffs("off", (diff,))), "waterfall")
        *rows, total = drawn.data["rows"]
        assert [row["from"] for row in rows] == [0, *(row["to"] for row in rows[:-1])]
        assert diff.traced is not None
        assert rows[-1]["to"] == total["to"] == diff.traced.delta_ns
        assert all(row["delta"] == row["to"] - row["from"] for row in rows)


@pytest.mark.slow
def test_durations_that_are_no_evidence_are_folded(folder: Path) -> None:
    """Of a comparison that the unprofiled steps do not bear out, the page shows sentences; the tables on a click."""
    diffs = diff_run(ROOT / "fixtures" / "outlier_ab")
    page = (folder / "diff.html").read_text()
    folded = re.findall(r'<details class="doubt">(.*?)</details>', page, re.DOTALL)
    assert all("no evidence" in text.partition("</summary>")[0] for text in folded)
    assert sum('data-key="cells"' in text for text in folded) == sum(bool(diff.doubt) for diff in diffs.diffs) > 0
    shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert shown.count('data-key="cells"') == sum(not diff.doubt for diff in diffs.diffs)


def test_a_cell_keeps_its_number(folder: Path) -> None:
    page = (folder / "show.html").read_text()
    [drawn] = re.findall(r'<table [^>]*data-key="steps">(.*?)</table>', page)
    assert 'data-value="120000.0">120 us' in drawn


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "columns", "late"), [(12, 12, {"9"}), (136, 17, {"node001", "node009"})])
def test_ranks_are_a_heat_map_with_a_column_for_each_or_of_many_for_each_host(
    tmp_path: Path, num_ranks: int, columns: int, late: set[str]
) -> None:
    fleet = Fleet(num_ranks, layers=1, steps=2, late_ranks=(9, 72), late_ns=30 * MS)
    play(fleet).write(tmp_path / "job")
    run("show", str(tmp_path / "job"), "--only", "clusters", "--html", str(tmp_path / "page.html"))
    [drawn] = figures((tmp_path / "page.html").read_text(), "heatmap")
    forward = drawn.data["rows"].index("forward")
    cells = {drawn.data["columns"][cell["column"]]: cell for cell in drawn.data["cells"] if cell["row"] == forward}
    assert len(cells) == len(drawn.data["columns"]) == columns
    assert {column for column, cell in cells.items() if cell["text"] == "30.0 ms"} == late
    assert {column for column, cell in cells.items() if cell["size"] >= MS} == late
    assert all(column in cell["label"] for column, cell in cells.items())


def test_what_ranks_something_is_drawn_as_it_ranks_it(tmp_path: Path) -> None:
    """Of the example: collectives exposed and hidden add up to their time on the device, memory to its peak."""
    job = str(ROOT / "fixtures" / "example" / "job")
    run("show", job, "--html", str(tmp_path / "job.html"))
    shown = [text for drawn in figures((tmp_path / "job.html").read_text(), "bars") for text in labels(drawn.data)]
    assert {
        "all_reduce · gradient reduction · backward · float32\nexposed: 8.20 ms",
        "all_reduce · gradient reduction · backward · float32\nhidden by other work: 5.39 ms",
        "backward · ampere_sgemm_64x64_nt\ntime on the device: 16.0 ms",
        "forward\npeak: 20.0 MiB",
    } <= set(shown)


@pytest.mark.slow
def test_where_nothing_can_hide_a_collective_no_chart_says_that_one_is_hidden(tmp_path: Path) -> None:
    """On a CPU all communication is exposed, as the findings say."""
    run("show", str(ROOT / "fixtures" / "outlier_ab" / "on"), "--html", str(tmp_path / "on.html"))
    page = (tmp_path / "on.html").read_text()
    assert "Exposed transfers between ranks" in page
    shown = [text for drawn in figures(page, "bars") for text in labels(drawn.data)]
    assert any("host time of the calls" in text for text in shown)
    assert not any("hidden" in text for text in shown)
    assert "hidden" not in {key["key"] for drawn in figures(page, "bars") for key in drawn.data["categories"]}


@pytest.mark.slow
def test_findings_are_listed_with_the_time_they_are_about(tmp_path: Path) -> None:
    recorded = str(ROOT / "fixtures" / "outlier_ab" / "on")
    run("show", recorded, "--html", str(tmp_path / "on.html"))
    page = (tmp_path / "on.html").read_text()
    of_run = sheet(traceq.read(recorded))
    [heading] = re.findall(r"<h1>(.*?)</h1>", page)
    assert lead_of(of_run.leads[0]).lower() == Elements(heading).text.lower().replace("\xa0", " ")
    [listed] = re.findall(r'<ol class="findings">(.*?)</ol>', page)
    shown = [f"{other.severity}{format_value(other.ns, Unit.NS)}{text_of(other)}" for other in of_run.top_findings]
    assert [Elements(item).text for item in listed.split("</li>")[:-1]] == shown != []


def test_where_the_rows_of_the_device_are_missing_titles_and_numbers_are_the_hosts(tmp_path: Path) -> None:
    path, made = ROOT / "fixtures/kinds/no_device_rows.json", tmp_path / "lost.html"
    text = run("show", str(path))
    assert " · 1 of 4 ranks (0) · no kernels recorded" in text.splitlines()[0]
    assert "\nA step of the host " in text
    run("show", str(path), "--html", str(made))
    page = made.read_text()
    assert re.search(r"<h1[^>]*>No findings: .* rows of its device</h1>", page)
    assert "Host&#x27;s compute" in page or "Host's compute" in page
    assert "no kernels recorded" not in run("show", str(ROOT / "fixtures/example/job"))


def test_sections_have_titles_in_plain_words_with_how_to_read_them(tmp_path: Path) -> None:
    run("show", str(ROOT / "fixtures" / "example" / "job"), "--html", str(tmp_path / "job.html"))
    page = (tmp_path / "job.html").read_text()
    sections = re.findall(r'<section id="(\w+)"><h2>(.*?)</h2><p class="reading">(.*?)</p>', page)
    assert len(sections) == page.count("<section") > 5
    assert re.findall(r'<a href="#(\w+)">(.*?)</a>', page) == [(name, title) for name, title, _ in sections]
    assert all(title[0].isupper() and "_" not in title and reading.endswith(".") for _, title, reading in sections)


def test_every_analysis_of_traceq_has_a_section_in_plain_words() -> None:
    assert set(traceq.analyses()) <= set(SECTIONS)


def test_only_one_form_at_a_time_and_one_path_a_page(tmp_path: Path) -> None:
    path = str(trace(tmp_path / "trace.json"))
    with pytest.raises(UsageFault, match="choose one"):
        run("show", path, "--json", "--html", "x.html")
    with pytest.raises(UsageFault, match="one file holds one path"):
        run("show", path, path, "--html", "x.html")


@pytest.mark.slow
def test_intervals_of_arms_with_other_numbers_of_samples_are_for_as_many_as_the_baseline_has(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "fixtures" / "outlier_ab", tmp_path / "run")
    manifest = RunFolder(tmp_path / "run").read_manifest()
    arms = tuple(replace(arm, samples_per_step=8 if arm.baseline else 16) for arm in manifest.arms)
    RunFolder(tmp_path / "run").write_manifest(replace(manifest, arms=arms))
    run("diff", str(tmp_path / "run"), "--html", str(tmp_path / "diff.html"))
    alike, other = (figures((of / "diff.html").read_text("utf-8"), "intervals") for of in (folder, tmp_path))
    assert alike[0].caption.startswith("Cost per step against off")
    assert "samples of one step" in other[0].caption


def test_the_roofline_has_a_point_for_each_op_below_the_roof(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[1000, 500], [500, 1000]], "Input type": ["float", "float"]}
    rows = (op("aten::mm", 0, 10, **shapes), launch(1, 1, corr=1), kernel("gemm", 100, 2000, corr=1))
    path, page = write(tmp_path / "trace.json", builder.step(0, 3000), *rows), tmp_path / "page.html"
    run("show", str(path), "--html", str(page), "--peak", "fp32=1", "--peak", "memory=100")
    [drawn] = figures(page.read_text(), "roofline")
    [point] = drawn.data["points"]
    assert point["label"] == "aten::mm [[1000,500],[500,1000]]\n50 % of its roof, 2.00 ms"
    [roof] = drawn.data["roofs"]
    assert max(rate for _, rate in roof["points"]) == pytest.approx(2 * point["y"])
    run("show", str(path), "--html", str(page))
    assert figures(page.read_text(), "roofline") == []  # without a peak there is no roof
