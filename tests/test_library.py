"""The library: four functions, whatever was imported before them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paths import FIXTURES

import traceq
from traceq.report import Column, Finding, Report, Table
from traceq.units import Unit

RUN = FIXTURES / "outlier_ab"


@pytest.mark.parametrize(
    "before", ["pass", "import traceq.compare.diff", "from traceq.compare.diff import diff", "traceq.diff"]
)
def test_diff_is_a_function_whatever_was_imported_before(before: str) -> None:
    program = f"import sys, traceq; {before}; print(traceq.diff(*sys.argv[1:]).b_name); traceq.compare.diff"
    command = [sys.executable, "-c", program, str(RUN / "off"), str(RUN / "on")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("on\n", "")


def test_a_report_prints_what_show_shows() -> None:
    text = str(traceq.analyze(traceq.read(RUN / "on"), "syncs"))
    assert "outliers.py:18 outlier_seen" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_report_in_a_notebook_escapes_what_the_trace_says() -> None:
    table = Table(
        "kernels", "Kernels", (Column("name", "name"), Column("ns", "time", Unit.NS)), (("</td><script>", 1500),)
    )
    html = Report("kernels", views=(table,), findings=(Finding("x", "low", "<b>"),))._repr_html_()
    assert "<td>&lt;/td&gt;&lt;script&gt;</td><td>1.50 us</td>" in html
    assert "<p>&lt;b&gt;</p>" in html


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'shwo'"):
        traceq.shwo  # noqa: B018
