"""What is no trace ends in one line that says where, what was found and what was expected, and in exit code 1."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from builder import op, text, write
from terminal import traceq

SOUND = text(op("aten::add", 0, 1))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "the file is empty; expected"),
        (b" \n ", "the file contains only whitespace"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a PNG image; expected a Kineto trace"),
        (b"PK\x03\x04" + bytes(50), "a zip archive; expected a Kineto trace"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1d13\nsize 20480\n", "(git lfs pull)"),
        (b"version,loss\n", "starts with b'version,loss'"),
        (b"step,loss\n0,1.2\n", "starts with b'step,loss\\n0,'"),
        (b"null", "starts with b'null'"),
        (b"{}", "object with the keys none"),
        (b'{"b": 1, "a": [2]}', "object with the keys a, b;"),
        (b'{"a": 1 "b": 2}', "no list `traceEvents`: JSON is malformed"),
        (b'{"traceEvents": null}', "the keys traceEvents; expected a list"),
        (b"[]", "no complete event; expected events"),
        (b'{"traceEvents": []}', "no complete event; expected events"),
        (b'[{"ph": "i", "ts": 1}]', "no complete event; expected events"),
        (b'[{"ph": "B", "ts": 1}, {"ph": "E", "ts": 2}]', "not pairs of begin and end"),
        (b"[1, 2]", "byte 1: 2 events are not"),
        (b"[" * 1_000_000, "byte 1000000: the file ends early"),
        (b'{"a":' * 1_000_000, "maximum recursion depth"),
        (SOUND[:9], "input data was truncated"),
        (SOUND[:40], "byte 40: the file ends early"),
        (gzip.compress(SOUND, mtime=0)[:10], "damaged (the compressed stream is"),
        (gzip.compress(SOUND, mtime=0)[:15], "ends before the first event ("),
        (gzip.compress(SOUND, mtime=0)[:4] + bytes(40), "the archive is damaged ("),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_trace_is_one_clear_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    done = traceq("show", path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"traceq: {path}: ")
    assert line in done.err
    assert done.err.count("\n") == 1


def test_a_path_without_a_file_is_one_clear_line(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.json"
    for path, fact in ((missing, "no such file"), (tmp_path, "no trace files; expected *.json")):
        done = traceq("show", path)
        assert done.err.startswith(f"traceq: {path}: {fact}")
        assert (done.code, done.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (SOUND[:-2], "the file ends early"),
        (SOUND.replace(b"aten::add", b'a"b'), "not valid JSON"),
        (SOUND.replace(b'"dur":1', b'"dur":-1').replace(b"[{", b'[{"ph":"X","ts":1,"dur":1},{'), "no usable time"),
        (SOUND.replace(b'"dur":1', b'"dur":1,"x":NaN'), "were repaired"),
        (b'{"a":NaN,' + SOUND[1:], "the metadata is not valid JSON"),
    ],
)
def test_strict_refuses_what_is_otherwise_mended_with_a_note(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    assert traceq("show", "--strict", path).code == 1
    assert re.search(rf"{reason}.*\(--strict refuses\)$", traceq("show", "--strict", path).err)
    assert traceq("show", "--strict", write(tmp_path / "sound.json", op("aten::add", 0, 1))).code == 0


def test_a_cut_file_is_shown_with_a_note_on_stderr(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", op("aten::add", 0, 1), op("aten::mul", 2, 1))
    path.write_bytes(path.read_bytes()[:-40])
    done = traceq("show", path)
    assert done.code == 0
    assert "1 events" in done.out
    assert f"note: byte {len(path.read_bytes())}: the file ends" in done.err
