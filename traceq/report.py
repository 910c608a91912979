"""What an analysis found: everything a renderer needs, nothing it must compute."""

from __future__ import annotations

from dataclasses import dataclass

from traceq.model import Caveat
from traceq.units import Unit

__all__ = ["Cell", "Column", "Finding", "Report", "Sheet", "Source", "Table"]

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `key` is its name in JSON, `title` its heading for people."""

    key: str
    title: str = ""
    unit: Unit = Unit.TEXT


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. `key` names it in JSON; `single` marks one row that is an object there, not a list."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    single: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing worth a reader's time: `severity` high, medium or low; `ns` what it costs; `key` the row it is about."""

    code: str
    severity: str
    text: str
    ns: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """One analysis's answer: `tables` are complete and go to JSON, `views` are short and go to people."""

    name: str
    tables: tuple[Table, ...] = ()
    views: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """What was read: `device` and `torch` are "" where the trace does not say."""

    path: str
    num_events: int
    ranks: tuple[int, ...]
    world_size: int
    device: str
    torch: str
    arm: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The reports on one run, ready to be rendered."""

    source: Source
    reports: tuple[Report, ...]
    caveats: tuple[Caveat, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all reports, the costliest first."""
        found = [finding for report in self.reports for finding in report.findings]
        return tuple(sorted(found, key=lambda finding: -finding.ns))

    @property
    def all_caveats(self) -> tuple[Caveat, ...]:
        """Doubts about the input, then those of the reports; each once."""
        found = [*self.caveats, *(caveat for report in self.reports for caveat in report.caveats)]
        return tuple(dict.fromkeys(found))
