"""The numbers of a page are those of the JSON: its charts, and its numbers at the top, computed again from the rows."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import pytest
from catalogue import sheet_of
from pages import Figure, figures
from paths import FIXTURES, TRACES

from traceq.claims.saying import text_of
from traceq.model import Run
from traceq.renderers.html.show import sheet_to_html
from traceq.renderers.json import json_pieces
from traceq.report import Sheet
from traceq.units import Unit, format_value

Row = dict[str, Any]

OURS = [
    "example/job",
    "kinds/no_device_rows.json",
    "kinds/experts",
    "kinds/pipeline",
    "strategies/ddp.json.gz",
    "outlier_ab/on",
]
PUBLIC = [
    "nanogpt-h100-8r", "torchrec-v100-straggler-4r", "dlrm-v100-8r/rank0.json.gz", "qwen-h100",
    "ddp-a100/rank0.json.gz", "ep-moe-b200-ab/ref.json.gz", "gloo-cpu", "resnet-ddp-mi300",
]  # fmt: skip
QUICK = 3
INPUTS = [
    *(pytest.param(FIXTURES / name, id=name) for name in OURS),
    *(
        pytest.param(TRACES / name, id=name, marks=[pytest.mark.slow] * (number >= QUICK))
        for number, name in enumerate(PUBLIC)
        if (TRACES / name).exists()
    ),
]


@pytest.fixture(scope="module", params=INPUTS)
def both(request: pytest.FixtureRequest) -> tuple[Sheet, Row, str]:
    """The sheet of an input, its JSON, and its page."""
    sheet = sheet_of(request.param)
    return sheet, json.loads("".join(json_pieces(sheet))), sheet_to_html(sheet, Run(sheet.source.path, ()))


def captioned(page: str, *starts: str) -> list[Figure]:
    return [figure for figure in figures(page) if figure.caption.startswith(starts)]


def means(doc: Row, *keys: str) -> dict[tuple[str, ...], float]:
    """Ns of a mean counted step, mean over ranks, by some columns of the partition."""
    steps: dict[int, list[Row]] = defaultdict(list)
    for row in doc["steps"]:
        steps[row["rank"]].append(row)
    counted = {
        rank: {row["step"] for row in rows if not row["partial"]} or {rows[-1]["step"]} for rank, rows in steps.items()
    }
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for row in doc["partition"]:
        if row["step"] in counted[row["rank"]]:
            ns = row["dur_ns"] / len(counted[row["rank"]])
            sums[tuple(str(row[key]) for key in keys)] += ns if "rank" in keys else ns / len(counted)
    return sums


def bars(figure: Figure) -> dict[tuple[str, str], int]:
    """Size of each part of each bar, whose label and text say the same."""
    unit = Unit.BYTES if "iB" in figure.data["unit"] or figure.data["unit"] == "B" else Unit.NS
    sizes = {}
    for bar in figure.data["rows"]:
        for part in bar["parts"]:
            assert part["label"].endswith(f": {format_value(part['size'], unit)}"), part
            sizes[bar["title"], part["category"]] = part["size"]
        whole = sum(part["size"] for part in bar["parts"])
        assert bar["text"] in {format_value(whole + more, unit) for more in range(-2, 3)}
    return sizes


def test_every_figure_is_one_that_is_checked_here(both: tuple[Sheet, Row, str]) -> None:
    _, _, page = both
    checked = (
        "A step by phase",
        "A step of the host",
        "The trace by phase",
        "Time per step that is not",
        "Time over the median",
        "Durations",
    )
    checked += ("Collectives", "Kernels", "Memory", "Ops below")
    assert [figure.caption for figure in figures(page) if not figure.caption.startswith(checked)] == []


def test_the_bars_of_phases_and_categories_are_the_partition(both: tuple[Sheet, Row, str]) -> None:
    _, doc, page = both
    (figure,) = captioned(page, "A step by phase", "A step of the host", "The trace by phase")
    expected = {key: ns for key, ns in means(doc, "phase", "category").items() if ns >= 0.5}
    drawn = {key: size for key, size in bars(figure).items() if size}
    assert drawn == {key: pytest.approx(ns, abs=1) for key, ns in expected.items()}


def test_the_heat_map_of_lost_time_is_the_partition_of_each_rank(both: tuple[Sheet, Row, str]) -> None:
    _, doc, page = both
    expected = means(doc, "rank", "category")
    for figure in captioned(page, "Time per step that is not"):
        for cell in figure.data["cells"]:
            category = figure.data["rows"][cell["row"]].replace("copies, memsets", "exposed memcpy").replace(" ", "_")
            key = (figure.data["columns"][cell["column"]], category)
            assert cell["size"] == pytest.approx(expected.get(key, 0), abs=1)
            assert cell["label"].endswith(f": {cell['text']}")
            assert cell["text"] == format_value(cell["size"], Unit.NS)


def test_the_points_of_steps_are_the_whole_steps(both: tuple[Sheet, Row, str]) -> None:
    _, doc, page = both
    expected = sorted((row["rank"], row["window_ns"]) for row in doc["steps"] if not row["partial"])
    for figure in captioned(page, "Durations of all whole steps"):
        ranks = figure.data["ranks"]
        assert sorted((ranks[place], ns) for place, _, ns in figure.data["steps"]) == expected


def test_the_bars_of_collectives_kernels_and_memory_are_sums_of_their_rows(both: tuple[Sheet, Row, str]) -> None:
    _, doc, page = both
    collectives, kernels = defaultdict[tuple[str, str], int](int), defaultdict[tuple[str, str], int](int)
    has_device = any(row["gpu_ns"] for row in doc["collectives"])
    for row in doc["collectives"]:
        words = (row["name"], row["role"].replace("_", " "), row["phase"], row["dtype"])
        name = " · ".join(word for word in words if word)
        collectives[name, "exposed_comm"] += row["exposed_ns"] if has_device else 0
        collectives[name, "hidden"] += row["gpu_ns"] - row["exposed_ns"] if has_device else 0
    for row in doc["kernels"]:
        kernels[" · ".join(filter(None, (row["phase"], row["short"]))), "compute"] += row["gpu_ns"]
    if has_device:
        for figure in captioned(page, "Collectives ("):
            of_name: dict[tuple[str, str], int] = defaultdict(int)
            for bar in figure.data["rows"]:  # groups of other sizes have bars of their own
                for part in bar["parts"]:
                    of_name[bar["title"], part["category"]] += part["size"]
            assert of_name == {key: collectives[key] for key in of_name}
    for figure in captioned(page, "Kernels ("):
        assert bars(figure) == {key: kernels[key] for key in bars(figure)}
    for figure in captioned(page, "Memory ("):
        device, rank = re.search(r"\((\S+?), (?:rank (\d+), )?", figure.caption).groups()  # type: ignore[union-attr]
        rows = [row for row in doc["memory"] if row["device"] == device and row["rank"] == int(rank or row["rank"])]
        peaks = {(row["phase"], "compute"): row["peak_bytes"] for row in rows if row["peak_bytes"]}
        assert bars(figure) == peaks


def test_the_points_below_the_roofs_are_rows_of_the_ops(both: tuple[Sheet, Row, str]) -> None:
    _, doc, page = both
    for figure in captioned(page, "Ops below the roofs"):
        rows = [row for row in doc["efficiency_ops"] if row["roof_pct"]]
        for point in figure.data["points"]:
            same = [row for row in rows if (row["gpu_ns"], row["dtype"]) == (point["ns"], point["dtype"])]
            expected = [pytest.approx((row["intensity"], row["tflops"]), rel=1e-3) for row in same]
            assert (point["x"], point["y"]) in expected


def test_the_cells_of_tables_are_those_that_a_terminal_shows(both: tuple[Sheet, Row, str]) -> None:
    """Every number, in the order of the views; drawings for terminals and empty columns are left out."""
    sheet, _, page = both
    for report in sheet.reports:
        section = page.partition(f'<section id="{report.name}"')[2].partition("</section>")[0]
        held = [float(value) for value in re.findall(r'<td[^>]* data-value="([^"]+)"', section)]
        views = (view.without("bar", "curve").non_empty_columns for view in report.views)
        expected = [
            float(cell)
            for view in views
            for row in view.rows
            for cell in row
            if isinstance(cell, int | float) and not isinstance(cell, bool)
        ]
        assert held == expected, report.name


def test_the_numbers_at_the_top_and_the_findings_are_those_of_the_json(both: tuple[Sheet, Row, str]) -> None:
    sheet, doc, page = both
    parts = means(doc, "category")
    whole, computes = sum(parts.values()), sum(ns for (key,), ns in parts.items() if key in ("compute", "cpu_compute"))
    top = page.partition("<section")[0]
    assert f"{format_value(computes, Unit.NS)} of {format_value(whole, Unit.NS)}" in top
    assert format_value(100 * computes / whole, Unit.PERCENT) in top
    of_json = {(each["code"], each["text"], each["ns"]) for each in doc["findings"]}
    assert {(each.code, text_of(each), each.ns) for each in sheet.top_findings} <= of_json
    times = re.findall(r'<span class="time">([^<]*)</span>', top)
    assert times == [format_value(each.ns, Unit.NS) if each.ns else "" for each in sheet.top_findings[:8]]
