"""Values of events as the DataFrame that HTA's parser makes of them: the same rows, columns, types and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hta.configs.env_options as hta_options
import numpy as np
import pandas as pd
from hta.common.trace_symbol_table import TraceSymbolTable
from hta.utils.utils import normalize_gpu_stream_numbers
from numpy.typing import NDArray

from traceq.interop.hta.iterations import iterations
from traceq.interop.hta.launches import index_correlation
from traceq.kineto.event_values import Cells, EventValues, Kind

__all__ = ["NotPlain", "build_frame"]

_DROPPED = {"ph", "id", "bp", "s", "args"}
_KEPT = {"name", "cat", "pid", "tid", "ts", "dur"}
_MISSING = Kind.ABSENT | Kind.NULL
_EXACT = 1 << 53
"""Up to here every int64 is a float64."""


class NotPlain(Exception):
    """Values that pandas or HTA treat in a way that is not repeated here."""


def build_frame(values: EventValues, specs: Sequence[Any]) -> tuple[pd.DataFrame, TraceSymbolTable]:
    """Return what HTA's `parse_trace_file` does for these arguments (AttributeSpec): a frame and its symbols.

    Raises NotPlain.
    """
    keys = [key for key in values.event_keys if key not in _DROPPED]
    names = {spec.name for spec in specs}
    if set(keys) != _KEPT or "args" not in values.event_keys or len(values.index) == 0:
        raise NotPlain
    if not {"stream", "correlation"} <= names or names & {*_KEPT, "index", "end"}:
        raise NotPlain
    columns: dict[str, Any] = {"index": _downcast(values.index)}
    columns |= dict.fromkeys(keys)
    columns |= _times(values)
    symbols = _encode(values, columns)
    for key in ("pid", "tid"):
        columns[key] = _event_column(key, values)
    for spec in specs:
        columns[spec.name] = _argument_column(values.of_arguments[spec.raw_name], values, spec)
    for key in ("stream", "correlation"):
        if columns[key].dtype.kind != "i":
            raise NotPlain
    ids = symbols.get_sym_id_map()
    columns["index_correlation"] = _downcast(index_correlation(columns, ids))
    columns["iteration"] = _downcast(iterations(columns, ids))
    columns["end"] = columns["ts"] + columns["dur"]
    return pd.DataFrame(columns).set_index(pd.Index(values.index.astype(np.int64))), symbols


def _downcast(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the smallest signed type that holds them, as `pandas.to_numeric(downcast="integer")`."""
    if numbers.dtype.kind != "i" or len(numbers) == 0:
        return numbers
    least, most = numbers.min(), numbers.max()
    fits = (
        kind for kind in (np.int8, np.int16, np.int32) if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max
    )
    return numbers.astype(next(fits, np.int64))


# ---- times --------------------------------------------------------------------------------------------------------


def _times(values: EventValues) -> dict[str, NDArray[Any]]:
    """Return `ts` and `dur` in us, and `end` where HTA rounds them to whole us, which takes `ts` for decimals."""
    of_ts, of_dur = values.of_event["ts"], values.of_event["dur"]
    numbers = Kind.INTEGER | Kind.DECIMAL | _MISSING
    if (of_ts.kinds | of_dur.kinds) & ~numbers or len(of_ts.numbers) + len(of_ts.texts) < len(values.index):
        raise NotPlain
    ts, dur = _microseconds(of_ts, values), _microseconds(of_dur, values)
    if ts.dtype.kind == "i" or hta_options.disable_ns_rounding():
        return {"ts": _downcast(ts), "dur": _downcast(dur)}
    has_all_ts = not of_ts.kinds & _MISSING
    has_all_ends = has_all_ts and not of_dur.kinds & _MISSING
    end = np.floor(ts + dur)
    ts = np.ceil(ts).astype(np.int64 if has_all_ts else np.float64)
    end = end.astype(np.int64 if has_all_ends else np.float64)
    return {"ts": _downcast(ts), "dur": _downcast(end - ts), "end": end}


def _microseconds(cells: Cells, values: EventValues) -> NDArray[Any]:
    """Return the numbers as `json` reads them, int64[N], or float64[N] if one of any event is a decimal or missing."""
    if cells.kinds == Kind.INTEGER:
        if len(cells.texts):
            raise NotPlain
        return cells.numbers // 1000
    whole, part = np.divmod(cells.numbers, 1000)
    us = np.empty(len(values.index))
    is_exact = np.abs(cells.numbers) < _EXACT
    us[cells.number_rows] = np.where(is_exact, cells.numbers / 1000, whole + part / 1000)  # both correctly rounded
    for row, text in zip(cells.text_rows.tolist(), cells.texts.tolist(), strict=True):
        if type(number := values.texts[text]) not in (int, float):
            raise NotPlain
        us[row] = number
    return us


# ---- names --------------------------------------------------------------------------------------------------------


def _encode(values: EventValues, columns: dict[str, Any]) -> TraceSymbolTable:
    """Set the columns `cat` and `name` to numbers of symbols, and return these, numbered as HTA does.

    HTA numbers them in the order of a set of Python, which depends on the order in which it was filled.
    """
    used: set[str] = set()
    texts: dict[str, NDArray[np.int32]] = {}
    for key in ("cat", "name"):
        cells = values.of_event[key]
        if len(cells.texts) < len(values.index):
            raise NotPlain
        texts[key] = cells.texts
        first = np.full(len(values.texts), len(cells.texts))
        first[cells.texts[::-1]] = np.arange(len(cells.texts))[::-1]
        num_distinct = int((first < len(cells.texts)).sum())
        symbols = [values.texts[text] for text in np.argsort(first)[:num_distinct].tolist()]
        if any(type(symbol) is not str for symbol in symbols):
            raise NotPlain
        used = used.union(set(symbols))
    if "cuda_profiler_range" in used:
        raise NotPlain  # performance counters: arguments of any name
    table = TraceSymbolTable()
    table.add_symbols(used)
    ids = table.get_sym_id_map()
    for key, of_rows in texts.items():
        distinct, codes = _distinct_texts(of_rows, values)
        columns[key] = np.array([ids[values.texts[text]] for text in distinct.tolist()], np.int64)[codes]
    return table


# ---- columns of any type ------------------------------------------------------------------------------------------


def _event_column(key: str, values: EventValues) -> Any:
    """Return a column of the events' own keys; pandas infers its type from all events, also those that are no rows."""
    cells = values.of_event[key]
    if cells.kinds & Kind.OTHER:
        raise NotPlain
    if cells.kinds == Kind.INTEGER:
        return _downcast(cells.numbers)
    distinct, codes = _distinct(cells, values, None)
    samples = {Kind.NULL: None, Kind.INTEGER: 0, Kind.DECIMAL: 0.5, Kind.STRING: ""}
    records = [{key: value} for value in distinct]
    records += [{key: sample} for kind, sample in samples.items() if kind & cells.kinds]
    records += [{}] if cells.kinds & Kind.ABSENT else []
    return _taken(pd.DataFrame(records)[key], codes)


def _argument_column(cells: Cells, values: EventValues, spec: Any) -> Any:
    """Return a column of arguments; pandas infers its type from the rows' values and the default of those without."""
    count = len(values.index)
    if cells.kinds in (Kind(0), Kind.INTEGER) and type(spec.default_value) is int:
        numbers = np.full(count, spec.default_value, np.int64)
        numbers[cells.number_rows] = cells.numbers
        return _downcast(numbers)
    distinct, codes = _distinct(cells, values, spec.default_value)
    column = pd.Series(distinct, dtype=object).apply(lambda value: value)
    if spec.name == "stream":
        if cells.kinds & Kind.OTHER:
            raise NotPlain
        column = column.to_frame("stream")
        normalize_gpu_stream_numbers(column)
        column = column["stream"]
    return _taken(column, codes)


def _distinct(cells: Cells, values: EventValues, default: object) -> tuple[list[Any], NDArray[np.int64]]:
    """Return (distinct values, one's index for each row); rows that lack the key have the default."""
    numbers, of_numbers = np.unique(cells.numbers, return_inverse=True)
    texts, of_texts = _distinct_texts(cells.texts, values)
    distinct = [*numbers.tolist(), *(values.texts[text] for text in texts.tolist())]
    codes = np.full(len(values.index), len(distinct))
    codes[cells.number_rows] = of_numbers
    codes[cells.text_rows] = len(numbers) + of_texts
    has_default = len(cells.numbers) + len(cells.texts) < len(values.index)
    return [*distinct, default] if has_default else distinct, codes


def _distinct_texts(texts: NDArray[np.int32], values: EventValues) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (indices of the texts that occur, ascending; for each text its place among them)."""
    occurs = np.zeros(len(values.texts), np.bool_)
    occurs[texts] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[texts]


def _taken(column: Any, codes: NDArray[np.int64]) -> Any:
    """Return the values at some places of a series, in its type: pandas would infer one from objects."""
    values = column.array.take(codes)
    return _downcast(values.to_numpy()) if column.dtype.kind == "i" else pd.Series(values, dtype=column.dtype)
