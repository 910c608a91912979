"""Escaping of what is printed: names in a trace are untrusted, and no output lets them control a terminal.

Everything that leaves as text passes `visible_lines` last: the streams of the command line, consoles, pages, results in
a notebook. A text that must stay within its line, such as a cell or an error, passes `visible` before.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import Any, TextIO

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_NEVER = f"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff\ufffe\uffff"
_CONTROL = re.compile(f"[\t\n{_NEVER}]")
_CONTROL_IN_LINES = re.compile(f"[{_NEVER}]")
_NOT_ASCII = re.compile("[^\t\n -~]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BLOCKS = "".join(map(chr, range(0x2580, 0x25A0)))
_IN_ASCII = {
    "·": "-",
    "→": "->",
    "…": "...",
    "±": "+-",
    "\N{MULTIPLICATION SIGN}": "x",
    "µ": "u",
    "─": "-",
    **dict.fromkeys(_BLOCKS, "#"),
}


def visible(text: str) -> str:
    """Return the text with a replacement character for each control, bidirectional control and non-character."""
    return _CONTROL.sub(_REPLACEMENT, text)


def visible_lines(text: str) -> str:
    """Return the text as `visible` does, with its line breaks and tabs."""
    return _CONTROL_IN_LINES.sub(_REPLACEMENT, text)


def escape_json(text: str) -> str:
    """Return the same JSON in ASCII: its encoding is UTF-8 whatever that of the output is, and it holds no control."""
    return _NOT_ASCII.sub(_escape, text)


def escape_controls(text: str) -> str:
    """Return the same JSON, with escapes for controls alone: for a protocol in UTF-8, where an escape costs tokens."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def in_its_encoding(stream: TextIO) -> TextIO:
    """Return the stream, which writes characters that its encoding lacks, as of Windows, in ASCII: bars as `#`."""
    if hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):  # the latter in LC_ALL=C
        stream.reconfigure(errors="traceq.ascii")
    return stream


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error("traceq.ascii", _in_ascii)


class VisibleStream:
    """A text stream on which every text passes `visible_lines`; `stream` is the one below."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        return self.stream.write(visible_lines(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, each escaped."""
        self.stream.writelines(map(visible_lines, lines))


def plain_stream(file: TextIO) -> TextIO:
    """Return the stream below a VisibleStream, for a writer that escapes its texts and adds colours; else the same."""
    return file.stream if isinstance(file, VisibleStream) else file
