"""Answer of a tool: a verdict, the reason where there is none, tables cut to a budget, the command to reproduce it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec import Meta

from traceq.agent_tools.limits import LONGER_COMMAND, LONGEST_CELL, LONGEST_TEXT, MOST_ROWS, MOST_TOKENS
from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.escaping import escape_controls, visible
from traceq.report import Cell, Table
from traceq.short_texts import cut_end

if TYPE_CHECKING:
    from traceq.agent_tools.readings import Readings

PATH = Meta(description="A trace, a folder of rank traces, a recorded run, RUN/ARM, or a memory snapshot.")
RANKS = Meta(description="Only these ranks, like 0,8,16-31.")


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool: its arguments are the fields, its description is the docstring."""

    def answer(self, readings: Readings) -> Answer:
        """Return the answer. Raises TraceqError for arguments that name nothing."""
        raise NotImplementedError


CANNOT_TELL = "cannot tell"
"""Verdict of every tool where what was recorded does not answer the question."""


_TOKEN = re.compile(r"[A-Za-z]{1,5}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_BUDGETS = ((LONGEST_TEXT, 1000), (160, 40), (60, 12), (20, 4), (8, 1))
"""(characters of a text, members of a list or a row): the first with which all but rows fits into an answer."""
_NO_COMMAND = "too long to be repeated"
_COMMAND = "command"
_REPEATED = ("key", "bar")
"""Columns that repeat others."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of which an answer holds as many as fit, the first ones first.

    `num` is how many there are. Without `columns` a row is one text. `unknown` names columns that have no value in any
    row: not recorded; `num_cut`: how many columns are left out.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell] | str]
    num: int
    unknown: tuple[str, ...] = ()
    num_cut: int = 0

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Rows:
        """Return texts as rows."""
        lines = [_cut(text, LONGEST_TEXT) for text in texts]
        return cls((), lines, len(lines))

    def first(self, num: int) -> object:
        """Return the first rows as JSON has them, with the number of those that are left out."""
        if not self.columns:
            more = [f"... {self.num - num} more"] if num < self.num else []
            return [*self.rows[:num], *more]
        left_out = {"left_out": self.num - num} if num < self.num else {}
        unknown = {"unknown": self.unknown} if self.unknown else {}
        cut = {"left_out_columns": self.num_cut} if self.num_cut else {}
        return {"columns": self.columns, "rows": self.rows[:num], **left_out, **unknown, **cut}

    def within(self, longest: int, most: int) -> Rows:
        """Return rows of at most so many cells, whose texts have at most so many characters."""
        rows = [
            _cut(row, longest) if isinstance(row, str) else [_cut_text(cell, longest) for cell in row[:most]]
            for row in self.rows
        ]
        columns, unknown = (tuple(_cut(name, longest) for name in each[:most]) for each in (self.columns, self.unknown))
        return Rows(columns, rows, self.num, unknown, max(0, len(self.columns) - most))


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a tool. `reason`: why the verdict is CANNOT_TELL; `looked`: what was examined, and what could not be.

    `parts` are further members: JSON values that may hold `Rows`.
    """

    verdict: str
    command: str
    reason: str = ""
    parts: Mapping[str, object] = field(default_factory=dict)
    looked: Mapping[str, object] | None = None


def rows_of(table: Table) -> Rows:
    """Return a table without its key and without the columns that have no value in any row, which it names."""
    filled = [False] * len(table.columns)
    for row in table.rows:
        filled = [is_filled or cell not in ("", None) for is_filled, cell in zip(filled, row, strict=True)]
    chosen = [index for index, each in enumerate(table.columns) if filled[index] and each.key not in _REPEATED]
    unknown = tuple(each.key for index, each in enumerate(table.columns) if not filled[index]) if table.rows else ()
    columns = tuple(table.columns[index].key for index in chosen)
    rows = [[_cell(row[index]) for index in chosen] for row in islice(table.rows, MOST_ROWS)]
    return Rows(columns, rows, len(table.rows), unknown)


def findings_of(findings: Iterable[Claim]) -> Rows:
    """Return findings as rows; `ns` of a step that the remedy is about."""
    rows = [(each.severity, each.code, each.ns, _cut(text_of(each), LONGEST_TEXT)) for each in findings]
    return Rows(("severity", "code", "ns", "text"), rows, len(rows))


def to_document(answer: Answer, most_tokens: int = MOST_TOKENS) -> dict[str, object]:
    """Return the answer as a JSON object of at most so many tokens, whatever it holds.

    Texts and lists are cut as far as it takes, and tables that are too long share what is left.
    """
    whole: dict[str, object] = {
        "verdict": answer.verdict,
        **({"reason": answer.reason} if answer.reason else {}),
        **answer.parts,
        **({"looked": answer.looked} if answer.looked is not None else {}),
        _COMMAND: answer.command,
    }
    for budget in _BUDGETS:
        document = _within(whole, *budget)
        parts = list(_rows_in(document))
        room = most_tokens - num_tokens(to_text(_plain(document, {id(part): 0 for part in parts})))
        if room >= 0:
            break
    sizes = [[num_tokens(_encoded(row)) + 1 for row in part.rows] for part in parts]
    share = _fair_share([sum(each) for each in sizes], room)
    kept = {id(part): _num_within(each, share) for part, each in zip(parts, sizes, strict=True)}
    plain = _plain(document, kept)
    assert isinstance(plain, dict)
    return plain


def to_text(document: object) -> str:
    """Return JSON without spaces, its controls escaped."""
    return escape_controls(_encoded(document))


def num_tokens(text: str) -> int:
    """Return at least about as many tokens as a language model makes of a text.

    Five letters, three digits, or a sign are counted as one; a character beyond ASCII as two. Common tokenizers merge
    more than that.
    """
    return sum(1 if token.isascii() else 2 for token in _TOKEN.findall(text))


def command_line(*words: str) -> str:
    """Return the command that prints the same numbers, quoted for a shell."""
    return shlex.join(["traceq", *words])


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _cell(cell: Cell) -> Cell:
    """Return numbers with six digits, and texts within one line."""
    if isinstance(cell, float):
        return float(f"{cell:.6g}")
    return _cut_text(cell, LONGEST_CELL)


def _cut(text: str, longest: int) -> str:
    return cut_end(visible(text[: longest + 1]), longest)


def _cut_text(cell: Cell, longest: int) -> Cell:
    return _cut(cell, longest) if isinstance(cell, str) else cell


def _within(value: object, longest: int, most: int) -> object:
    """Return a value whose texts have at most so many characters, and whose lists so many members."""
    if isinstance(value, Rows):
        return value.within(longest, most)
    if isinstance(value, str):
        return _cut(value, longest)
    if isinstance(value, Mapping):
        return {
            _cut(str(key), longest): _command(each, longest) if key == _COMMAND else _within(each, longest, most)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        more = [f"... {len(value) - most} more"] if len(value) > most else []
        return [*(_within(each, longest, most) for each in value[:most]), *more]
    return value


def _command(command: object, longest: int) -> str:
    text = str(command)
    return text if len(text) <= LONGER_COMMAND * longest else _NO_COMMAND


def _rows_in(value: object) -> Iterator[Rows]:
    if isinstance(value, Rows):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _rows_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _rows_in(each)


def _plain(value: object, kept: Mapping[int, int]) -> object:
    """Return a value as JSON has it, with as many rows of each table as `kept` has under its id."""
    if isinstance(value, Rows):
        return value.first(kept[id(value)])
    if isinstance(value, Mapping):
        return {str(key): _plain(each, kept) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, kept) for each in value]
    return value


def _fair_share(sizes: Sequence[int], room: int) -> int:
    """Return the size to which the largest are cut so that all fit into the room."""
    left, rest = room, sorted(sizes)
    while rest and rest[0] * len(rest) <= left:
        left -= rest.pop(0)
    return max(0, left // len(rest)) if rest else max(sizes, default=0)


def _num_within(sizes: Sequence[int], most: int) -> int:
    """Return how many of the first sizes add up to no more."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > most:
            return number
    return len(sizes)
