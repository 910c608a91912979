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
        (b"", "the file is empty; expected a Kineto trace (JSON)"),
        (b" \n ", "the file contains only whitespace; expected a Kineto trace (JSON)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a PNG image; expected a Kineto trace (JSON)"),
        (b"PK\x03\x04" + bytes(50), "a zip archive; expected a Kineto trace (JSON)"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1d13\nsize 20480\n",
            "a pointer of Git LFS instead of the file (git lfs pull); expected a Kineto trace (JSON)",
        ),
        (b"version,loss\n", "a file that starts with b'version,loss'; expected a Kineto trace (JSON)"),
        (b"step,loss\n0,1.2\n", "a file that starts with b'step,loss\\n0,'; expected a Kineto trace (JSON)"),
        (b"null", "a file that starts with b'null'; expected a Kineto trace (JSON)"),
        (b"{}", "a JSON object with the keys none; expected a list `traceEvents`"),
        (b'{"b": 1, "a": [2]}', "a JSON object with the keys a, b; expected a list `traceEvents`"),
        (b'{"a": 1 "b": 2}', "no list `traceEvents`: JSON is malformed: expected ',' or '}' (byte 8)"),
        (b'{"traceEvents": null}', "a JSON object with the keys traceEvents; expected a list `traceEvents`"),
        (b"[]", "no complete event; expected events with ts and dur"),
        (b'{"traceEvents": []}', "no complete event; expected events with ts and dur"),
        (b'[{"ph": "i", "ts": 1}]', "no complete event; expected events with ts and dur"),
        (b"[1, 2]", "byte 1: 2 events are not valid JSON and were skipped; expected events with ts and dur"),
        (b"[" * 1_000_000, "byte 1000000: the file ends early; 0 of its events were read"),
        (b'{"a":' * 1_000_000, "no list `traceEvents`: maximum recursion depth exceeded"),
        (SOUND[:9], "no list `traceEvents`: input data was truncated"),
        (SOUND[:40], "byte 40: the file ends early; 0 of its events were read; expected events with ts and dur"),
        (
            gzip.compress(SOUND, mtime=0)[:10],
            "the archive is damaged (the compressed stream is cut off); expected a Kineto trace",
        ),
        (
            gzip.compress(SOUND, mtime=0)[:15],
            "the archive ends before the first event (the compressed stream is cut off)",
        ),
        (gzip.compress(SOUND, mtime=0)[:4] + bytes(40), "the archive is damaged ("),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_trace_is_one_clear_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    done = traceq("show", path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"traceq: {path}: {line}")
    assert done.err.count("\n") == 1


def test_a_path_without_a_file_is_one_clear_line(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.json"
    assert traceq("show", missing).err == f"traceq: {missing}: no such file or directory; expected a trace file\n"
    empty = traceq("show", tmp_path)
    assert empty.err == f"traceq: {tmp_path}: no trace files; expected *.json, *.json.gz or *.json.zst\n"
    assert empty.code == 1


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
    assert f"traceq: note: byte {len(path.read_bytes())}: the file ends early; 1 of its events were read\n" in done.err
