"""Drawing of charts in a process of its own."""

from __future__ import annotations

import pytest

pytest.importorskip("vl_convert")

from traceq.renderers.html.charts import bars

from traceq.renderers.html import charts, drawing

MARKS = [{"row": "a\x1b\x00\ufffe\ud800", "category": "compute", "order": 0, "ms": 1.0, "label": "a\x1b"}]


def test_names_that_xml_cannot_hold_are_drawn() -> None:
    svg = bars(MARKS, ["a\x1b\x00\ufffe\ud800"], ["compute"])
    assert svg.startswith("<svg")
    assert "a\ufffd" in svg


def test_a_crash_costs_the_picture_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(drawing, "visible", lambda text: text)
        assert bars(MARKS, ["a"], ["compute"]) == '<p class="note">This picture could not be drawn.</p>'
    assert bars(MARKS, ["a"], ["compute"]).startswith("<svg")


def test_drawing_for_too_long_costs_the_picture_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(drawing, "_SECONDS", 0)
        assert "could not be drawn" in bars(MARKS, ["a"], ["compute"])
    assert bars(MARKS, ["a"], ["compute"]).startswith("<svg")
    assert charts.points([], [], "ms").startswith("<svg")
