"""Escaping: what controls a terminal never leaves as it is, everything else does."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pytest
from builder import op, step, write
from hypothesis import given
from hypothesis import strategies as st
from paths import FIXTURES
from terminal import shell

from traceq.escaped_console import EscapedConsole
from traceq.escaping import VisibleStream, escape_json, visible, visible_lines

BIDI_CONTROLS = {
    chr(code)
    for code in range(0x110000)
    if unicodedata.bidirectional(chr(code)) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
} | set("\u200e\u200f\u061c")


def is_control(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") or letter in BIDI_CONTROLS


def test_of_all_characters_the_controls_are_replaced() -> None:
    letters = [chr(code) for code in range(0x110000)]
    replaced = {letter for letter in letters if visible(letter) != letter}
    assert replaced == {letter for letter in letters if is_control(letter)} | {"\ufffe", "\uffff"}
    assert {letter for letter in replaced if visible_lines(letter) == letter} == {"\n", "\t"}


@given(st.text() | st.text("\x1b\x7f\x9b\u202ea\n"))
def test_escaped_json_is_the_same_json(text: str) -> None:
    escaped = escape_json(json.dumps({text: text}, ensure_ascii=False))
    assert json.loads(escaped) == {text: text}
    assert escaped.isascii()
    assert not any(map(is_control, escaped))


def test_a_stream_escapes_and_a_console_keeps_its_own_colours() -> None:
    below = io.StringIO()
    stream = VisibleStream(below)
    stream.writelines(["a\x1b[2J", "b\u202e\n"])
    EscapedConsole(stream, force_terminal=True, no_color=False, color_system="standard").print("c\x9b", style="bold")
    assert below.getvalue() == "a\ufffd[2Jb\ufffd\n\x1b[1mc\ufffd\x1b[0m\n"
    assert stream.getvalue() == below.getvalue()


@pytest.mark.parametrize("setting", ["PYTHONIOENCODING=ascii", "LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0"])
def test_what_an_encoding_lacks_is_written_in_ascii(setting: str) -> None:
    done = shell(f"{setting} $TRACEQ show {FIXTURES}/example/job")
    assert done.code == 0
    assert "job - 2 of 2 ranks - " in done.out
    assert "Error" not in done.err


def test_json_is_the_same_in_every_encoding(tmp_path: Path) -> None:
    trace = write(tmp_path / "rank0.json", step(0, 100), op("küche → 日本 😀", 0, 50))
    one, other = (shell(f"PYTHONIOENCODING={name} $TRACEQ show {trace} --json").out for name in ("cp1252", "utf-8"))
    assert one == other
    assert "küche → 日本 😀" in json.dumps(json.loads(one), ensure_ascii=False)
