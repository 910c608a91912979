"""Which collectives a step issues, seen where torch dispatches them: the same on every backend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from traceq.errors import RecordingFailed

__all__ = ["check_issued", "issued_by"]

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
"""What a strategy cannot do without, and what it never does."""


def issued_by(step: Callable[[], object]) -> Counter[str]:
    """Collectives that one call of `step` issues, by name."""
    seen = _Seen()
    with seen:
        step()
    return seen.num


def check_issued(strategy: str, seen: Counter[str]) -> None:
    """RecordingFailed where a strategy lacks what it cannot do without, or issues what it never does."""
    needed, foreign = _EXPECTED[strategy]
    if not needed <= set(seen) or set(seen) & foreign:
        raise RecordingFailed(f"{strategy}: a step issues {dict(seen)}; expected {sorted(needed)}")


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts ops of c10d while it is active, those of the backward pass too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            plain = re.sub("[^a-z]", "", func.__name__)
            self.num.update(kind for kind in _KINDS if kind.replace("_", "") in plain)
        return func(*args, **(kwargs or {}))
