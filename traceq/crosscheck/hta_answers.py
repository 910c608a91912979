"""What HTA says about a trace, as JSON on the last line: a program, since importing HTA changes settings.

python -m traceq.crosscheck.hta_answers TRACE
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from traceq.kineto.categories import categorise
from traceq.model import Category

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # read when HTA is imported

_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
_SYNCHRONIZE = re.compile(r"^(cuda|hip)\w*Synchronize$")


def answers(path: str) -> dict[str, Any]:
    """Return `numbers` by quantity, times in us; the same of rows of the device alone (`device_numbers`).

    `num_of_host` counts other rows that HTA takes for device work; `kinds` has its class of each kernel's name;
    `launches` the names of calls that it takes for launches; `failed` why it does not tell a quantity.
    """
    from hta.trace_analysis import TraceAnalysis
    from hta.utils.utils import get_kernel_type

    result = TraceAnalysis(trace_files={0: path}, trace_dir="", include_last_profiler_step=True)
    frame, names = result.t.get_trace(0), result.t.symbol_table.sym_table
    is_device, category = frame["stream"] >= 0, _categories(frame, names)
    is_of_host = is_device & ~category.isin(_DEVICE)
    failed: dict[str, str] = {}
    numbers, device_numbers = _numbers(result, failed), None
    launches = frame.loc[result.t.symbol_table.get_runtime_launch_events_mask(frame), "name"].unique()
    if is_of_host.any():
        result.t.traces[0] = frame[~is_of_host]
        device_numbers = _numbers(result, failed)
    kernels = frame.loc[is_device & (category == Category.KERNEL), "name"].unique()
    return {
        "version": version("traceinsight"),
        "numbers": numbers,
        "device_numbers": device_numbers,
        "num_of_host": int(is_of_host.sum()),
        "kinds": {names[number]: get_kernel_type(names[number]) for number in kernels},
        "launches": [names[number] for number in launches],
        "failed": failed,
    }


def _categories(frame: Any, names: Sequence[str]) -> Any:
    """Return the Category of each row, a series."""
    return frame.groupby(["cat", "name"])["cat"].transform(
        lambda rows: categorise(*(names[part] for part in rows.name))
    )


def _numbers(result: Any, failed: dict[str, str]) -> dict[str, float]:
    frame, names = result.t.get_trace(0), result.t.symbol_table.sym_table

    def counts() -> dict[str, float]:
        category = _categories(frame[frame["stream"] >= 0], names)
        kernels, copies, memsets = (int((category == chosen).sum()) for chosen in _DEVICE)
        return {"kernels": kernels, "copies": copies, "memsets": memsets}

    def times() -> dict[str, float]:
        [row] = result.get_temporal_breakdown(visualize=False).to_dict("records")
        span, idle = row["kernel_time(us)"], row["idle_time(us)"]
        return {"span": span, "idle": idle, "busy": span - idle, "compute": row["compute_time(us)"]}

    def hidden() -> dict[str, float]:
        [row] = result.get_comm_comp_overlap(visualize=False).to_dict("records")
        return {"hidden": row["comp_comm_overlap_pctg"]}

    def copying() -> dict[str, float]:
        options = {"num_kernels": len(names), "include_memory_kernels": True, "visualize": False}
        kernels = result.get_gpu_kernel_breakdown(**options)[1]
        return {"copying": float(kernels.loc[kernels["name"].str.contains("Memcpy|^dma"), "sum (us)"].sum())}

    def queue() -> dict[str, float]:
        summary = result.get_queue_length_summary(ranks=[0])
        return {"queue": float(summary[("queue_length", "max")].max())}

    def synchronize() -> dict[str, float]:
        on_host = frame.loc[frame["stream"] < 0, "name"]
        return {"synchronize": int(on_host.map(lambda number: bool(_SYNCHRONIZE.match(names[number]))).sum())}

    numbers: dict[str, float] = {}
    questions: tuple[Callable[[], dict[str, float]], ...] = (counts, times, hidden, copying, queue, synchronize)
    for question in questions:
        try:
            numbers |= question()
        except Exception as error:  # noqa: BLE001 -- one analysis of HTA that fails costs its numbers alone
            failed[question.__name__] = f"{type(error).__name__}: {error}"[:200]
    return numbers


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    sys.stdout.write("\n" + json.dumps(answers(sys.argv[1])) + "\n")
