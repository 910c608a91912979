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
    """Result of a query, its rows fetched lazily. `is_text`: whether each column holds texts."""

    columns: tuple[str, ...]
    is_text: tuple[bool, ...]
    rows: Iterator[tuple[Value, ...]]


def ask(run: Run, sql: str) -> Answer:
    """Return the result of a DuckDB query. Raises UsageFault for invalid SQL, or if DuckDB is not installed."""
    try:
        import duckdb
    except ImportError:
        raise UsageFault("query needs DuckDB: pip install duckdb") from None
    database = duckdb.connect()
    database.execute("set global pandas_analyze_sample = 0")  # objects are texts: infer no types from the first rows
    names = [name for name in NAMES if name in sql.lower()] or NAMES
    for name in names:
        database.register(name, frame(run, name).to_numpy())
    try:
        result = database.execute(sql)
        description = result.description or []
        types = [str(type_) for _, type_, *_ in description]
        return Answer(
            tuple(str(name) for name, *_ in description),
            tuple(type_ in ("VARCHAR", '"NULL"') for type_ in types),
            _rows(result, duckdb.Error),
        )
    except duckdb.Error as fault:
        raise _sql_error(fault) from None


def _rows(result: Any, error: type[Exception]) -> Iterator[tuple[Value, ...]]:
    try:
        while row := result.fetchone():
            yield tuple(_value(value) for value in row)
    except error as fault:
        raise _sql_error(fault) from None


def _sql_error(fault: Exception) -> UsageFault:
    return UsageFault(f"SQL: {str(fault).splitlines()[0]}")


def _value(value: object) -> Value:
    """Return a value as text or number: Decimals as floats, all other types as text."""
    if isinstance(value, Decimal):
        return float(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
