"""HTA's containers, filled by traceq's reader: the same rows, columns, types and values as by HTA's parser."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hta.configs.env_options as hta_options
import numpy as np
import pandas as pd
from hta.common.trace import Trace, parse_trace_file
from hta.common.trace_parser import MetaDataKey, get_default_trace_parsing_backend, infer_gpu_type
from hta.common.trace_symbol_table import TraceSymbolTable
from hta.configs.parser_config import ParserBackend, ParserConfig
from hta.trace_analysis import TraceAnalysis
from hta.utils.utils import normalize_gpu_stream_numbers
from numpy.typing import NDArray

from traceq.kineto.event_values import MOST_ARGUMENTS, Cells, EventValues, Kind, read_event_values

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")

_DROPPED = {"ph", "id", "bp", "s", "args"}
_KEPT = {"name", "cat", "pid", "tid", "ts", "dur"}
_MISSING = Kind.ABSENT | Kind.NULL
_EXACT = 1 << 53
"""Up to here every int64 is a float64."""


class _NotPlain(Exception):
    """Values that pandas or HTA treat in a way that is not repeated here."""


COMPARED = "0.6."
"""Versions of HTA whose parser was compared with what is done here."""


def load(files: dict[int, str], include_last_profiler_step: bool) -> TraceAnalysis:
    """Return what `TraceAnalysis(trace_files=files, ...)` returns; of other versions of HTA by their own parser."""
    if not (installed := version("traceinsight")).startswith(COMPARED):
        warnings.warn(f"HTA {installed} parses by itself: traceq was compared with {COMPARED}*", stacklevel=3)
        return TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=include_last_profiler_step)
    result = TraceAnalysis.__new__(TraceAnalysis)
    result.t = _Trace(files, "")
    result.t.load_traces(include_last_profiler_step)
    return result


class _Trace(Trace):  # type: ignore[misc]
    """HTA's Trace with another parser."""

    def parse_multiple_ranks(
        self, ranks: Sequence[int], use_multiprocessing: bool = True, use_memory_profiling: bool = True
    ) -> None:
        """Read the traces of some ranks, one after the other in this process, and number their symbols alike."""
        del use_multiprocessing, use_memory_profiling
        for rank in ranks:
            metadata, frame, symbols = _parse(self.trace_files[rank], self.parser_config)
            if frame.empty:
                continue
            self.symbol_table.add_symbols(symbols.get_sym_table())
            numbers = self.symbol_table.get_sym_id_map()
            ids = np.array([numbers[symbol] for symbol in symbols.get_sym_table()], np.int64)
            for column in ("cat", "name"):
                frame[column] = ids[frame[column].to_numpy()]
            self.meta_data[rank], self.traces[rank] = metadata, frame

    def _filter_irrelevant_gpu_kernels(self, include_last_profiler_step: bool | None = False) -> None:
        """Keep the rows of whole steps, where there are several."""
        steps = self.symbol_table.get_profiler_step_ids()
        if len(steps) < 2 or self.get_device_type() == "MTIA":
            super()._filter_irrelevant_gpu_kernels(include_last_profiler_step)
            return
        for rank, frame in self.traces.items():
            ids, include_last = self.symbol_table.get_sym_id_map(), bool(include_last_profiler_step)
            rows = _of_whole_steps(frame, ids, steps, include_last=include_last)
            self.traces[rank] = frame.take(rows).reset_index(drop=True)


def _parse(path: str, config: ParserConfig) -> tuple[dict[str, Any], pd.DataFrame, TraceSymbolTable]:
    """Return what HTA's `parse_trace_file` does; what traceq does not read as HTA would, HTA reads."""
    specs = config.get_args()
    backend = config.parser_backend or get_default_trace_parsing_backend()
    keys = {spec.raw_name for spec in specs}
    if backend is ParserBackend.JSON and not config.parse_all_args and len(keys) <= MOST_ARGUMENTS:
        values = read_event_values(Path(path), list(keys))
        with suppress(_NotPlain):
            if values is not None:
                frame, symbols = _build_frame(values, specs)
                device = infer_gpu_type(dict(values.metadata), symbols.get_sym_id_map())
                return {**values.metadata, str(MetaDataKey.DEVICE_TYPE): device}, frame, symbols
    metadata, frame, symbols = parse_trace_file(path, config)
    return metadata, frame, symbols


def _build_frame(values: EventValues, specs: Sequence[Any]) -> tuple[pd.DataFrame, TraceSymbolTable]:
    """Return what HTA's `parse_trace_file` does for these arguments (AttributeSpec): a frame and its symbols.

    Raises NotPlain.
    """
    keys = [key for key in values.event_keys if key not in _DROPPED]
    names = {spec.name for spec in specs}
    if set(keys) != _KEPT or "args" not in values.event_keys or len(values.index) == 0:
        raise _NotPlain
    if not {"stream", "correlation"} <= names or names & {*_KEPT, "index", "end"}:
        raise _NotPlain
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
            raise _NotPlain
    ids = symbols.get_sym_id_map()
    columns["index_correlation"] = _downcast(_index_correlation(columns, ids))
    columns["iteration"] = _downcast(_iterations(columns, ids))
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
        raise _NotPlain
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
            raise _NotPlain
        return cells.numbers // 1000
    whole, part = np.divmod(cells.numbers, 1000)
    us = np.empty(len(values.index))
    is_exact = np.abs(cells.numbers) < _EXACT
    us[cells.number_rows] = np.where(is_exact, cells.numbers / 1000, whole + part / 1000)  # both correctly rounded
    for row, text in zip(cells.text_rows.tolist(), cells.texts.tolist(), strict=True):
        if type(number := values.texts[text]) not in (int, float):
            raise _NotPlain
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
            raise _NotPlain
        texts[key] = cells.texts
        first = np.full(len(values.texts), len(cells.texts))
        first[cells.texts[::-1]] = np.arange(len(cells.texts))[::-1]
        num_distinct = int((first < len(cells.texts)).sum())
        symbols = [values.texts[text] for text in np.argsort(first)[:num_distinct].tolist()]
        if any(type(symbol) is not str for symbol in symbols):
            raise _NotPlain
        used = used.union(set(symbols))
    if "cuda_profiler_range" in used:
        raise _NotPlain  # performance counters: arguments of any name
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
        raise _NotPlain
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
            raise _NotPlain
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


def _iterations(columns: Mapping[str, Any], ids: Mapping[str, int]) -> NDArray[Any]:
    """Return the number of the profiler step in which each row starts, of a device row that of its launch; else -1.

    HTA does not tell the step of device work on stream 0: float64[N] with NaN there, else an integer type.
    """
    ts, stream, partner = columns["ts"], columns["stream"], columns["index_correlation"]
    starts_in = _step_at(ts, *_steps(columns, ids))
    on_host = stream < 0
    if (cpu_op := ids.get("cpu_op")) is not None:  # Triton's have stream 0
        on_host |= (stream == 0) & (columns["cat"] == cpu_op)
    result = np.where(on_host, starts_in, np.nan)
    launches = np.searchsorted(columns["index"], np.maximum(partner, 0))
    launched_in = np.where(partner > 0, result[np.minimum(launches, len(ts) - 1)], -1)
    result = np.where(stream > 0, launched_in, result)
    return result if np.isnan(result).any() else result.astype(np.int64)


def _steps(columns: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return (starts, ends, numbers) of the rows that mark a step, in file order."""
    names = {number: _STEP.match(name) for name, number in ids.items() if name.startswith("ProfilerStep")}
    rows = np.flatnonzero(np.isin(columns["name"], list(names)))
    numbers = [int(match[1]) if (match := names[name]) else -1 for name in columns["name"][rows].tolist()]
    start = columns["ts"][rows]
    return start, start + columns["dur"][rows], np.array(numbers, np.int64)


def _step_at(
    ts: NDArray[Any], starts: NDArray[Any], ends: NDArray[Any], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of the last step, in the order given, that holds each time; -1 where none does."""
    edges = np.unique(np.concatenate([starts, ends]))
    between = np.full(len(edges) + 1, -1)  # times from edges[i - 1] to edges[i]
    for start, end, number in zip(starts, ends, numbers, strict=True):
        between[np.searchsorted(edges, start) + 1 : np.searchsorted(edges, end) + 1] = number
    return between[np.searchsorted(edges, ts, "right")]


def _index_correlation(columns: Mapping[str, Any], ids: Mapping[str, int]) -> NDArray[np.int64]:
    """Return int64[N]: `index` of what launched a device row or was launched by a call; 0 if that is no row, else -1.

    Of several rows with one correlation the last one counts.
    """
    index, correlation = columns["index"].astype(np.int64), columns["correlation"].astype(np.int64)
    on_device, is_linked = _on_device(columns, ids), correlation != -1
    device, host = np.flatnonzero(is_linked & on_device), np.flatnonzero(is_linked & ~on_device)
    result: NDArray[np.int64] = np.minimum(correlation, 0)
    for rows, others in ((host, device), (device, host)):
        order = others[np.argsort(correlation[others], kind="stable")]
        num_before = np.searchsorted(correlation[order], correlation[rows], "right")
        rows, last = rows[num_before > 0], order[num_before[num_before > 0] - 1]
        is_partner = correlation[last] == correlation[rows]
        result[rows[is_partner]] = index[last[is_partner]]
    return result


def _of_whole_steps(
    columns: Mapping[str, Any], ids: Mapping[str, int], steps: Collection[int], *, include_last: bool
) -> NDArray[np.int64]:
    """Return the rows of HTA's analyses: device work first, as often as rows of the host have its correlation.

    Rows of the host start before the last of the steps, whose symbols are given, or by its end; device work is that of
    these rows.
    """
    ts, correlation = np.asarray(columns["ts"]), np.asarray(columns["correlation"]).astype(np.int64)
    on_device = _on_device(columns, ids)
    host = np.flatnonzero(~on_device)
    if len(host) == 0:
        return np.arange(len(ts))
    marks = host[np.isin(np.asarray(columns["name"])[host], list(steps))]
    if include_last:
        host = host[ts[host] <= np.asarray(columns["end"])[marks if len(marks) else host].max()]
    else:
        host = host[ts[host] < (ts[marks].max() if len(marks) else ts[host].min())]
    device, calls = np.flatnonzero(on_device), np.sort(correlation[host])
    first, last = (np.searchsorted(calls, correlation[device], side) for side in ("left", "right"))
    return np.concatenate([np.repeat(device, last - first), host])


def _on_device(columns: Mapping[str, Any], ids: Mapping[str, int]) -> NDArray[np.bool_]:
    """Return whether HTA counts each row as one of the device: bool[N]."""
    syncs = [ids.get(name, -1) for name in ("Event Sync", "Context Sync")]
    stream, correlation = np.asarray(columns["stream"]), np.asarray(columns["correlation"])
    return ((stream >= 0) & (correlation >= 0)) | np.isin(np.asarray(columns["name"]), syncs)
