"""The page of predictions and outcomes says of its rows what follows from their numbers."""

from __future__ import annotations

import re
from statistics import median

import pytest
from paths import ROOT

PAGE = ROOT / "docs" / "contributing" / "predictions.md"


def tables() -> list[list[list[str]]]:
    """Rows of each table, as texts."""
    parts = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [[re.split(r"\s{2,}", line) for line in part.splitlines()[1:]] for part in parts]


def test_each_outcome_is_inside_its_range_or_not_as_the_page_says() -> None:
    recorded, pairs = tables()
    assert len(recorded) >= 15
    assert len(pairs) == 2
    for *_, least, most, again, then, interval, error, noise, inside in recorded + pairs:
        low, high, span, seen = (float(text) for text in (least, most, again, then))
        assert (low - span - 0.01 <= seen <= high + span + 0.01) == (inside == "yes")
        assert float(error) == pytest.approx(100 * ((low + high) / 2 - seen) / seen, abs=0.11)
        assert float(noise) >= 100 * float(interval) / seen - 0.11


def test_the_summary_counts_the_rows() -> None:
    recorded, _ = tables()
    errors, noises = ([abs(float(row[place])) for row in recorded] for place in (-3, -2))
    inside, text = sum(row[-1] == "yes" for row in recorded), PAGE.read_text(encoding="utf-8")
    (stated,) = re.findall(r"(\d+) of (\d+) inside .*; median error ([\d.]+) %.* noise .* ([\d.]+) %", text)
    assert (int(stated[0]), int(stated[1])) == (inside, len(recorded))
    assert [float(each) for each in stated[2:]] == pytest.approx([median(errors), median(noises)], abs=0.06)


def test_the_summary_says_how_busy_the_cores_were() -> None:
    recorded, _ = tables()
    ratios = [float(traced) / float(now) for _, _, traced, now, *_ in recorded]
    (stated,) = re.findall(
        r"Traced steps took ([\d.]+) to ([\d.]+) times .*\(median ([\d.]+);", PAGE.read_text(encoding="utf-8")
    )
    assert [float(each) for each in stated] == pytest.approx([min(ratios), max(ratios), median(ratios)], abs=0.006)
