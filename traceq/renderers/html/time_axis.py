"""Axes of times and bytes: the unit in which their ticks are written."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Axis", "bytes_axis", "time_axis"]

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


Axis = dict[str, float | str]
"""`unit`, the title of an axis, and `per`, the size of the unit: of ms, with values in ns, 1e6."""


def time_axis(values_ns: Iterable[float], what: str = "") -> Axis:
    """Return the axis of times in ns, in s, ms or us; `what` follows the unit, as in `ms per step`."""
    return _axis(values_ns, _TIMES, "ns", what)


def bytes_axis(values: Iterable[float], what: str = "") -> Axis:
    """Return the axis of sizes in bytes, in GiB, MiB or KiB."""
    return _axis(values, _SIZES, "bytes", what)


def _axis(values: Iterable[float], units: Iterable[tuple[float, str]], least: str, what: str) -> Axis:
    most = max(map(abs, values), default=0)
    per, unit = next((each for each in units if most >= each[0]), (1.0, least))
    return {"per": per, "unit": f"{unit} {what}".strip()}
