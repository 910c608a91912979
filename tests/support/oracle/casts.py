"""Kernels whose launch is in an `aten::copy_` of two types, in the whole steps of one file."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from .nested import nested
from .phases import Phases
from .reader import read
from .steps import windows
from .unrecorded import gaps, opening

__all__ = ["casts"]


def casts(path: Path) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Source, target and outermost op of casts -> their number and ns."""
    trace = read(path)
    whole = windows(trace, Phases(trace), opening(trace, gaps(trace)))
    counted = [row["index"] for row in whole if not row["partial"]] or [row["index"] for row in whole]
    spans = [trace.host_steps[index][1:] for index in counted]
    ops = nested(event for event in trace.events if event.cat == "cpu_op")
    ns: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for kernel in trace.device_ops:
        call = trace.launches.get(kernel.row)
        if kernel.cat != "kernel" or call is None or not any(start <= call.start < end for start, end in spans):
            continue
        around = ops[call.thread].around(call.start) if call.thread in ops else []
        if not around or around[0].name != "aten::copy_":
            continue
        types = around[0].args.get("input type", [])
        types = json.loads(types) if isinstance(types, str) else types
        if len(types) > 1 and types[0] != types[1]:
            ns[types[1], types[0], around[-1].name].append(kernel.end - kernel.start)
    return {place: (len(each), sum(each)) for place, each in ns.items()}
