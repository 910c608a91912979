"""Decimal microseconds to integer nanoseconds, by digits: a float64 of an epoch time is off by up to 238 ns."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation, localcontext

import numpy as np
from numpy.typing import NDArray

__all__ = ["INVALID_NS", "nanoseconds"]

INVALID_NS = np.iinfo(np.int64).min
"""Value of a number that is missing, not finite, or beyond any plausible time."""

_LIMIT_NS = 10**18 * 8
_MOST_DIGITS = 20
_MOST_DECIMALS = 18  # a larger power of ten does not fit into int64
_PLAIN = b"0123456789.\n"


def nanoseconds(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Return int64[N] ns of N JSON numbers in microseconds; INVALID_NS where a text is not such a number.

    A digit past the third decimal rounds half up.
    """
    joined = b"\n".join(texts)
    if not joined.translate(None, _PLAIN) and (values := _fixed_point(joined, len(texts))) is not None:
        return values
    return np.fromiter(map(_by_decimal, texts), np.int64, len(texts))


def _fixed_point(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """Return all numbers at once if each is digits with at most one point and fits; else None."""
    decimals = _decimals(np.frombuffer(joined, np.uint8), count)
    if decimals is None or decimals.max() > _MOST_DECIMALS:
        return None
    mantissas = np.fromstring(joined.replace(b".", b"").decode(), np.uint64, sep="\n")  # overflow saturates
    scale = (10 ** np.maximum(3 - decimals, 0)).astype(np.uint64)
    if len(mantissas) != count or (mantissas > np.uint64(_LIMIT_NS) // scale).any():
        return None
    excess = (10 ** np.maximum(decimals - 3, 0)).astype(np.uint64)
    if (excess > 1).any():
        mantissas = (mantissas * scale + excess // np.uint64(2)) // excess
    else:
        mantissas *= scale
    return mantissas.astype(np.int64)


def _decimals(digits: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """Return int64[N] digits after the point of each number, or int64[1] for all; None if a number has two points."""
    points = np.flatnonzero(digits == ord("."))
    if len(points) == 0:
        return np.zeros(1, np.int64)
    ends = np.append(np.flatnonzero(digits == ord("\n")), len(digits))
    if len(points) == count and (points[1:] > ends[:-1]).all() and (points < ends).all():
        decimals = ends - points - 1
        return decimals[:1] if (decimals == decimals[0]).all() else decimals
    number = np.searchsorted(ends, points)
    if (np.diff(number) == 0).any():
        return None
    decimals = np.zeros(count, np.int64)
    decimals[number] = ends[number] - points - 1
    return decimals


def _by_decimal(text: bytes) -> int:
    """Return one number in ns, parsed by Decimal: strings, exponents, signs; INVALID_NS for anything else."""
    try:
        value = Decimal(bytes(text).decode().strip('"'))
    except (InvalidOperation, UnicodeDecodeError):
        return int(INVALID_NS)
    if not value.is_finite() or value.adjusted() > _MOST_DIGITS:
        return int(INVALID_NS)
    if value.adjusted() < -_MOST_DIGITS:  # also avoids expanding an exponent of a million digits
        return 0
    with localcontext(prec=len(text) + 2 * _MOST_DIGITS):
        value = value * 1000
        return int((value + Decimal("0.5")).__floor__()) if abs(value) <= _LIMIT_NS else int(INVALID_NS)
