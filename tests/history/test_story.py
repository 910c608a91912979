"""Twelve commits of a small trainer: one reads the loss, another adds 3 % of work; history finds both, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha1
from pathlib import Path

import numpy as np
import pytest
from golden_files import UPDATE
from made_history import STEP_US, WORK_US, run_noise, write_run
from paths import ROOT
from terminal import traceq

from traceq.engines.rank_reader import SameProcess
from traceq.history.adding import add_run
from traceq.history.events import History, history_of, read_history
from traceq.history.store import Row, append

NUM, SYNC, WORK = 12, 4, 8
"""Commits, and the numbers, from 0, of those that add the sync and the work."""
COMMITS = [sha1(str(number).encode()).hexdigest() for number in range(NUM)]
add = partial(add_run, start=lambda: nullcontext(SameProcess()))


def record_story(store: Path, seed: int) -> Path:
    """A store with a run of each commit, which lie in it."""
    rng = np.random.default_rng(seed)
    for number, factor in enumerate(run_noise(rng, NUM)):
        run = store / "runs" / str(number)
        added = {"has_sync": number >= SYNC, "has_work": number >= WORK}
        write_run(run, rng, number=number, factor=factor, commit=COMMITS[number], **added)
        add(store, str(run), "main", None)
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_story(tmp_path_factory.mktemp("story") / "store", seed=1)


def places_of(history: History) -> list[tuple[int, set[str]]]:
    """The number of the commit from which each event is, and what changed."""
    return [(event.after.number - 1, {change.measure for change in event.changes}) for event in history.events]


EXPECTED = [(SYNC, {"scalar syncs", "ops"}), (WORK, {"step", "forward", "ops"})]


def test_both_are_found_with_commit_cause_and_line(store: Path) -> None:
    history = history_of(store)
    assert places_of(history) == EXPECTED
    sync, work = history.events
    assert [event.after.row.commit for event in history.events] == [COMMITS[SYNC], COMMITS[WORK]]
    assert "train.py:57 log" in sync.cause
    assert "model.py:41 forward" in work.cause
    assert "aten::gelu" in work.cause


def test_a_terminal_of_80_columns_shows_them(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = traceq("history", "show", "--store", store)
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines()[2:13])) <= 80
    assert f"{COMMITS[WORK][:9]}: step" in outcome.out
    assert "at model.py:41 forward" in outcome.out


def test_a_store_that_was_moved_with_its_runs_still_tells_causes(store: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.symlink_to(store)
    assert [event.cause != "" for event in history_of(moved).events] == [True, True]


def redrawn(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same runs with other noise: 0.4 % from run to run, and as much of the median of 64 steps."""
    rng = np.random.default_rng(seed)
    noise, names = run_noise(rng, NUM), {row.run_id: number for number, row in enumerate(_first_rows(rows))}
    drawn = []
    for row in rows:
        factor = float(noise[names[row.run_id]] * (1 + 0.0016 * rng.normal())) if row.unit == "ns" else 1.0
        work = WORK_US * (names[row.run_id] >= WORK) * (row.measure in ("step", "forward"))
        value = {"step": STEP_US, "forward": 0.35 * STEP_US}.get(row.measure, row.value / 1000) + work
        shift = 1000 * value * factor - row.value if row.unit == "ns" else 0.0
        low, high = (None if end is None else end + shift for end in (row.low, row.high))
        drawn.append(replace(row, value=row.value + shift, low=low, high=high))
    return drawn


def _first_rows(rows: Sequence[Row]) -> list[Row]:
    return sorted({row.run_id: row for row in rows}.values(), key=lambda row: row.time)


def test_of_20_repetitions_with_noise_at_most_one_finds_anything_else(store: Path, tmp_path: Path) -> None:
    rows = [row for run in read_history(store).runs for row in run.rows]
    wrong = 0
    for seed in range(20):
        repetition = tmp_path / str(seed)
        append(repetition, [replace(row, path="gone") for row in redrawn(rows, seed)])
        wrong += places_of(history_of(repetition)) != EXPECTED
    assert wrong <= 1


@pytest.mark.slow
def test_of_20_recorded_repetitions_at_most_one_finds_anything_else(tmp_path: Path) -> None:
    wrong = sum(places_of(history_of(record_story(tmp_path / str(seed), seed))) != EXPECTED for seed in range(20))
    assert wrong <= 1


def test_of_four_runs_of_each_commit_the_first_with_the_change_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for number, factor in enumerate(run_noise(rng, 16, ar=0.0)):
        run = write_run(tmp_path / str(number), rng, number=number, factor=factor, has_work=number >= 8)
        add(tmp_path / "store", str(run), "main", COMMITS[number // 4])
    (event,) = history_of(tmp_path / "store").events
    assert (event.before.row.commit, event.after.row.commit) == (COMMITS[1], COMMITS[2])
    assert not event.is_of_one_commit


def test_what_changes_between_runs_of_one_commit_is_not_the_code(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    for number, factor in enumerate(run_noise(rng, 12)):
        run = write_run(tmp_path / str(number), rng, number=number, factor=factor * (1 + 0.1 * (number >= 6)))
        add(tmp_path / "store", str(run), "main", COMMITS[number // 12])
    (event,) = history_of(tmp_path / "store").events
    assert event.is_of_one_commit


def test_the_page_of_the_docs_quotes_what_is_shown(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "traceq-history").symlink_to(store)
    with chdir(tmp_path):
        shown = traceq("history").out
    printed = "\n".join(line.rstrip() for line in shown.splitlines())
    before, command, rest = (page := ROOT / "docs" / "regressions.md").read_text().partition("$ traceq history\n")
    quoted, end, after = rest.partition("\n```")
    if UPDATE:
        page.write_text("".join((before, command, printed, end, after)))
    else:
        assert quoted == printed


def test_two_changes_of_one_measure_in_a_row_are_two_events(tmp_path: Path) -> None:
    for number, has_sync in enumerate([False] * 4 + [True] * 4 + [False] * 4):
        run = write_run(tmp_path / str(number), np.random.default_rng(1), number=number, has_sync=has_sync)
        add(tmp_path / "store", str(run), "main", COMMITS[number])
    assert places_of(history_of(tmp_path / "store")) == [(4, {"scalar syncs", "ops"}), (8, {"scalar syncs", "ops"})]


def test_of_many_changes_the_latest_have_causes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.history.events.MOST_EXPLAINED", 1)
    sync, work = history_of(store).events
    assert (sync.cause, "traceq diff" in sync.why_not) == ("", True)
    assert "model.py:41" in work.cause
