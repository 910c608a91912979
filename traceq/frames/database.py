"""SQL over the tables of a run, by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from traceq.errors import UsageFault
from traceq.frames.tables import NAMES, frame
from traceq.model import Run

__all__ = ["Answer", "Value", "ask"]

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as they are fetched. `is_text` says of each column whether it holds texts."""

    columns: tuple[str, ...]
    is_text: tuple[bool, ...]
    rows: Iterator[tuple[Value, ...]]


def ask(run: Run, sql: str) -> Answer:
    """What DuckDB answers. Raises UsageFault for SQL that it does not take, or where it is not installed."""
    try:
        import duckdb
    except ImportError:
        raise UsageFault("query needs DuckDB: pip install duckdb") from None
    database = duckdb.connect()
    database.execute("set global pandas_analyze_sample = 0")  # objects are texts; else a column is what its first are
    asked = [name for name in NAMES if name in sql.lower()] or NAMES
    for name in asked:
        database.register(name, frame(run, name).to_numpy())
    try:
        found = database.execute(sql)
        described = found.description or []
        kinds = [str(kind) for _, kind, *_ in described]
        return Answer(
            tuple(str(name) for name, *_ in described),
            tuple(kind in ("VARCHAR", '"NULL"') for kind in kinds),
            _rows(found, duckdb.Error),
        )
    except duckdb.Error as fault:
        raise _refused(fault) from None


def _rows(found: Any, fault_of: type[Exception]) -> Iterator[tuple[Value, ...]]:
    try:
        while row := found.fetchone():
            yield tuple(_value(value) for value in row)
    except fault_of as fault:
        raise _refused(fault) from None


def _refused(fault: Exception) -> UsageFault:
    return UsageFault(f"SQL: {str(fault).splitlines()[0]}")


def _value(value: object) -> Value:
    """Decimals as floats; what is neither text nor number as text."""
    if isinstance(value, Decimal):
        return float(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
