"""SQL over the tables of a run, by DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, count
from threading import Timer
from typing import Any

from traceq.entry_points import import_or_fault
from traceq.errors import UsageFault
from traceq.frames.tables import NAMES, Frame, frame
from traceq.frozen import frozen
from traceq.model import Run

Value = str | int | float | bool | None


@frozen
class Answer:
    """Result of a query, its rows fetched lazily. `is_text`: whether each column holds texts."""

    columns: tuple[str, ...]
    is_text: tuple[bool, ...]
    rows: Iterator[tuple[Value, ...]]


_CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}
"""Settings without which a query could read and write files, use the network, and load extensions."""

_INT64 = 1 << 63
_TEXTS = ("VARCHAR", "STRING", '"NULL"')
"""Types of texts, in new and in older versions of DuckDB, and of columns without a value."""


def ask(run: Run, sql: str, *, unsafe: bool = False, most_seconds: float | None = None) -> Answer:
    """Return the result of a DuckDB query over the tables of a run; the rest is that of `ask_tables`."""
    return ask_tables(lambda names: (frame(run, name) for name in names), sql, unsafe=unsafe, most_seconds=most_seconds)


def ask_tables(
    tables: Callable[[Sequence[str]], Iterable[Frame]],
    sql: str,
    *,
    unsafe: bool = False,
    most_seconds: float | None = None,
) -> Answer:
    """Return the result of a DuckDB query, which reaches nothing but the tables unless `unsafe`.

    `tables` makes those that the query may name. Columns of one name are numbered: `name`, `name_1`. A query that takes
    more than `most_seconds`, its rows included, is stopped. Raises UsageFault for invalid SQL, or for a query that
    was stopped, and TraceqError without DuckDB.
    """
    duckdb = import_or_fault("duckdb")
    database = duckdb.connect(config={} if unsafe else dict(_CLOSED))
    database.execute("set global pandas_analyze_sample = 0")  # objects are texts: infer no types from the first rows
    names = [name for name in NAMES if name in sql.lower()] or NAMES
    for table in tables(names):
        database.register(table.name, table.to_numpy())
    if not unsafe:
        database.execute("set lock_configuration = true")
    limit = Timer(most_seconds or 0, database.interrupt)
    limit.daemon = True
    if most_seconds is not None:
        limit.start()
    try:
        result = database.execute(sql)
        if result is None:
            raise UsageFault("SQL: no statement; expected something like: from syncs")
        description = result.description or []
        types = [str(type_) for _, type_, *_ in description]
        return Answer(
            _distinct([str(name) for name, *_ in description]),
            tuple(type_ in _TEXTS for type_ in types),
            _rows(result, duckdb.Error, limit),
        )
    except duckdb.Error as fault:
        limit.cancel()
        raise _sql_error(fault, limit.interval) from None
    except UsageFault:
        limit.cancel()
        raise


def _rows(result: Any, error: type[Exception], limit: Timer) -> Iterator[tuple[Value, ...]]:
    try:
        while row := result.fetchone():
            yield tuple(_value(value) for value in row)
    except error as fault:
        raise _sql_error(fault, limit.interval) from None
    finally:
        limit.cancel()


def _sql_error(fault: Exception, most_seconds: float) -> UsageFault:
    """Return the first line of a fault and what DuckDB proposes instead; of an unknown name also the tables."""
    first, *more = str(fault).splitlines()
    if first.startswith("INTERRUPT"):
        return UsageFault(f"SQL: stopped after {most_seconds:.0f} s; ask for less, or join fewer tables")
    text = " ".join(["SQL:", first, *(line for line in more if line.startswith(_PROPOSED))])
    tables = f"; the tables are {', '.join(NAMES)} (describe syncs: its columns)"
    return UsageFault(text + tables if first.startswith(_OF_NAMES) else text)


_PROPOSED = ("Candidate bindings", "Did you mean")
_OF_NAMES = ("Catalog Error", "Binder Error", "Parser Error")


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Return the names, those that are there already with a number."""
    distinct: dict[str, None] = {}
    for name in names:
        numbered = chain([name], (f"{name}_{number}" for number in count(1)))
        distinct[next(each for each in numbered if each not in distinct and (each == name or each not in names))] = None
    return tuple(distinct)


def _value(value: object) -> Value:
    """Return a value as text or number: Decimals as floats, all other types and integers beyond int64 as text."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
