"""HTA's containers, filled by traceq's reader instead of `json` and a DataFrame of dictionaries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hta.common.trace import Trace, parse_trace_file
from hta.common.trace_parser import MetaDataKey, get_default_trace_parsing_backend, infer_gpu_type
from hta.common.trace_symbol_table import TraceSymbolTable
from hta.configs.parser_config import ParserBackend, ParserConfig
from hta.trace_analysis import TraceAnalysis

from traceq.interop.hta.frame import NotPlain, build_frame
from traceq.interop.hta.launches import of_whole_steps
from traceq.kineto.event_values import MOST_ARGUMENTS, read_event_values

__all__ = ["load"]

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
            rows = of_whole_steps(frame, ids, steps, include_last=include_last)
            self.traces[rank] = frame.take(rows).reset_index(drop=True)


def _parse(path: str, config: ParserConfig) -> tuple[dict[str, Any], pd.DataFrame, TraceSymbolTable]:
    """Return what HTA's `parse_trace_file` does; what traceq does not read as HTA would, HTA reads."""
    specs = config.get_args()
    backend = config.parser_backend or get_default_trace_parsing_backend()
    keys = {spec.raw_name for spec in specs}
    if backend is ParserBackend.JSON and not config.parse_all_args and len(keys) <= MOST_ARGUMENTS:
        values = read_event_values(Path(path), list(keys))
        with suppress(NotPlain):
            if values is not None:
                frame, symbols = build_frame(values, specs)
                device = infer_gpu_type(dict(values.metadata), symbols.get_sym_id_map())
                return {**values.metadata, str(MetaDataKey.DEVICE_TYPE): device}, frame, symbols
    metadata, frame, symbols = parse_trace_file(path, config)
    return metadata, frame, symbols
