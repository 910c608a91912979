"""Sides of a diff: arms of one recorded run, and plain traces."""

from __future__ import annotations

from typing import Any

import numpy as np
from builder import Event, build, kernel, launch, step

from traceq.compare.result import Diff
from traceq.model import Arm, Manifest, Pairs, Run

__all__ = ["H100", "MANIFEST", "PAIRS", "codes", "paired", "plain", "rows", "run_of", "verdict"]

MANIFEST = Manifest(
    version=1,
    run_id="r1",
    recipe="outlier_ab",
    question="does it cost?",
    parameters={"batch_size": 8, "size": "tiny"},
    arms=(Arm("off", "", baseline=True), Arm("on", ""), Arm("deferred", "")),
    phases=(),
    num_ranks=1,
    seed=1,
    status="complete",
    environment={"torch": "2.9", "host": "here", "device": "cpu"},
)


H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}


def paired(a: str, b: str, a_us: float, b_us: float, num: int = 16) -> Pairs:
    """Alternating pairs whose halves jitter by 1 us in a fixed pattern."""
    b_second = np.arange(num) % 2 == 0
    jitter = 1000 * np.array([1, -1, -1, 1, 0])[np.arange(2 * num) % 5].reshape(num, 2)
    first = np.where(b_second, a_us, b_us) * 1000 + jitter[:, 0]
    second = np.where(b_second, b_us, a_us) * 1000 + jitter[:, 1]
    return Pairs(a, b, b_second, first.astype(np.int64)[None], second.astype(np.int64)[None])


PAIRS = (paired("off", "on", 1000, 1100), paired("off", "deferred", 1000, 1000), paired("off", "off", 1000, 1000))


def rows(dur: float = 20) -> list[Event]:
    return [step(0, dur + 20), launch(2, 2, 1), kernel("gemm", 5, dur, 1)]


def run_of(arm: str, *, dur: float = 20, manifest: Manifest = MANIFEST, pairs: tuple[Pairs, ...] = PAIRS) -> Run:
    return Run(arm, (build(*rows(dur), **H100),), manifest, arm, pairs)


def plain(dur: float = 20, **metadata: Any) -> Run:
    trace = build(*rows(dur), **{**H100, **metadata})
    return Run("plain", (trace,))


def codes(result: Diff) -> set[str]:
    return {caveat.code for caveat in result.caveats}


def verdict(result: Diff) -> tuple[str, str]:
    assert result.comparison is not None
    return result.comparison.verdict.name, result.comparison.verdict.reason
