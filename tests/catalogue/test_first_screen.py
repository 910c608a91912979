"""The first screen answers what was asked, on every real trace: phases, syncs, collectives, and what to gain first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest
from catalogue import FILES, JOBS, sheet_of
from oracle.collectives import find_calls
from oracle.reader import read as read_slowly
from oracle.syncs import find_syncs
from paths import FIXTURES, ROOT

from traceq.claims.saying import MOST_WORDS, lead_of, line_of
from traceq.renderers.limits import SCREEN_LINES
from traceq.renderers.one_screen import print_screen
from traceq.renderers.text import open_console
from traceq.report import MOST_LEADS, Cell, Sheet, Table

REPORTS = ROOT.parent / "shared" / "reports" / "traces"
OURS = [FIXTURES / "example" / "job", FIXTURES / "example" / "uneven", FIXTURES / "outlier_ab" / "on"]
PATHS = [
    *(pytest.param(path, id=path.name) for path in (*OURS, *sorted(REPORTS.glob("*.json.gz")))),
    *(*FILES, *JOBS),
]
QUESTIONS = ("partition", "syncs", "collectives")
every_path = pytest.mark.parametrize("path", PATHS)


def screen(sheet: Sheet, width: int) -> str:
    file = StringIO()
    print_screen(sheet, open_console(file, width, is_terminal=True))
    return re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())


def first_tables(sheet: Sheet) -> dict[str, Table]:
    return {view.key: view for report in sheet.reports for view in report.first if view.key in QUESTIONS}


def without_breaks(text: str) -> str:
    return " ".join(text.split())


@every_path
def test_phases_syncs_and_collectives_are_there_in_their_order_and_lose_no_column(path: Path) -> None:
    sheet = sheet_of(path)
    for width in (80, 100, 140):
        text = screen(sheet, width)
        places = []
        for key, view in first_tables(sheet).items():
            title = without_breaks(view.title)
            assert title in without_breaks(text), (width, key)
            places.append(without_breaks(text).index(title))
            table = text[text.index(view.title[:40]) :].partition("\n\n")[0]
            assert "Hidden" not in table, (width, key)
            shown = view.non_empty_columns.columns if view.rows else ()
            assert all(word in table for column in shown for word in column.heading.split()), (width, key)
        assert places == sorted(places)
        assert len(places) == len(QUESTIONS) or not sheet.source.num_events


@every_path
def test_the_screen_has_at_most_40_lines_and_none_is_wider_than_the_terminal(path: Path) -> None:
    sheet = sheet_of(path)
    assert screen(sheet, 100).count("\n") <= SCREEN_LINES
    for width in (80, 100, 140):
        lines = [line for line in screen(sheet, width).splitlines() if str(path) not in line]
        assert max(map(len, lines)) <= width + 1, width  # a space at a break


@every_path
def test_leads_are_few_short_and_sorted_by_gain_and_no_two_are_about_one_line(path: Path) -> None:
    sheet = sheet_of(path)
    leads = sheet.leads[:MOST_LEADS]
    gains = [gain for lead in leads if (gain := lead.gain) is not None]
    assert gains == sorted(gains, key=sum, reverse=True)
    assert all(most >= least >= 0 and most > 0 for least, most in gains)
    lines = [line for lead in leads if (line := line_of(lead))]
    assert len(lines) == len(set(lines))
    for lead in (*leads, *sheet.without_gain):
        assert len(lead_of(lead).split()) <= MOST_WORDS
        assert not lead_of(lead).endswith("…"), "it is cut"
    shown = re.findall(r"^(\d|\*)  ", screen(sheet, 100), re.MULTILINE)
    assert shown == (["*"] if len(leads) == 1 and not gains else [str(number) for number in range(1, len(leads) + 1)])


@every_path
def test_that_there_is_none_is_said(path: Path) -> None:
    sheet = sheet_of(path)
    for name in ("syncs", "collectives"):
        counted = sum_of_counted(sheet, name)
        title = first_tables(sheet)[name].title if name in first_tables(sheet) else "none"
        assert (counted == 0) == ("none" in title) or "not known" in title, title


def sum_of_counted(sheet: Sheet, name: str) -> int:
    counted = {(row["rank"], row["step"]) for row in rows(sheet, "steps", "steps") if not row["partial"]}
    counted = counted or {(row["rank"], row["step"]) for row in rows(sheet, "steps", "steps")}
    return sum(
        int(row["num"] or 0) + int(row.get("num_kernels") or 0)
        for row in rows(sheet, name, f"{name}_steps")
        if (row["rank"], row["step"]) in counted and row.get("kind") != "alloc"  # which are counted apart
    )


def rows(sheet: Sheet, report: str, key: str) -> list[dict[str, Cell]]:
    return sheet.report(report).table(key).to_dicts()


@pytest.mark.parametrize("path", FILES)
def test_counts_of_a_step_are_those_of_the_raw_events_in_it(path: Path) -> None:
    sheet, raw = sheet_of(path), read_slowly(path)
    numbers = [row["step"] for row in rows(sheet, "steps", "steps")]
    issued = Counter(
        (name, step) for name, event in find_calls(raw)[1] for step in steps_at(raw.host_steps, event.start)
    )
    blocked = Counter((sync.kind, step) for sync in find_syncs(raw) for step in steps_at(raw.host_steps, sync.start))
    for expected, name, kind in ((issued, "collectives", "name"), (blocked, "syncs", "kind")):
        counts: Counter[tuple[object, int]] = Counter()
        for row in rows(sheet, name, f"{name}_steps"):
            if row["step"] is not None:
                counts[row[kind], numbers.index(row["step"])] += int(row["num"] or 0)
        assert +counts == expected, name


def steps_at(host_steps: Sequence[tuple[str, int, int]], instant: int) -> Iterator[int]:
    """The step of the host that contains an instant; a trace without steps is one."""
    if host_steps[0][0] == "whole trace":
        yield 0
        return
    yield from (index for index, (_, start, end) in enumerate(host_steps) if start <= instant < end)
