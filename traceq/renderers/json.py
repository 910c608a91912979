"""Render a sheet as JSON, of a run with schema `traceq.show/3`: complete, times in integer ns, stable keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import NotRequired, TextIO, TypedDict

import msgspec

from traceq.claims.claim import Claim, Measure
from traceq.claims.rules import rule_of
from traceq.claims.saying import evidence_of, lead_of, text_of
from traceq.display import RenderOptions
from traceq.escaping import escape_json
from traceq.report import Cell, Sheet, Source, Table

SHOW_SCHEMA = "traceq.show/3"
_ROWS = 4096
"""Rows of a table that are encoded at a time."""


class SourceObject(TypedDict):
    """What was read."""

    path: str
    num_events: int
    ranks: tuple[int, ...]
    world_size: int
    device: str | None
    torch: str | None
    arm: NotRequired[str]
    step: NotRequired[int]
    """With `--step`."""
    rows_of: NotRequired[tuple[int, ...]]
    """Ranks whose rows tables have, of [more than 64](#more-than-64-ranks)."""
    window: NotRequired[str]
    """Of a folder with several: the first rank's latest."""
    num_windows: NotRequired[int]


class FindingObject(TypedDict):
    """A claim: its words and their measures, in the order of text."""

    code: str
    severity: str
    """`high`, `medium`, `low`."""
    text: str
    lead: str
    """As on the first screen."""
    evidence: str
    ns: int
    """Time of a step that it concerns; 0: none."""
    key: str
    subject: Mapping[str, Measure]
    """`rank`, `phase`, `line`, `op`, `kind` of sync, `module`, `collective`, `key`, where known."""
    measures: Mapping[str, Measure]
    """`least_` and `most_` begin the ends of a range."""
    least_gain_ns: int | None
    """By which the job's step is shorter, at least."""
    most_gain_ns: int | None
    gain_by: str
    """`replay of all ranks`, `replay` (of one rank), `95 % interval of unprofiled steps`, `at most its time`, or ""."""
    num_steps: int
    is_unprofiled: bool
    remedy: str
    whatif: str
    """Option of `traceq whatif`, or ""."""
    replaces: tuple[str, ...]
    """Codes, or prefixes of keys."""


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as JSON."""
    file.writelines(json_pieces(sheet))
    file.write("\n")


def json_pieces(sheet: Sheet) -> Iterator[str]:
    """Yield the JSON in pieces, so that the text of a thousand ranks is never in memory at once."""
    members: dict[str, object] = {
        "schema": sheet.schema or SHOW_SCHEMA,
        "source": _source(sheet.source),
        **{table.key: table for report in sheet.reports for table in report.tables},
        "findings": [_finding(finding) for finding in sheet.findings],
        "unknown": sheet.unknown,
        "warnings": sheet.all_caveats,
    }
    separator = "{\n "
    for key, value in members.items():
        yield f'{separator}"{key}": '
        if not isinstance(value, Table):
            yield _encoded(value)
        elif value.single:
            yield _encoded(_object(value))
        else:
            yield from _encoded_rows(value)
        separator = ",\n "
    yield "\n}"


def _encoded(value: object) -> str:
    """Return a member's value as JSON, indented by one level (line breaks within strings are escaped)."""
    return escape_json(msgspec.json.format(msgspec.json.encode(value), indent=1).decode()).replace("\n", "\n ")


def _encoded_rows(table: Table) -> Iterator[str]:
    """Yield all rows of a table as one JSON list, in batches whose own brackets are stripped."""
    keys, rows = [column.key for column in table.columns], iter(table.rows)
    opening = "["
    while batch := list(islice(rows, _ROWS)):
        yield opening + _encoded([_row(keys, row) for row in batch])[1:-3]
        opening = ","
    yield "[]" if opening == "[" else "\n ]"


def _object(table: Table) -> object:
    """Return the only row of a table, with its parts; None without a row."""
    if not table.rows:
        return None
    parts = {part.key: {str(name): value for name, value in part.rows} for part in table.parts}
    return {**_row([column.key for column in table.columns], table.rows[0]), **parts}


def _source(source: Source) -> SourceObject:
    members: SourceObject = {
        "path": source.path,
        "num_events": source.num_events,
        "ranks": source.ranks,
        "world_size": source.world_size,
        "device": source.device or None,
        "torch": source.torch or None,
    }
    if source.arm:
        members["arm"] = source.arm
    if source.step is not None:
        members["step"] = source.step
    if source.rows_of:
        members["rows_of"] = source.rows_of
    if source.window:
        members |= {"window": source.window.path, "num_windows": source.window.num}
    return members


def _finding(claim: Claim) -> FindingObject:
    rule, (least_ns, most_ns) = rule_of(claim), claim.gain or (None, None)
    subject = {name: value for name, value in asdict(claim.subject).items() if value not in ("", None)}
    return {
        "code": claim.code,
        "severity": claim.severity,
        "text": text_of(claim),
        "lead": lead_of(claim),
        "evidence": evidence_of(claim),
        "ns": claim.ns,
        "key": claim.key,
        "subject": subject,
        "measures": claim.measures,
        "least_gain_ns": least_ns,
        "most_gain_ns": most_ns,
        "gain_by": claim.gain_by,
        "num_steps": claim.basis.num_steps if claim.basis else 0,
        "is_unprofiled": claim.is_unprofiled,
        "remedy": claim.remedy or claim.code,
        "whatif": rule.whatif,
        "replaces": (*rule.explains, *(f"{kind}|" for kind in rule.explains_syncs)),
    }


def _row(keys: Sequence[str], row: tuple[Cell, ...]) -> dict[str, Cell]:
    return dict(zip(keys, row, strict=True))
