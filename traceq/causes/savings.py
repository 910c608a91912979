"""What a change saves per step, and what of that lasts in a job that goes on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen


@frozen
class Saving:
    """Ns by which the mean counted step becomes shorter, at least and at most; `steps_ns` each, at least."""

    least_ns: int
    most_ns: int
    steps_ns: tuple[int, ...] = ()


def lasting(
    saved: NDArray[np.int64], lasts_ns: NDArray[np.int64], host_ns: NDArray[np.int64], host_after: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[K] ns: what steps save in a job that goes on, of what they save as the last ones of a job.

    Work that the host launched ahead, and that a faster device catches up with, is saved once: in the long run steps
    are no shorter than the host in them, which may be slower than usual as it is profiled. Steps last `lasts_ns`, the
    host in them `host_ns`, and `host_after` with the change.
    """
    gained = int(saved.sum())
    if gained <= 0:
        return saved
    lasts = int(lasts_ns.sum())
    stays = max(lasts, int(host_ns.sum())) - max(lasts - gained, int(host_after.sum()))
    return saved if stays >= gained else np.rint(saved * (max(stays, 0) / gained)).astype(np.int64)
