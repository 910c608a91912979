"""The pages: what they say, that nothing a trace holds can act in them, and that a browser shows and sorts them."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import builder
import pytest
from builder import annotation, kernel, launch, op, write
from fleet import MS, Fleet, play
from paths import ROOT
from typer.testing import CliRunner

import traceq
from traceq.analysis.registry import sheet
from traceq.cli import app
from traceq.compare.diff import diff_run
from traceq.errors import UsageFault
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.renderers.html.step_timeline import step_timeline
from traceq.runs.run_folder import RunFolder

NASTY = '</script><script>alert`1`</script><img src=x onerror="alert`2`">'

pytest.importorskip("altair", reason="altair is not installed")
pytest.importorskip("vl_convert", reason="vl-convert is not installed")


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


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside of script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_loads_nothing_and_runs_nothing_but_its_own_sorting(page: str) -> None:
    elements = Elements(page)
    assert [attributes for tag, attributes in elements.tags if tag == "script"] == [{}]
    assert not any({"src", "style"} & attributes.keys() for _, attributes in elements.tags)
    assert not any(name.startswith("on") for _, attributes in elements.tags for name in attributes)
    assert all((attributes["href"] or "").startswith("#") for tag, attributes in elements.tags if "href" in attributes)
    [policy] = [a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    for tag in ("script", "style"):
        [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")


def test_a_kernels_name_is_text_and_nothing_else(folder: Path) -> None:
    page = (folder / "show.html").read_text()
    assert NASTY not in page
    assert NASTY in Elements(page).text


def test_the_verdict_stands_first(folder: Path) -> None:
    page = (folder / "diff.html").read_text()
    words = run("diff", str(ROOT / "fixtures" / "outlier_ab"), "--markdown")
    headings = [unescape(text) for text in re.findall(r"<h1[^>]*>(.*?)</h1>", page)]
    assert [heading.split(" per step")[0] for heading in headings] == [
        unescape(text).split(" per step")[0] for text in re.findall(r"^\*\*(.*?)\*\*$", words, re.MULTILINE)
    ]
    assert page.index("<h1") < page.index("<svg") < page.index("<table")
    assert re.findall(r'data-verdict="(\w+)"', page) == ["inconclusive"] * len(headings)


def test_durations_that_are_no_evidence_are_folded(folder: Path) -> None:
    """Of a comparison that the unprofiled steps do not bear out, the page shows sentences; the tables on a click."""
    diffs = diff_run(ROOT / "fixtures" / "outlier_ab")
    page = (folder / "diff.html").read_text()
    folded = re.findall(r'<details class="doubt"><summary>(.*?)</summary>(.*?)</details>', page, re.DOTALL)
    assert len(folded) == sum(bool(diff.doubt) for diff in diffs.diffs) > 0
    for summary, durations in folded:
        assert "no evidence" in summary
        assert 'data-key="cells"' in durations
    shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert shown.count('data-key="cells"') == sum(not diff.doubt for diff in diffs.diffs)


def test_a_cell_keeps_its_number(folder: Path) -> None:
    page = (folder / "show.html").read_text()
    [drawn] = re.findall(r'<table data-key="steps">(.*?)</table>', page)
    assert 'data-value="120000.0">120 us' in drawn


def test_pictures_say_what_they_show_when_one_points_at_them(page: str) -> None:
    titles = re.findall(r"<title>([^<]* [µun]?s[^<]*)</title>", page)
    assert len(titles) >= 3


@pytest.mark.parametrize(("num_ranks", "columns", "late"), [(12, 12, {"9"}), (136, 17, {"node001", "node009"})])
def test_ranks_are_a_heat_map_with_a_column_for_each_or_of_many_for_each_host(
    tmp_path: Path, num_ranks: int, columns: int, late: set[str]
) -> None:
    fleet = Fleet(num_ranks, layers=1, steps=2, late_ranks=(9, 72), late_ns=30 * MS)
    play(fleet).write(tmp_path / "job")
    run("show", str(tmp_path / "job"), "--only", "clusters", "--html", str(tmp_path / "page.html"))
    cells = re.findall(r"<title>(\w+) · forward, over the median: (.*?)</title>", (tmp_path / "page.html").read_text())
    assert len(cells) == columns
    assert {column for column, over in cells if over == "30.0 ms"} == late
    assert {column for column, over in cells if over.endswith(" ms")} == late


def test_a_step_as_it_went_has_each_category_about_as_long_as_the_partition(tmp_path: Path) -> None:
    recorded = traceq.read(trace(tmp_path / "trace.json")).traces[0]
    timeline = step_timeline(recorded)
    partition = activity(recorded)
    window = steps(recorded).window[steps(recorded).names.index(timeline.step)].tolist()
    inside = (partition.parts[:, 0] >= window[0]) & (partition.parts[:, 1] <= window[1])
    for category in TimeCategory:
        exact = int(partition.ns[inside & (partition.category == category)].sum())
        shown = sum(one.end_ns - one.start_ns for one in timeline.spans if one.name == category.name.lower())
        assert abs(shown - exact) <= (window[1] - window[0]) / 100
    pieces = [one for one in timeline.spans if one.row == "time"]
    assert [one.end_ns for one in pieces[:-1]] == [one.start_ns for one in pieces[1:]]


def test_what_ranks_something_is_drawn_as_it_ranks_it(tmp_path: Path) -> None:
    """Of the example: collectives exposed and hidden add up to their time on the device, memory to its peak."""
    job = str(ROOT / "fixtures" / "example" / "job")
    run("show", job, "--html", str(tmp_path / "job.html"))
    titles = [unescape(text) for text in re.findall(r"<title>([^<]*)</title>", (tmp_path / "job.html").read_text())]
    assert {
        "all_reduce · gradient reduction · backward · float32 · exposed comm: 8.20 ms",
        "all_reduce · gradient reduction · backward · float32 · hidden: 5.39 ms",
        "backward · ampere_sgemm_64x64_nt: 16.0 ms",
        "forward: 20.0 MiB",
    } <= set(titles)


def test_findings_are_drawn_by_the_time_they_are_about(tmp_path: Path) -> None:
    recorded = str(ROOT / "fixtures" / "outlier_ab" / "on")
    run("show", recorded, "--html", str(tmp_path / "on.html"))
    page = (tmp_path / "on.html").read_text()
    [figure] = re.findall(r"<figure>(<svg.*?</svg>)<figcaption>Time of each finding", page, re.DOTALL)
    shown = [text for text in re.findall(r"<title>([^<]*)</title>", figure) if text.endswith(" ms")]
    findings = [one for one in sheet(traceq.read(recorded)).top_findings if one.ns > 0]
    assert [unescape(text).partition("…")[0][:40] for text in shown] == [one.text[:40] for one in findings]


def test_only_one_form_at_a_time_and_one_path_a_page(tmp_path: Path) -> None:
    path = str(trace(tmp_path / "trace.json"))
    with pytest.raises(UsageFault, match="choose one"):
        run("show", path, "--json", "--html", "x.html")
    with pytest.raises(UsageFault, match="one file holds one path"):
        run("show", path, path, "--html", "x.html")


def test_without_altair_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "trace.json")
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    with pytest.raises(UsageFault, match="pip install altair vl-convert-python"):
        run("show", str(path), "--html", str(tmp_path / "x.html"))
    assert not (tmp_path / "x.html").exists()


@pytest.fixture
def shown(browser: Any, folder: Path) -> Iterator[Any]:
    """Opens a page without a network; no page may write to its console."""
    context = browser.new_context(offline=True)
    messages: list[str] = []

    def show(name: str) -> Any:
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda fault: messages.append(str(fault)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        page.goto((folder / name).as_uri())
        return page

    yield show
    context.close()
    assert messages == []


def test_a_browser_shows_the_verdict_and_the_pictures(shown: Any) -> None:
    page = shown("diff.html")
    assert page.locator("h1[data-verdict]").first.is_visible()
    assert page.locator("svg [aria-label]").count() > 50


def test_a_click_on_a_heading_sorts_and_another_turns_it(shown: Any) -> None:
    page = shown("diff.html")
    page.locator("details.doubt summary").first.click()  # durations that are no evidence are folded
    table = page.locator("table[data-key=causes]").first
    column = table.locator("th", has_text="delta").first
    index = column.evaluate("heading => heading.cellIndex")

    def values() -> list[float]:
        cells = table.locator(f"tbody tr td:nth-child({index + 1})").all()
        return [float(cell.get_attribute("data-value")) for cell in cells]

    before = values()
    column.locator("button").click()
    assert values() == sorted(before, reverse=True)
    column.locator("button").press("Enter")
    assert values() == sorted(before)
    assert column.get_attribute("aria-sort") == "ascending"


def test_a_script_in_a_name_is_shown_and_not_run(shown: Any) -> None:
    page = shown("show.html")
    assert page.get_by_text(NASTY).first.is_visible()
    assert page.evaluate("document.scripts.length") == 1


def test_a_sheet_with_findings_has_the_first_as_its_heading(folder: Path) -> None:
    page = (folder / "show.html").read_text()
    findings = sheet(traceq.read(folder / "trace.json")).findings
    assert unescape(re.findall(r"<h1>(.*?)</h1>", page)[0]) == findings[0].text


def test_intervals_of_arms_with_other_numbers_of_samples_are_for_as_many_as_the_baseline_has(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "fixtures" / "outlier_ab", tmp_path / "run")
    manifest = RunFolder(tmp_path / "run").read_manifest()
    arms = tuple(replace(arm, samples_per_step=8 if arm.baseline else 16) for arm in manifest.arms)
    RunFolder(tmp_path / "run").write_manifest(replace(manifest, arms=arms))
    run("diff", str(tmp_path / "run"), "--html", str(tmp_path / "diff.html"))
    caption = "Cost {} against off, unprofiled, with 95 % CI"
    assert caption.format("per step") in (folder / "diff.html").read_text("utf-8")
    assert caption.format("for the samples of one step of off") in (tmp_path / "diff.html").read_text("utf-8")


def test_the_roofline_has_a_point_for_each_op_below_the_roof(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[1000, 500], [500, 1000]], "Input type": ["float", "float"]}
    rows = (op("aten::mm", 0, 10, **shapes), launch(1, 1, corr=1), kernel("gemm", 100, 2000, corr=1))
    path, page = write(tmp_path / "trace.json", builder.step(0, 3000), *rows), tmp_path / "page.html"
    run("show", str(path), "--html", str(page), "--peak", "fp32=1", "--peak", "memory=100")
    text = page.read_text()
    assert "FLOPs per byte" in text
    assert "aten::mm [[1000,500],[500,1000]], 50 %: 2.00 ms" in unescape(text)
    run("show", str(path), "--html", str(page))
    assert "FLOPs per byte" not in page.read_text()  # without a peak there is no roof
