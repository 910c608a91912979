"""Answer of a tool: verdict and reason, tables cut to a budget, the command to reproduce it, what was examined."""

from __future__ import annotations

import re
import shlex
from collections import Counter
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
from traceq.report import Cell, Report, Sheet, Table
from traceq.short_texts import cut_end
from traceq.units import ranks_of

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


_SEVERAL_RANKS = ("clusters", "desync", "ranks")
_RECORDED = ("arms", "batches", "perturbation", "step_profile", "unprofiled")
_DEVICE = ("devices", "duplicates", "efficiency", "kernels", "launches", "memcpy")
_WAITS_FOR_DEVICE = ("collectives", "critical", "idle", "partition", "replay", "syncs")
_OF_STEPS = ("steps", "phases", "kernels", *_WAITS_FOR_DEVICE)
_DUMPS = ("arrivals", "stalled")
_NO_TRACE_NEEDED = (*_RECORDED, *_DUMPS, "desync", "facts", "loader")
_LOST_DEVICE, _LOST_HOST = "no_device_work", "no_host_ops"
_MODULES = "modules"
"""Analysis whose rows are of no module where none is recorded."""
_MARKLESS = "whole trace"


Missing = tuple[Sequence[str], str]
"""Analyses or facts that what was recorded cannot answer, and why."""


def why_not(sheet: Sheet, analysis: str) -> str:
    """Return why a sheet cannot answer an analysis; "" where it can."""
    return "; ".join(why for what, why in _missing(sheet) if analysis in what)


def examined(sheet: Sheet) -> dict[str, object]:
    """Return what was read, the analyses that found nothing there, and what could not be examined."""
    reasons = list(_missing(sheet))
    out_of_reach = {name for what, _ in reasons for name in what}
    empty = [report.name for report in sheet.reports if not _num_rows(report) and report.name not in out_of_reach]
    return {
        **({"nothing_in": empty} if empty else {}),
        "could_not": [{"what": what, "why": why} for what, why in reasons],
        **read_from(sheet),
    }


def read_from(sheet: Sheet) -> dict[str, object]:
    """Return the events, ranks and steps that were read, and the doubts about them and the results."""
    source, steps = sheet.source, _rows(sheet, "steps")
    ranks = ranks_of(source.ranks, source.world_size)
    texts = [caveat.text for caveat in sheet.all_caveats]
    return {
        "events": source.num_events,
        **({"ranks": ranks} if source.ranks else {}),
        **({"steps": f"{_num_counted(steps)} counted of {len(steps)}"} if steps else {}),
        **({"warnings": Rows.of_texts(texts)} if texts else {}),
    }


def _missing(sheet: Sheet) -> Iterator[Missing]:
    """Yield in the order in which a reader should know: no trace, no device, one rank, then what was not recorded."""
    names = [report.name for report in sheet.reports]
    if sheet.schema:
        yield (_OF_STEPS, "a memory snapshot holds the allocator's actions alone")
    elif not sheet.source.num_events:
        why = "no trace was recorded, only timings or dumps of the flight recorder"
        yield (tuple(name for name in names if name not in _NO_TRACE_NEEDED), why)
    else:
        yield from _not_traced(sheet)
    if "arrivals" in names and not _rows(sheet, "arrivals") and not _rows(sheet, "stalled"):
        yield (_DUMPS, "no dumps of the flight recorder, which a job writes that hangs")
    answered = {name for name in _RECORDED if name in names and _num_rows(sheet.report(name))}
    of_trace = {"step_profile"} if _rows(sheet, "step_kinds") else set()
    if "step_profile" in names and answered <= of_trace and not _rows(sheet, "step_phases"):
        why = "no unprofiled steps: a trace alone says where time goes, not how long a step takes without the profiler"
        yield (tuple(name for name in _RECORDED if name not in answered), why)
    for unknown in sheet.unknown:
        what = dict.fromkeys((*_analyses_of(sheet, unknown.argument), unknown.what))
        yield (tuple(what), f"not recorded ({unknown.argument})")


def _not_traced(sheet: Sheet) -> Iterator[Missing]:
    source, caveats = sheet.source, {caveat.code: caveat.text for caveat in sheet.all_caveats}
    is_lost = _LOST_DEVICE in caveats and not _rows(sheet, "devices")
    if _LOST_DEVICE in caveats:
        yield ((*_DEVICE, *_WAITS_FOR_DEVICE) if is_lost else ("some ranks",), caveats[_LOST_DEVICE])
    elif source.device == "cpu":
        yield (_DEVICE, "the trace is of a CPU: no device did any work")
    elif why := _no_efficiency(sheet):
        yield (("efficiency",), why)
    if _LOST_HOST in caveats:
        yield (("phases", "host", "modules"), caveats[_LOST_HOST])
    if len(source.ranks) == 1:
        others = f"only rank {source.ranks[0]} of {source.world_size} was read"
        alone = "only one rank was read, and the trace names no others"
        yield (_SEVERAL_RANKS, f"{others if source.world_size > 1 else alone}: ranks cannot be compared")
    if [row["name"] for row in _rows(sheet, "steps")] == [_MARKLESS] * len(source.ranks):
        yield (("steps",), "no whole step is marked (profiler.step()): the whole trace counts as one")
    if (lines := [row["line"] for row in _rows(sheet, "syncs")]) and not any(lines):
        yield (("lines of syncs",), "no Python stacks are recorded (with_stack=True)")


def _no_efficiency(sheet: Sheet) -> str:
    """Return why no rank has an MFU; "" where one has."""
    rows = _rows(sheet, "efficiency")
    if any(row["mfu_pct"] is not None for row in rows):
        return ""
    if any(row["model_flops"] for row in rows):
        return f"the peaks of '{sheet.source.device}' are not known (--peak bf16=989), or wrong"
    return "no shapes of matrix products are recorded (record_shapes=True)"


def _analyses_of(sheet: Sheet, argument: str) -> tuple[str, ...]:
    """Return the analyses that have nothing to say without what an argument of the profiler records."""
    return tuple(
        report.name
        for report in sheet.reports
        if any(unknown.argument == argument for unknown in report.unknown)
        and (report.name == _MODULES or not _num_rows(report))
    )


def _num_counted(steps: Sequence[Mapping[str, Cell]]) -> int:
    """Return how many steps are in means: those of a rank that are not partial, or its only one."""
    complete = Counter(row["rank"] for row in steps if not row["partial"])
    return sum(complete[rank] or 1 for rank in {row["rank"] for row in steps})


def _num_rows(report: Report) -> int:
    return sum(len(table.rows) for table in (*report.tables, *report.views))


def _rows(sheet: Sheet, key: str) -> Sequence[Mapping[str, Cell]]:
    return next((table.to_dicts() for report in sheet.reports for table in report.tables if table.key == key), [])
