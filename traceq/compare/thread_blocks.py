"""Whether kernels of both sides compute on inputs of another size, by their thread blocks, where shapes are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from traceq.compare.input_shapes import has_shapes
from traceq.facts.events.device_work import device_work
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique, span_index
from traceq.model import Trace
from traceq.units import Unit, format_value

__all__ = ["block_difference"]

_FEWEST_BLOCKS = 16
"""Blocks per launch below which their number is rounded too much to tell sizes apart."""
_FEWEST_KERNELS = 4
"""Names of kernels that agree on a factor."""
_AS_OFTEN = 0.02
_ANOTHER, _ALIKE = 1.2, 1.05
"""Factor from which blocks are more or fewer, and within which kernels agree on one."""
_MOST, _NOTABLE = 0.7, 0.1
"""Parts of the time of kernels that are compared, and of all of them, that agree."""


@frozen
class _Launched:
    """Of a kernel: launches per step, blocks per launch, and ns per step."""

    num: float
    blocks: float
    ns: float


def block_difference(a: Trace, b: Trace) -> str:
    """Return `inputs of another size: ... 0.25 times the thread blocks`, or "".

    Of kernels that both sides launch as often per step, most by time have more blocks by one factor: libraries launch a
    block for so many elements. Nothing where shapes are recorded, which tell it, or the device is another one.
    """
    if a.device != b.device or (has_shapes(a) and has_shapes(b)):
        return ""
    ours, theirs = _launched(a), _launched(b)
    both = [
        (ours[name], theirs[name])
        for name in ours.keys() & theirs.keys()
        if abs(ours[name].num - theirs[name].num) <= _AS_OFTEN * ours[name].num
        and min(ours[name].blocks, theirs[name].blocks) >= _FEWEST_BLOCKS
    ]
    if len(both) < _FEWEST_KERNELS:
        return ""
    factors = np.array([of_b.blocks / of_a.blocks for of_a, of_b in both])
    ns = np.array([of_a.ns + of_b.ns for of_a, of_b in both])
    order = np.argsort(factors)
    middle = float(factors[order][np.searchsorted(np.cumsum(ns[order]), ns.sum() / 2)])
    agree = np.abs(np.log(factors / middle)) <= np.log(_ALIKE)
    all_ns = sum(each.ns for side in (ours, theirs) for each in side.values())
    is_common = agree.sum() >= _FEWEST_KERNELS and ns[agree].sum() >= max(_MOST * ns.sum(), _NOTABLE * all_ns)
    if not is_common or abs(np.log(middle)) < np.log(_ANOTHER):
        return ""
    times = format_value(middle, Unit.MEAN)
    return f"inputs of another size: kernels that both launch as often have {times} times the thread blocks"


@once_per_trace
def _launched(trace: Trace) -> Mapping[str, _Launched]:
    """Return what each kernel with a grid does in the counted steps, by name."""
    events, work, counted = trace.events, device_work(trace), steps(trace)
    windows = counted.window[counted.counted]
    rows = work.rows[span_index(windows, work.start) >= 0]
    rows = rows[events.grid[rows] >= 0]
    blocks_of = np.zeros(len(events.strings))
    for text in sorted_unique(events.grid[rows]).tolist():
        blocks_of[text] = _blocks(events.strings[text])
    name, blocks = events.name[rows], blocks_of[events.grid[rows]]
    num, of_blocks, ns = (np.bincount(name, weights) for weights in (None, blocks, events.dur[rows]))
    return {
        events.strings[text]: _Launched(num[text] / len(windows), of_blocks[text] / num[text], ns[text] / len(windows))
        for text in np.flatnonzero(num).tolist()
    }


def _blocks(grid: str) -> int:
    """Return the number of blocks of `1024x1x1`, 0 of what is no grid."""
    parts = grid.split("x")
    return prod(map(int, parts)) if all(part.isdecimal() for part in parts) else 0
