"""Messages of a rank are lines of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceq.recorder.process.progress_counters import MessageReader, append_message


def test_lines_of_a_file_are_taken_once(tmp_path: Path) -> None:
    reader = MessageReader(tmp_path / "messages")
    append_message(str(tmp_path / "messages"), "one")
    assert reader.take() == ["one"]
    append_message(str(tmp_path / "messages"), "two")
    assert reader.take() == ["two"]


@pytest.mark.parametrize(
    ("bars", "written"),
    [
        ([], "learned\n"),
        ([SimpleNamespace(fp=sys.stderr, disable=False)], "\nlearned\n"),
        ([SimpleNamespace(fp=sys.stderr, disable=True), SimpleNamespace(disable=True)], "learned\n"),
    ],
)
def test_a_line_does_not_follow_a_progress_bar(
    bars: list[SimpleNamespace],
    written: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.std", SimpleNamespace(tqdm=SimpleNamespace(_instances=bars)))
    append_message("", "learned")
    assert capsys.readouterr().err == written
