"""Results of analyses: tables, findings and caveats, with all that a renderer needs and nothing left to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from traceq.claims.claim import LOW, Claim
from traceq.claims.limits import MODERATE, NOTABLE
from traceq.claims.rules import questions_rest, supersedes
from traceq.claims.saying import lead_of, line_of
from traceq.display import to_html, to_text
from traceq.entry_points import import_or_fault
from traceq.errors import UsageFault
from traceq.frozen import frozen
from traceq.model import Caveat, Window
from traceq.units import Unit

Cell = str | int | float | bool | None
Row = TypeVar("Row")
_COLUMN = "column"

BECOMES = " → "
"""Between two names in a cell of which the second replaced the first: both are cut where there is little room."""

MOST_LEADS = 3
"""Findings that lead the first screen."""
_MOST_KEYS = 8
"""Columns that the repr of a table lists."""


@frozen
class Column:
    """A column of a table: `key` is its name in JSON, `title` its heading for people.

    `is_per_step`: times are per step, and the heading says so where the trace has steps. `is_hidden`: in JSON only.
    """

    key: str
    title: str = ""
    unit: Unit = Unit.TEXT
    is_per_step: bool = False
    is_hidden: bool = False

    @property
    def heading(self) -> str:
        """The title, followed by `per step` where times are per step; "" for a column without a title."""
        return f"{self.title} per step".strip() if self.is_per_step else self.title


def column(
    title: str = "", unit: Unit = Unit.TEXT, *, key: str = "", is_per_step: bool = False, is_hidden: bool = False
) -> Any:
    """Declare a field of a row dataclass as a column of its table; its JSON key is the field's name unless given."""
    return field(metadata={_COLUMN: Column(key, title, unit, is_per_step, is_hidden)})


def columns_of(row_type: type[Any]) -> dict[str, Column]:
    """Return the columns of a row dataclass by the names of their fields, without fields declared without `column`."""
    declared = {each.name: each.metadata[_COLUMN] for each in fields(row_type) if _COLUMN in each.metadata}
    return {name: replace(item, key=item.key or name) for name, item in declared.items()}


class _CellRows(Sequence[tuple[Cell, ...]]):
    """Cells of rows that need not be in memory at once, made anew on each iteration."""

    def __init__(self, rows: Sequence[Any], cells: Callable[[Any], tuple[Cell, ...]]) -> None:
        self._rows, self._cells = rows, cells

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return map(self._cells, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


@frozen
class Table:
    """Rows of cells under columns; `Table.of` makes a table of typed rows.

    `key` names it in JSON. `single`: JSON has its only row as an object, or null without a row, instead of a list.
    `parts` of such a row are tables of a name and a number, which are objects within it. `row_type`: the dataclass that
    declares the columns, None where none does.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    single: bool = False
    note: str = ""
    parts: tuple[Table, ...] = ()
    row_type: type[Any] | None = None

    @classmethod
    def of(cls, key: str, title: str, row_type: type[Row], rows: Sequence[Row], **options: Any) -> Table:
        """Return the table of dataclass rows, its columns declared by the fields of `row_type` (`column`).

        `options` are further fields of Table. Rows in a tuple or a list become cells now, those of any other sequence
        each time they are iterated.
        """
        columns = columns_of(row_type)
        names = list(columns)
        cells = attrgetter(*names) if len(names) > 1 else lambda row: (getattr(row, names[0]),)
        cell_rows = tuple(map(cells, rows)) if isinstance(rows, tuple | list) else _CellRows(rows, cells)
        return cls(key, title, tuple(columns.values()), cell_rows, row_type=row_type, **options)

    def select(self, *keys: str) -> Table:
        """Return the same rows with the columns of these keys, in this order."""
        index = {column.key: number for number, column in enumerate(self.columns)}
        chosen = [index[key] for key in keys]
        rows = tuple(tuple(row[number] for number in chosen) for row in self.rows)
        return replace(self, columns=tuple(self.columns[number] for number in chosen), rows=rows)

    def without(self, *keys: str) -> Table:
        """Return the same rows without the columns of these keys."""
        return self.select(*(column.key for column in self.columns if column.key not in keys))

    def with_column(self, column: Column, values: Iterable[Cell]) -> Table:
        """Return the same rows with one more column on the right."""
        rows = tuple((*row, value) for row, value in zip(self.rows, values, strict=True))
        return replace(self, columns=(*self.columns, column), rows=rows)

    def largest_first(self, key: str) -> Table:
        """Return the same rows in descending order of a column of numbers, in which None counts as 0."""
        index = [column.key for column in self.columns].index(key)
        return replace(self, rows=tuple(sorted(self.rows, key=lambda row: -float(row[index] or 0))))

    @property
    def visible(self) -> Table:
        """The same table without columns that only JSON shows."""
        return self.without(*(column.key for column in self.columns if column.is_hidden))

    @property
    def non_empty_columns(self) -> Table:
        """The same table without columns that are empty in every row, for people."""
        filled = [
            number for number in range(len(self.columns)) if any(row[number] not in ("", None) for row in self.rows)
        ]
        if not self.rows or len(filled) == len(self.columns):
            return self
        return self.select(*(self.columns[number].key for number in filled))

    def __repr__(self) -> str:
        keys = [column.key for column in self.columns]
        more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
        return f"<Table {self.key}: {_count(self.rows, 'row')} of {', '.join(keys[:_MOST_KEYS])}{more}>"

    def __str__(self) -> str:
        return to_text("table", self)

    def _repr_html_(self) -> str:
        return to_html("table", self)

    def to_dicts(self) -> list[dict[str, Cell]]:
        """Return the rows as dictionaries with the keys of `--json`; times in ns."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table with the keys of `--json`. Raises TraceqError without pyarrow."""
        arrow, rows = import_or_fault("pyarrow"), list(self.rows)
        return arrow.table({column.key: [row[index] for row in rows] for index, column in enumerate(self.columns)})

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with the keys of `--json`. Raises TraceqError without pandas."""
        columns = [column.key for column in self.columns]
        return import_or_fault("pandas").DataFrame.from_records(list(self.rows), columns=columns)


@frozen
class Unknown:
    """Facts that a trace lacks, and the argument of torch.profiler that records them."""

    what: str
    argument: str


@frozen
class Report:
    """Result of one analysis: `tables` are complete and go to JSON, `views` are short and go to people.

    `first` are those of the first screen where they are not the views: a few columns of what a step has.
    """

    name: str
    tables: tuple[Table, ...] = ()
    views: tuple[Table, ...] = ()
    findings: tuple[Claim, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    first: tuple[Table, ...] = ()

    def table(self, key: str) -> Table:
        """Return the complete table of that key. Raises UsageFault."""
        for table in self.tables:
            if table.key == key:
                return table
        keys = ", ".join(table.key for table in self.tables)
        raise UsageFault(f"{self.name}: no table {key!r}; choose from {keys}")

    def __repr__(self) -> str:
        keys = ", ".join(table.key for table in self.tables)
        return f"<Report {self.name}: {_count(self.findings, 'finding')}; tables: {keys or 'none'}>"

    def __str__(self) -> str:
        return to_text("report", self)

    def _repr_html_(self) -> str:
        return to_html("report", self)


@frozen
class StepTime:
    """Mean, shortest and longest of `num` steps, ns, each the mean of all ranks; of unprofiled ones the slowest rank's.

    `num_partial` steps beside them are left out, as the trace has only a part of each. `is_step`: the trace has steps;
    else it is one.
    """

    mean_ns: float
    least_ns: float
    most_ns: float
    num: int
    num_partial: int = 0
    is_step: bool = True


@frozen
class Source:
    """What was read; `device` and `torch` are "" where the trace does not say, `step` is set where it has only one.

    `lacks_device_rows`: the job has a device, and a trace has none of its rows. `rows_of`: the ranks whose rows tables
    have, which stand for the others; empty where they have those of all. `traced` and `unprofiled` steps, None without.
    `window`: which one was read of several in a folder. `is_distributed`: the ranks form a group, which may be of one.
    """

    path: str
    num_events: int
    ranks: tuple[int, ...]
    world_size: int
    device: str
    torch: str
    arm: str = ""
    step: int | None = None
    lacks_device_rows: bool = False
    rows_of: tuple[int, ...] = ()
    traced: StepTime | None = None
    unprofiled: StepTime | None = None
    window: Window | None = None
    is_distributed: bool = False


def _doubt(claim: Claim) -> int:
    """Return 0 for an error, which has no cost in time, 1 for what else questions the rest, and 2 for all others."""
    if not questions_rest(claim):
        return 2
    return 1 if claim.ns else 0


@frozen
class Sheet:
    """The reports on one run, ready to be rendered.

    `schema` is that of its JSON, "" for that of runs. `is_selectable`: `--only` can choose among the reports.
    """

    source: Source
    reports: tuple[Report, ...]
    caveats: tuple[Caveat, ...] = ()
    schema: str = ""
    is_selectable: bool = True

    @property
    def findings(self) -> tuple[Claim, ...]:
        """Findings of all reports: errors, which have no cost in time, then the costliest; last what saves nothing."""

        def order(finding: Claim) -> tuple[bool, bool, int]:
            return _doubt(finding) > 0, finding.severity == LOW, -finding.ns

        return tuple(sorted((finding for report in self.reports for finding in report.findings), key=order))

    @property
    def top_findings(self) -> tuple[Claim, ...]:
        """Findings without those whose time others explain better, by half or more of it.

        Times of traced and of unprofiled steps are not compared: there the one that explains better stands. What gains
        nothing does not explain time that nobody knows how to gain.
        """

        def explained_ns(finding: Claim) -> int:
            return sum(
                other.ns if other.is_unprofiled == finding.is_unprofiled else finding.ns
                for other in self.findings
                if supersedes(other, finding) and not (finding.gain is None and self._gains_nothing(other))
            )

        return tuple(finding for finding in self.findings if not finding.ns or 2 * explained_ns(finding) < finding.ns)

    @property
    def leads(self) -> tuple[Claim, ...]:
        """What one can act on: errors and what questions the rest, then by the middle of what it gains, then by time.

        What it gains may not be known: then it stands before what is hardly worth a change. Notes come last, first
        those of traced steps. Of several about one line of source only the first.
        """

        def order(finding: Claim) -> tuple[int, int, int, int, int]:
            note = 1 + finding.is_unprofiled if finding.severity == LOW else 0
            if finding.gain is None:
                worth = 3 if note else 1
            else:
                worth = 2 if sum(finding.gain) < 2 * MODERATE * self.recurring_ns else 0
            return _doubt(finding), worth, note, -sum(finding.gain or ()), -finding.ns

        leads: list[Claim] = []
        for finding in sorted((each for each in self.top_findings if not self._gains_nothing(each)), key=order):
            line = line_of(finding)
            if not line or all(line != line_of(other) for other in leads):
                leads.append(finding)
        return tuple(leads)

    @property
    def without_gain(self) -> tuple[Claim, ...]:
        """Findings without which the step would be as long."""
        return tuple(filter(self._gains_nothing, self.top_findings))

    @property
    def recurring_ns(self) -> float:
        """The mean traced step without what a finding tells to be once; 0.0 without steps."""
        traced, once_ns = self.source.traced, sum(each.ns for each in self._cold_starts)
        return max(traced.mean_ns - once_ns / traced.num, 0.0) if traced else 0.0

    @property
    def has_cold_start(self) -> bool:
        """Whether a finding tells that a good deal of the traced steps is once."""
        return bool(self._cold_starts)

    @property
    def _cold_starts(self) -> list[Claim]:
        return [each for each in self.findings if each.code == "cold_start"]

    def _gains_nothing(self, finding: Claim) -> bool:
        return finding.gain is not None and finding.gain[1] < max(NOTABLE * self.recurring_ns, 1)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """Facts that the traces do not contain; each once."""
        return tuple(dict.fromkeys(unknown for report in self.reports for unknown in report.unknown))

    @property
    def all_caveats(self) -> tuple[Caveat, ...]:
        """Caveats about the input, then those of the reports; each once."""
        caveats = [*self.caveats, *(caveat for report in self.reports for caveat in report.caveats)]
        return tuple(dict.fromkeys(caveats))

    def report(self, name: str) -> Report:
        """Return the report of one analysis. Raises UsageFault."""
        for report in self.reports:
            if report.name == name:
                return report
        raise UsageFault(f"no report {name!r}; choose from {', '.join(report.name for report in self.reports)}")

    def __repr__(self) -> str:
        first = f": {lead_of(self.top_findings[0])}" if self.top_findings else ""
        counts = f"{_count(self.reports, 'report')}, {_count(self.findings, 'finding')}"
        return f"<Sheet {self.source.path}: {counts}{first}>"

    def __str__(self) -> str:
        return to_text("sheet", self)

    def _repr_html_(self) -> str:
        return to_html("sheet", self)


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
