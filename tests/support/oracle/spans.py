"""Interval arithmetic on lists of (start, end), half-open."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

Span = tuple[int, int]


def union(spans: list[Span]) -> list[Span]:
    """Sorted and disjoint; empty spans vanish."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def measure(spans: list[Span]) -> int:
    """The time that at least one span covers."""
    return sum(end - start for start, end in union(spans))


def clip(spans: list[Span], start: int, end: int) -> list[Span]:
    return [(max(a, start), min(b, end)) for a, b in spans if a < end and b > start]


def subtract(spans: list[Span], others: list[Span]) -> list[Span]:
    """The time of disjoint spans in none of the others, which are sorted and disjoint."""
    edges = sorted({edge for span in (*spans, *others) for edge in span})
    return union([pair for pair in pairwise(edges) if inside(spans, pair[0]) and not inside(others, pair[0])])


def inside(disjoint: list[Span], instant: int) -> bool:
    """Whether one of the sorted disjoint spans holds the instant."""
    index = bisect_right(disjoint, instant, key=lambda span: span[0]) - 1
    return index >= 0 and instant < disjoint[index][1]
