"""Time the models of work, and print what of the device's time has one, on real traces with recorded shapes.

    python benchmarks/roofline.py ../shared/traces
    python benchmarks/roofline.py TRACE...

Times are CPU seconds per million events, the median of five runs, with the facts that other analyses share made before;
the last line is that of all traces together. `mm` is the rate of aten::mm over its kernels, in TFLOP/s.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import forward_op
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.roofline.modelled_ops import ModelledOps, TimeKind, modelled_ops
from traceq.facts.roofline.op_work import rank_work
from traceq.facts.timeline.phases import phases
from traceq.model import Trace
from traceq.runs.read import read

RUNS = 5


def seconds(trace: Trace) -> float:
    """CPU seconds of the models of one trace."""
    taken = []
    for _ in range(RUNS):
        fresh = replace(trace)  # facts are kept per trace object
        for shared in (device_work, launched_kernels, forward_op, phases):
            shared(fresh)
        start = time.process_time()
        rank_work(fresh)
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def write(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print a line for each trace."""
    paths = [Path(word) for word in sys.argv[1:]]
    files = sorted(file for path in paths for file in (path.rglob("*.json.gz") if path.is_dir() else [path]))
    write(f"{'trace':45} {'events':>9} {'s / million':>11} {'modelled':>9} {'of linked':>9} {'mm':>6}")
    total_s, total_num = 0.0, 0
    for file in files:
        (trace,) = read(file).traces
        if not (trace.events.shapes >= 0).any() or not len(device_work(trace)):
            continue
        ops, num = modelled_ops(trace), len(trace.events)
        ns = np.bincount(ops.unit_kind, ops.unit_ns, len(TimeKind))
        modelled = 100 * ns[TimeKind.MODELLED] / ns.sum()
        linked = 100 * ns[TimeKind.MODELLED] / max(ns.sum() - ns[TimeKind.NO_OP], 1)
        taken_s = seconds(trace)
        total_s, total_num = total_s + taken_s, total_num + num
        name, rate = f"{file.parent.name}/{file.name}", taken_s / num * 1e6
        write(f"{name:45} {num:9,} {rate:11.2f} {modelled:7.1f} % {linked:7.1f} % {product_rate(ops):6.1f}")
    write(f"{'all of them':45} {total_num:9,} {total_s / max(total_num, 1) * 1e6:11.2f}")


def product_rate(ops: ModelledOps) -> float:
    """Return TFLOP/s of aten::mm over the time of its kernels; 0.0 without any."""
    is_product = np.array([ops.texts[name] == "aten::mm" for name in ops.name.tolist()], np.bool_)
    if not len(ops.works):
        return 0.0
    flops = np.array([work.flops for work in ops.works], np.float64)[ops.work[is_product]]
    return float(flops.sum() / max(int(ops.ns[is_product].sum()), 1) / 1e3)


if __name__ == "__main__":
    main()
