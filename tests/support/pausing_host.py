"""A host that launches a kernel in each op, and stops for milliseconds in some of them. Times in us."""

from __future__ import annotations

from collections.abc import Mapping

from builder import Event, kernel, launch, op, step

OPS = ("mm", "sum", "view", "relu", "add")
USUAL_US, KERNEL_US = 10, 5
Pauses = Mapping[tuple[int, str], int]
"""Us by the number of the layer and the op in which the thread stops."""
APART: Pauses = {(2, "mm"): 8_000, (3, "sum"): 5_000, (4, "view"): 9_000, (5, "relu"): 6_000, (6, "add"): 4_000}


def layers(
    pauses: Pauses = APART, start: int = 0, num: int = 8, call_us: Mapping[int, int] | None = None
) -> list[Event]:
    """Layers of five ops, each with a launch of a short kernel and 10 us before it, in which the thread may stop.

    In layers of `call_us` the launch of `mm` takes as long, and the kernel before it too.
    """
    rows, time = list[Event](), start
    for layer in range(num):
        for name in OPS:
            corr, before_us = len(rows) + start, USUAL_US + pauses.get((layer, name), 0)
            held_us = (call_us or {}).get(layer, 0) * (name == "mm")
            if held_us:
                rows.append(kernel("busy", time, before_us + held_us))
            rows += [op(f"aten::{name}", time, before_us + held_us + 10), launch(time + before_us, 5 + held_us, corr)]
            time += before_us + held_us + 20
            rows.append(kernel(name, time - 12, KERNEL_US, corr))
    return [step(start, time - start, start), *rows]
