"""What an analysis found: everything a renderer needs, nothing it must compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from traceq.model import Caveat
from traceq.units import Unit, format_value

__all__ = ["Cell", "Column", "Finding", "Report", "Sheet", "Source", "Table", "Unknown"]

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `key` is its name in JSON, `title` its heading for people."""

    key: str
    title: str = ""
    unit: Unit = Unit.TEXT


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. `key` names it in JSON; `single` marks one row that is an object there, not a list, or null
    without a row. `parts` of such a row are tables of a name and a number: objects within it.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    single: bool = False
    note: str = ""
    parts: tuple[Table, ...] = ()

    @property
    def non_empty_columns(self) -> Table:
        """The same without columns that are empty in every row, for people."""
        at = [n for n in range(len(self.columns)) if any(row[n] not in ("", None) for row in self.rows)]
        if not self.rows or len(at) == len(self.columns):
            return self
        rows = tuple(tuple(row[n] for n in at) for row in self.rows)
        return replace(self, columns=tuple(self.columns[n] for n in at), rows=rows)

    def __str__(self) -> str:
        """The table in plain text, columns aligned."""
        lines = [[column.title or column.key for column in self.columns], *self._texts()]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        padded = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([self.title, *(line.rstrip() for line in padded)])

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        head = "".join(f"<th>{escape(column.title or column.key)}</th>" for column in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>" for line in self._texts()
        )
        return (
            f"<table><caption>{escape(self.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def _texts(self) -> list[list[str]]:
        return [[format_value(v, c.unit) for v, c in zip(row, self.columns, strict=True)] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing worth a reader's time: `severity` high, medium or low; `ns` of a step that its remedy is about;
    `key` the row it is about; `instead_of`: what it tells better, as codes of findings or beginnings of their keys.
    """

    code: str
    severity: str
    text: str
    ns: int = 0
    key: str = ""
    instead_of: tuple[str, ...] = ()

    def tells(self, other: Finding) -> bool:
        """Says better, for a part of its time, what another finding says."""
        return any(other.code == name or other.key.startswith(name) for name in self.instead_of)


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a trace does not tell, and the argument of torch.profiler that would have recorded it."""

    what: str
    argument: str


@dataclass(frozen=True, slots=True)
class Report:
    """One analysis's answer: `tables` are complete and go to JSON, `views` are short and go to people."""

    name: str
    tables: tuple[Table, ...] = ()
    views: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    def __str__(self) -> str:
        """Findings and views in plain text."""
        return "\n\n".join(
            [*(finding.text for finding in self.findings), *(str(view.non_empty_columns) for view in self.views)]
        )

    def _repr_html_(self) -> str:
        """Findings and views in a notebook."""
        found = "".join(f"<p>{escape(finding.text)}</p>" for finding in self.findings)
        return found + "".join(view.non_empty_columns._repr_html_() for view in self.views)


@dataclass(frozen=True, slots=True)
class Source:
    """What was read: `device` and `torch` are "" where the trace does not say; `step` the only one of it."""

    path: str
    num_events: int
    ranks: tuple[int, ...]
    world_size: int
    device: str
    torch: str
    arm: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """The reports on one run, ready to be rendered."""

    source: Source
    reports: tuple[Report, ...]
    caveats: tuple[Caveat, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all reports: what is wrong, which has no cost in time, then the costliest first."""
        found = [finding for report in self.reports for finding in report.findings]
        return tuple(sorted(found, key=lambda finding: (finding.ns > 0 or finding.severity != "high", -finding.ns)))

    @property
    def top_findings(self) -> tuple[Finding, ...]:
        """Findings without those of which others tell half the time or more, and better."""

        def told_ns(finding: Finding) -> int:
            return sum(other.ns for other in self.findings if other.tells(finding))

        return tuple(finding for finding in self.findings if not finding.ns or 2 * told_ns(finding) < finding.ns)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What the traces do not tell; each once."""
        return tuple(dict.fromkeys(unknown for report in self.reports for unknown in report.unknown))

    @property
    def all_caveats(self) -> tuple[Caveat, ...]:
        """Doubts about the input, then those of the reports; each once."""
        found = [*self.caveats, *(caveat for report in self.reports for caveat in report.caveats)]
        return tuple(dict.fromkeys(found))
