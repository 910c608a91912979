"""HTA's TraceAnalysis by its own parser and by traceq's: a program, as HTA changes settings when it is imported.

python hta_methods.py - '{"0": "rank0.json"}' ...         what is loaded of traces by rank, of each job
python hta_methods.py FOLDER '{"0": "rank0.json"}' ...    the results of all public methods, too; writes to the folder

Prints a list of JSON: `differences`; `failures`, the methods that raise, alike after both; how many traces traceq left
to HTA (`left`); the public methods that were `not_asked`.
"""

from __future__ import annotations

import gzip
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd


def compare(files: dict[int, str], folder: Path | None) -> dict[str, Any]:
    """The answers of both, method by method, in the same order: some methods change what is loaded."""
    from hta.trace_analysis import TraceAnalysis

    from traceq.interop.hta import analysis, loading

    left: list[str] = []
    parse = loading.parse_trace_file
    loading.parse_trace_file = lambda path, config: (left.append(path), parse(path, config))[1]
    theirs = answer(lambda files: TraceAnalysis(trace_files=dict(files), trace_dir=""), files)
    ours = answer(analysis, files)
    loading.parse_trace_file = parse
    methods = questions(sorted(files), folder) if folder else {}
    differences, failures = {}, {}
    public = [name for name in vars(TraceAnalysis) if not name.startswith("_")]
    result = {
        "differences": differences,
        "failures": failures,
        "left": len(left),
        "not_asked": sorted(set(public) - set(methods)),
    }
    if isinstance(theirs, Failure):
        failures["load"] = str(theirs)
        if theirs != ours:
            differences["load"] = f"{theirs}, not {ours}" if isinstance(ours, Failure) else "HTA cannot, traceq can"
        return result
    if isinstance(ours, Failure):
        differences["load"] = f"traceq cannot: {ours}"
        return result
    for name in ("traces", "meta_data", "min_ts", "trace_files", "is_parsed"):
        if difference := difference_of(getattr(theirs.t, name), getattr(ours.t, name)):
            differences[f"t.{name}"] = difference
    if theirs.t.symbol_table.sym_table != ours.t.symbol_table.sym_table:
        differences["t.symbol_table"] = "other symbols, or in another order"
    for name, ask in methods.items():
        expected, actual = answer(ask, theirs), answer(ask, ours)
        if isinstance(expected, Failure):
            failures[name] = str(expected)
        if difference := difference_of(expected, actual):
            differences[name] = difference
    return result


class Failure(str):
    """What a method raised."""


def answer(ask: Callable[[Any], Any], of: Any) -> Any:
    """The result of a method, or how it failed."""
    try:
        return ask(of)
    except Exception as fault:  # noqa: BLE001 - whatever it is, it is compared
        return Failure(f"{type(fault).__name__}: {str(fault)[:80]}")


def difference_of(expected: Any, actual: Any) -> str:
    """Where two results differ, "" where they are equal: values exactly, types, order and names of columns and rows."""
    if type(expected) is not type(actual):
        return f"{type(expected).__name__}, not {type(actual).__name__}: {str(expected)[:80]}, not {str(actual)[:80]}"
    if isinstance(expected, pd.DataFrame | pd.Series):
        same = pd.testing.assert_frame_equal if isinstance(expected, pd.DataFrame) else pd.testing.assert_series_equal
        try:
            same(expected, actual, check_exact=True)
        except AssertionError as fault:
            return str(fault)
        return ""
    if isinstance(expected, dict):
        if list(expected) != list(actual):
            return f"keys {list(expected)}, not {list(actual)}"
        parts = ((key, expected[key], actual[key]) for key in expected)
    elif isinstance(expected, list | tuple):
        if len(expected) != len(actual):
            return f"{len(expected)} items, not {len(actual)}"
        parts = ((str(index), one, other) for index, (one, other) in enumerate(zip(expected, actual, strict=True)))
    else:
        return "" if expected == actual else f"{str(expected)[:80]}, not {str(actual)[:80]}"
    return next((f"{key}: {text}" for key, one, other in parts if (text := difference_of(one, other))), "")


def questions(ranks: list[int], folder: Path) -> dict[str, Callable[[Any], Any]]:
    """Each public method as a call that gives something to compare; one that writes a trace gives its content."""
    rank, quiet = ranks[0], {"visualize": False}
    written = folder / "written"
    written.mkdir(exist_ok=True)

    def with_counters(of: Any) -> Any:
        of.generate_trace_with_counters(ranks=[rank])
        return contents(folder)

    def sequences(of: Any) -> Any:
        return of.get_frequent_cuda_kernel_sequences("aten::", str(written), rank=rank), contents(written)

    def critical_path(of: Any) -> Any:
        graph, is_done = path_of(of)
        edges = [
            (begin, end, {key: str(value) for key, value in data.items()})
            for begin, end, data in graph.edges(data=True)
        ]
        return is_done, list(map(str, graph.node_list)), edges, graph.critical_path_nodes, graph.summary()

    def path_of(of: Any) -> Any:
        name = next(
            name for name in of.t.symbol_table.sym_table if name.startswith(("ProfilerStep", "[param|", "execute_"))
        )
        return of.critical_path_analysis(rank, name, 0)

    def overlay(of: Any) -> Any:
        of.overlay_critical_path_analysis(rank, path_of(of)[0], str(written))
        return contents(written)

    def queues(of: Any) -> Any:
        return of.get_queue_length_time_series(ranks)

    return {
        "get_comm_comp_overlap": lambda of: of.get_comm_comp_overlap(**quiet),
        "get_profiler_steps": lambda of: of.get_profiler_steps(),
        "get_potential_stragglers": lambda of: of.get_potential_stragglers(),
        "get_gpu_kernel_breakdown": lambda of: of.get_gpu_kernel_breakdown(**quiet, num_kernels=1000),
        "get_gpu_kernels_with_user_annotations": lambda of: of.get_gpu_kernels_with_user_annotations(rank),
        "get_gpu_user_annotation_breakdown": lambda of: [
            of.get_gpu_user_annotation_breakdown(use_gpu_annotation=on_gpu, **quiet) for on_gpu in (True, False)
        ],
        "get_aten_op_kernels_and_delay": lambda of: of.get_aten_op_kernels_and_delay(ranks),
        "get_temporal_breakdown": lambda of: of.get_temporal_breakdown(**quiet),
        "get_cuda_kernel_launch_stats": lambda of: of.get_cuda_kernel_launch_stats(ranks, **quiet),
        "get_frequent_cuda_kernel_sequences": sequences,
        "generate_trace_with_counters": with_counters,
        "get_queue_length_summary": lambda of: of.get_queue_length_summary(ranks),
        "get_queue_length_time_series": queues,
        "get_queue_length_summary_from_time_series": lambda of: of.get_queue_length_summary_from_time_series(
            queues(of)
        ),
        "get_time_spent_blocked_on_full_queue": lambda of: of.get_time_spent_blocked_on_full_queue(queues(of), 4),
        "get_memory_bw_summary": lambda of: of.get_memory_bw_summary(ranks),
        "get_memory_bw_time_series": lambda of: of.get_memory_bw_time_series(ranks),
        "get_idle_time_breakdown": lambda of: of.get_idle_time_breakdown(
            ranks, **quiet, visualize_pctg=False, show_idle_interval_stats=True
        ),
        "get_cupti_counter_data_with_operators": lambda of: of.get_cupti_counter_data_with_operators(ranks),
        "critical_path_analysis": critical_path,
        "overlay_critical_path_analysis": overlay,
    }


def contents(folder: Path) -> dict[str, str]:
    """The new files in a folder, which are removed: name to text."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()]
    texts = {path.name: gzip.decompress(path.read_bytes()).decode() for path in files}
    for path in files:
        path.unlink()
    return texts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    place = None if sys.argv[1] == "-" else Path(sys.argv[1])
    jobs = [{int(rank): path for rank, path in json.loads(job).items()} for job in sys.argv[2:]]
    results = [compare(job, place) for job in jobs]
    sys.stdout.write("\n" + json.dumps(results) + "\n")
