"""What HTA says about some traces, as JSON: run as a program, since importing HTA takes seconds and changes settings.

HTA_DISABLE_NS_ROUNDING=1 python hta_answers.py TRACE...
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any


def answers(path: str) -> dict[str, Any]:
    """Times in us; `overlaps` maps the kinds of device work that run at once to the time they do; `rows` counts what
    HTA takes for device work, by category.
    """
    from hta.trace_analysis import TraceAnalysis

    # HTA leaves out the last step unless told
    result = TraceAnalysis(trace_files={0: path}, trace_dir="", include_last_profiler_step=True)
    times = result.get_temporal_breakdown(visualize=False).to_dict("records")[0]
    overlap = result.get_comm_comp_overlap(visualize=False).to_dict("records")[0]
    kinds = result.get_gpu_kernel_breakdown(visualize=False)[0].to_dict("records")
    gaps = result.get_idle_time_breakdown(ranks=[0], visualize=False)[0].to_dict("records")
    frame, names = result.t.get_trace(0), result.t.symbol_table.sym_table
    of_device = frame.loc[frame["stream"] >= 0, "cat"].map(lambda number: names[number])
    return {
        "span": times["kernel_time(us)"],
        "idle": times["idle_time(us)"],
        "compute": times["compute_time(us)"],
        "other": times["non_compute_time(us)"],
        "hidden_pct": overlap["comp_comm_overlap_pctg"],
        "overlaps": {row["kernel_type"]: int(row["sum"]) for row in kinds},
        "gaps": {f"{row['stream']} {row['idle_category']}": row["idle_time"] for row in gaps},
        "rows": {key: int(num) for key, num in of_device.value_counts().items()},
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    by_path = {path: answers(path) for path in sys.argv[1:]}
    sys.stdout.write("\n" + json.dumps(by_path) + "\n")
