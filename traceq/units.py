"""Formatting of numbers for people; no other module does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum


class Unit(Enum):
    """Kind of a number, which decides how it is formatted."""

    TEXT = "text"
    COUNT = "count"
    NS = "ns"
    DELTA_NS = "delta_ns"
    BYTES = "bytes"
    DELTA_BYTES = "delta_bytes"
    PERCENT = "percent"
    DELTA_PERCENT = "delta_percent"
    GBPS = "GB/s"
    MEAN = "mean"
    RATE = "1/s"
    RATIO = "ratio"
    NUMBER = "number"


def format_value(value: str | int | float | bool | None, unit: Unit) -> str:
    """Return a value as text: `3.6 ms`, `1.5 GiB`, `12,345`, `0.17 %`; None is an empty cell."""
    if value is None:
        return ""
    if isinstance(value, str) or unit is Unit.TEXT:
        return str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _FORMATS[unit](value)


def format_range(least: float, most: float, unit: Unit, grain: float) -> str:
    """Return `2.60 ms to 64.8 ms`; only the least where the ends are less than `grain` apart."""
    text = format_value(least, unit)
    return text if most - least < grain else f"{text} to {format_value(most, unit)}"


def format_ends(least: float, most: float, unit: Unit) -> str:
    """Return `4.6 to 8.5 ms`, `up to 19 %` from 0, one value where both read the same."""
    texts = [format_value(value, unit) for value in (least, most)]
    if texts[0] == texts[1]:
        return texts[0]
    (number, _, first), (_, _, last) = (text.rpartition(" ") for text in texts)
    return f"up to {texts[1]}" if not least else f"{number if number and first == last else texts[0]} to {texts[1]}"


def bar(percent: float, width: int = 12) -> str:
    """Return a bar `████▌`: the filled part of `width` cells, to an eighth of a cell."""
    eighths = round(8 * width * min(max(percent, 0.0), 100.0) / 100)
    return _FULL * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Return a sparkline `▆▆█▆` from 0 to the largest value; more values than `width` are reduced to their maxima."""
    num = min(len(values), width)
    stretches = [values[index * len(values) // num : (index + 1) * len(values) // num] for index in range(num)]
    highest = max(values, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, max(0, int(8 * max(stretch) / highest)))] for stretch in stretches)


def shades(shares: Sequence[float]) -> str:
    """Return `··▒█`: a cell per share in [0, 1], darker for larger ones, a dot below a tenth."""
    return "".join("·░▒▓█"[0 if share < _LIGHT else min(4, 1 + int(4 * share))] for share in shares)


_LIGHT = 0.1
_LEAST_PERCENT = 0.005
"""Percent below which a value rounds to 0, which has no sign."""
_FULL = "█"
_ROUNDS_UP = 0.9995  # 999.9 us reads as 1.00 ms, not as 1,000 us


def ranks_of(ranks: Sequence[int], world_size: int) -> str:
    """Return `ranks 0-1 of 8`; of a world of one, which also traces have that do not record its size, `rank 0`."""
    of_world = f" of {world_size}" if world_size > 1 else ""
    return f"{name_ranks(ranks)}{of_world}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `ranks 0-2, 5`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return rank numbers in short: `0-2, 5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _duration(ns: float) -> str:
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= size * _ROUNDS_UP:
            return f"{_three_digits(ns / size)} {name}"
    return f"{ns:.0f} ns" if ns else "0"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 9.995 else f"{value:.1f}" if magnitude < 99.95 else f"{value:,.0f}"


def _signed(text: str, value: float) -> str:
    return f"+{text}" if value > 0 else text


def _size(size_bytes: float) -> str:
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size_bytes) >= size * _ROUNDS_UP:
            return f"{_three_digits(size_bytes / size)} {name}"
    return f"{size_bytes:.0f} B"


def _percent(value: float) -> str:
    if abs(value) < _LEAST_PERCENT:
        return "0.00 %"
    return f"{value:.2f} %" if abs(value) < 1 else f"{value:,.1f} %"


def _mean(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) and value == round(value) else f"{value:,.2f}"


def _rate(value: float) -> str:
    return f"{_three_digits(value)} /s"


def _number(value: float) -> str:
    return f"{value:,.4g}"


_FORMATS = {
    Unit.COUNT: lambda v: f"{v:,.0f}",
    Unit.NS: _duration,
    Unit.DELTA_NS: lambda v: _signed(_duration(v), v),
    Unit.BYTES: _size,
    Unit.DELTA_BYTES: lambda v: _signed(_size(v), v),
    Unit.PERCENT: _percent,
    Unit.DELTA_PERCENT: lambda v: _signed(_percent(v), v if abs(v) >= _LEAST_PERCENT else 0),
    Unit.GBPS: lambda v: f"{v:.1f} GB/s",
    Unit.MEAN: _mean,
    Unit.RATE: _rate,
    Unit.RATIO: lambda v: f"{v:.2f}x",
    Unit.NUMBER: _number,
}
