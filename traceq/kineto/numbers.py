"""Decimal microseconds as integer nanoseconds, from the digits: a float64 of an epoch is off by up to 238 ns."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation, localcontext

import numpy as np
from numpy.typing import NDArray

__all__ = ["INVALID_NS", "nanoseconds"]

INVALID_NS = np.iinfo(np.int64).min
"""Stands for a number that is missing, not finite, or past any plausible time."""

_LIMIT_NS = 10**18 * 8
_MOST_DIGITS = 20
_MOST_FAST_DIGITS = 19  # of a uint64: microseconds of an epoch with three decimals
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[list(b"0123456789.\n")] = True


def nanoseconds(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """int64[N] ns of N JSON numbers of microseconds; INVALID_NS where a text is no such number.

    A digit past the third decimal rounds half up.
    """
    joined = b"\n".join(texts)
    digits = np.frombuffer(joined, np.uint8)
    if len(digits) and _PLAIN[digits].all() and (values := _fixed_point(joined, digits, len(texts))) is not None:
        return values
    return np.fromiter(map(_one, texts), np.int64, len(texts))


def _fixed_point(joined: bytes, digits: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """All numbers at once, where each is digits with at most one point and fits; else None."""
    ends = np.r_[np.flatnonzero(digits == ord("\n")), len(digits)]
    points = np.flatnonzero(digits == ord("."))
    lengths = np.diff(ends, prepend=-1) - 1
    if lengths.min() == 0:
        return None
    of_row = np.searchsorted(ends, points)
    if len(of_row) > 1 and (np.diff(of_row) == 0).any():
        return None
    lengths[of_row] -= 1
    if lengths.max() > _MOST_FAST_DIGITS:
        return None
    mantissas = np.fromstring(joined.replace(b".", b"").decode(), np.uint64, sep="\n")
    if len(mantissas) != count:
        return None
    decimals = np.zeros(count, np.int64)
    decimals[of_row] = ends[of_row] - points - 1
    scale = (10 ** np.maximum(3 - decimals, 0)).astype(np.uint64)
    if (mantissas > np.uint64(_LIMIT_NS) // scale).any():
        return None
    excess = (10 ** np.maximum(decimals - 3, 0)).astype(np.uint64)
    return ((mantissas * scale + excess // np.uint64(2)) // excess).astype(np.int64)


def _one(text: bytes) -> int:
    """One number the slow way: strings, exponents, signs; INVALID_NS for anything else."""
    try:
        value = Decimal(bytes(text).decode().strip('"'))
    except (InvalidOperation, UnicodeDecodeError):
        return int(INVALID_NS)
    if not value.is_finite() or value.adjusted() > _MOST_DIGITS:
        return int(INVALID_NS)
    if value.adjusted() < -_MOST_DIGITS:  # also keeps an exponent of a million digits from being written out
        return 0
    with localcontext(prec=len(text) + 2 * _MOST_DIGITS):
        value = value * 1000
        return int((value + Decimal("0.5")).__floor__()) if abs(value) <= _LIMIT_NS else int(INVALID_NS)
