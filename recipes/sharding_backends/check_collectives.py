"""Collectives that a step issues, counted where torch dispatches them: the same on every backend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from traceq.errors import RecordingFailed

__all__ = ["check_issued", "issued_collectives"]

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
_SHARDED = {"all_gather", "reduce_scatter"}
_EXPECTED = {
    "ddp": ({"all_reduce"}, _SHARDED),
    "full_shard": (_SHARDED, set()),
    "shard_grad_op": (_SHARDED, set()),
    "fsdp2": (_SHARDED, set()),
    "zero2": ({"all_gather"}, set()),
    "zero3": (_SHARDED, set()),
}
"""Kinds of collectives that each strategy must issue, and those it must not."""


def issued_collectives(step: Callable[[], object]) -> Counter[str]:
    """Return the number of collectives that one call of `step` issues, by name."""
    counter = _CollectiveCounter()
    with counter:
        step()
    return counter.num


def check_issued(strategy: str, issued: Counter[str]) -> None:
    """Raise RecordingFailed if a collective that the strategy needs is missing, or one was issued that it must not."""
    needed, forbidden = _EXPECTED[strategy]
    if not needed <= set(issued) or set(issued) & forbidden:
        raise RecordingFailed(f"{strategy}: a step issues {dict(issued)}; expected {sorted(needed)}")


class _CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of c10d ops while it is active, including those of the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            letters = re.sub("[^a-z]", "", func.__name__)
            self.num.update(kind for kind in _KINDS if kind.replace("_", "") in letters)
        return func(*args, **(kwargs or {}))
