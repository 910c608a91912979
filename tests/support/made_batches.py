"""Runs whose arms train on different numbers of samples per step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from made_pairs import MS

from traceq.compare.diff import diff_runs
from traceq.compare.result import Diff
from traceq.model import Arm, Manifest, Pairs, Run

__all__ = ["compared", "manifest", "paired", "run_of"]


def manifest(a: int = 0, b: int = 0, *, varied: bool = True) -> Manifest:
    """Arms of batch size 4 and 8, whose steps train on `a` and `b` samples; 0 = unknown."""
    changes: list[Mapping[str, int]] = [{"batch_size": 4}, {"batch_size": 8}] if varied else [{}, {}]
    arms = (
        Arm("small", "", baseline=True, samples_per_step=a, varied=changes[0]),
        Arm("large", "", samples_per_step=b, varied=changes[1]),
    )
    return Manifest(1, "r", "r", "?", {"batch_size": 2}, arms, (), 1, 1, "complete", environment={"device": "cpu"})


def paired(a: str, b: str, a_ms: float, b_ms: float, num: int = 16) -> Pairs:
    """`num` alternating pairs without noise."""
    b_second = np.arange(num) % 2 == 0
    first, second = (np.where(b_second == is_first, a_ms, b_ms) * MS for is_first in (True, False))
    return Pairs(a, b, b_second, first.astype(np.int64)[None], second.astype(np.int64)[None])


def run_of(arm: str, of_run: Manifest, b_ms: float = 36.0) -> Run:
    """One arm of a run: a step of `small` takes 20 ms, one of `large` `b_ms`."""
    pairs = (paired("small", "large", 20, b_ms), paired("small", "small", 20, 20))
    return Run(arm, (), of_run, arm, pairs)


def compared(of_run: Manifest, *, swapped: bool = False) -> Diff:
    """The diff of `large` against `small`, or of `small` against `large`."""
    a, b = run_of("small", of_run), run_of("large", of_run)
    return diff_runs(b, a) if swapped else diff_runs(a, b)
