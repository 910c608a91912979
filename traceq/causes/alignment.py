"""Alignment of two host lines: which anchors are the same on both sides, step by step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traceq.causes.anchors import AnchorKind, Anchors
from traceq.causes.common_subsequence import Pairs, Subsequences
from traceq.causes.host_line import HostLine
from traceq.facts.timeline.steps import step_of_work, steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace


@frozen(eq=False)
class Alignment:
    """P pairs of anchors of a host's chains, `a` and `b` int64[P] into their anchors by chain, ascending.

    `exact` bool[P]: the strictest keys are equal. Step k of A is step k + `shift` of B; `num_a`, `num_b`: anchors of
    steps that were aligned.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    exact: NDArray[np.bool_]
    shift: int
    num_a: int
    num_b: int


def align(a: HostLine, b: HostLine) -> Alignment:
    """Return the alignment of two host lines: chain by chain, step with step, by ever looser keys in the gaps left.

    The last resort is position: a gap that has equally many launches on both sides, and nothing else, was replaced.
    """
    shift = _step_shift(a.trace, b.trace)
    in_a: list[NDArray[np.int64]] = []
    in_b: list[NDArray[np.int64]] = []
    segments, common = _segments(a, b, shift), Subsequences()
    all_keys_a, all_keys_b = a.keys[a.by_chain], b.keys[b.by_chain]
    kind_a, kind_b = a.kind[a.by_chain], b.kind[b.by_chain]
    for (a_from, a_to), (b_from, b_to) in segments:
        keys_a, keys_b = all_keys_a[a_from:a_to], all_keys_b[b_from:b_to]
        pairs = common.of(keys_a[:, 0], keys_b[:, 0])
        for level in (1, 2):
            pairs = _refined(pairs, keys_a[:, level], keys_b[:, level], common)
        pairs = _by_position(pairs, kind_a[a_from:a_to], kind_b[b_from:b_to])
        in_a.append(a_from + pairs[0])
        in_b.append(b_from + pairs[1])
    all_a, all_b = np.concatenate(in_a), np.concatenate(in_b)
    num_a, num_b = (sum(end - start for start, end in side) for side in zip(*segments, strict=True))
    return Alignment(all_a, all_b, all_keys_a[all_a, 0] == all_keys_b[all_b, 0], shift, num_a, num_b)


def aligned_with_itself(line: Anchors) -> Alignment:
    """Return the alignment of one recording with itself."""
    every = np.arange(len(line))
    return Alignment(every, every, np.ones(len(line), np.bool_), 0, len(line), len(line))


def _segments(a: HostLine, b: HostLine, shift: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ranges of anchors to align, of each chain: what is before the first step, then step by step."""
    segments = []
    for ranges_a, ranges_b in zip(_ranges(a), _ranges(b), strict=True):
        by_step = [
            (ranges_a[number], ranges_b[number + shift])
            for number in range(1, len(ranges_a))
            if 1 <= number + shift < len(ranges_b)
        ]
        segments += [(ranges_a[0], ranges_b[0]), *by_step]
    return segments


def _ranges(line: HostLine) -> list[list[tuple[int, int]]]:
    """Return the ranges of each chain's anchors, by chain: before the first step, and from one's begin to the next."""
    begins, num_before, ranges = np.flatnonzero(line.kind == AnchorKind.STEP_BEGIN), 0, []
    for number in range(len(line.chains)):
        of_chain = np.flatnonzero(line.chain == number)
        cuts = np.r_[0, np.searchsorted(of_chain, begins), len(of_chain)] + num_before
        ranges.append(list(pairwise(cuts.tolist())))
        num_before += len(of_chain)
    return ranges


def _step_shift(a: Trace, b: Trace) -> int:
    """Return the shift that pairs most counted steps, of several the one whose pairs issue as much work of the device.

    Steps may take turns, as where every second one exchanges more. Else it is the most typical run of the longer side.
    """
    of_a, of_b = steps(a), steps(b)
    if not (of_a.marked and of_b.marked):
        return 0
    if of_a.counted.sum() > of_b.counted.sum():
        return -_step_shift(b, a)
    few, many = np.flatnonzero(of_a.counted), np.flatnonzero(of_b.counted)
    num_a, num_b = (np.bincount(1 + step_of_work(trace), minlength=1 + len(steps(trace)))[1:] for trace in (a, b))
    duration = of_b.window[:, 1] - of_b.window[:, 0]
    best = 0, False, 0.0, 0
    for shift in sorted_unique((many[:, None] - few).ravel()).tolist():
        paired = few[np.isin(few + shift, many)]
        is_alike = bool((num_a[paired] == num_b[paired + shift]).all())
        distance = abs(float(duration[paired + shift].mean() - duration[many].mean()))
        best = max(best, (len(paired), is_alike, -distance, shift))
    return best[-1]


def _refined(pairs: Pairs, keys_a: NDArray[np.int64], keys_b: NDArray[np.int64], common: Subsequences) -> Pairs:
    """Return the pairs with those of looser keys in the gaps between them."""
    gaps, in_a, in_b = _gaps(pairs, len(keys_a), len(keys_b)), [pairs[0]], [pairs[1]]
    for a_from, a_to, b_from, b_to in gaps:
        more_a, more_b = common.of(keys_a[a_from:a_to], keys_b[b_from:b_to])
        in_a.append(a_from + more_a)
        in_b.append(b_from + more_b)
    return _sorted(in_a, in_b) if gaps else pairs


def _by_position(pairs: Pairs, kind_a: NDArray[np.int8], kind_b: NDArray[np.int8]) -> Pairs:
    """Return the pairs with those of gaps that hold equally many launches and nothing else."""
    gaps, in_a, in_b = _gaps(pairs, len(kind_a), len(kind_b)), [pairs[0]], [pairs[1]]
    for a_from, a_to, b_from, b_to in gaps:
        only_launches = (kind_a[a_from:a_to] == AnchorKind.LAUNCH).all() and (
            kind_b[b_from:b_to] == AnchorKind.LAUNCH
        ).all()
        if a_to - a_from == b_to - b_from and only_launches:
            in_a.append(np.arange(a_from, a_to))
            in_b.append(np.arange(b_from, b_to))
    return _sorted(in_a, in_b) if gaps else pairs


def _gaps(pairs: Pairs, size_a: int, size_b: int) -> list[tuple[int, int, int, int]]:
    """Return (from, to) of both sides between neighbouring pairs, where both sides have something."""
    if len(pairs[0]) in (size_a, size_b):
        return []
    starts, ends = (np.r_[-1, side] + 1 for side in pairs), (np.r_[pairs[0], size_a], np.r_[pairs[1], size_b])
    start_a, start_b = starts
    gaps = np.flatnonzero((start_a < ends[0]) & (start_b < ends[1]))
    columns = (start_a[gaps], ends[0][gaps], start_b[gaps], ends[1][gaps])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _sorted(in_a: list[NDArray[np.int64]], in_b: list[NDArray[np.int64]]) -> Pairs:
    all_a, all_b = np.concatenate(in_a), np.concatenate(in_b)
    order = np.argsort(all_a, kind="stable")
    return all_a[order], all_b[order]
