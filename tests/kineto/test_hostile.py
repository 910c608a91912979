"""A file that was made to exhaust a reader ends in one line, or in bounded memory; both readers say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import EVENT, FIRST, write
from readers import assert_same, outcome, reading

from traceq.kineto import event_windows, limits, reader_choice
from traceq.kineto.reader_choice import Scan

READERS = ("python",) if reader_choice.MISSING else ("python", "native")
LIMIT = 1 << 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_windows, "LONGEST", LIMIT)
    monkeypatch.setattr(reader_choice, "_LONG", LIMIT >> 2)


def read(path: Path, *, window: int = 0) -> Scan | str:
    outcomes = []
    for name in READERS:
        with reading(name, window=window, chunk=window):
            outcomes.append(outcome(path))
    assert_same(outcomes[-1], outcomes[0])
    return outcomes[0]


AT = len(FIRST)
CLOSE = len(b'{"traceEvents":') + AT + len(EVENT % b"b")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("string", f"byte {AT}: an event is longer"),
        ("quotes", f"byte {AT}: an event is longer"),
        ("blanks", f"byte {AT - 2}: an event is longer"),
        ("head", "no list `traceEvents`: "),
        ("tail", f"byte {CLOSE}: the text after the"),
    ],
)
@pytest.mark.parametrize("window", [1000, 1 << 17])
def test_what_is_longer_than_any_event_is_refused_where_it_begins(
    tmp_path: Path, kind: str, line: str, window: int
) -> None:
    path = write(tmp_path / "trace.json.gz", kind, 5 * LIMIT)
    assert read(path, window=window).startswith(f"{path}: {line}")


@pytest.mark.parametrize("kind", ["string", "quotes", "tail", "head"])
@pytest.mark.parametrize("size", [LIMIT - 1024, LIMIT, LIMIT + 1024])
def test_the_limit_does_not_depend_on_where_windows_end(tmp_path: Path, kind: str, size: int) -> None:
    path = write(tmp_path / "trace.json.gz", kind, size)
    for window in (1000, 1 << 14):
        read(path, window=window)


def test_levels_cost_their_event_and_names_their_own_length(tmp_path: Path) -> None:
    result = read(write(tmp_path / "levels.json.gz", "levels", LIMIT >> 2))
    assert isinstance(result, Scan)
    assert [result.events.text(row) for row in range(len(result.events))] == ["a", "b"]
    assert result.damage.skipped_at == (AT,)
    result = read(write(tmp_path / "names.json.gz", "names", 1 << 20))
    assert isinstance(result, Scan)
    assert len({result.events.text(row) for row in range(len(result.events))}) == len(result.events) > 10_000


def test_more_events_than_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_bytes", lambda: 93_000)
    path = write(tmp_path / "trace.json.gz", "events", 1 << 20)
    assert read(path).startswith(f"{path}: more than 1,000 events")
