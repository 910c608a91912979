"""Cases of rewritten code: a known change whose B also has other names for many of its ops and kernels."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from known_changes.kinds import Edit
from known_changes.recording import Doc

SHARES = (30, 60, 95)
"""Percent of the names of ops and kernels that are others in B."""
_KEPT = ("record_param_comms", "nccl", "ProfilerStep", "rccl", "oneccl", "c10d")
"""Parts of names that no user can change: those of the profiler and of communication libraries."""


def rewritten(edit: Edit, percent: int, seed: str) -> Edit:
    """Return the edit with this share of the names in B replaced, but for those of the change itself.

    As a rename, a fused layer or another version does. Times stay as they are, so that names alone cost nothing.
    """
    kept = {name for change in edit.changes if change.kind in ("sync", "collective") for name in change.names}
    docs = {rank: _renamed(doc, percent, seed, kept) for rank, doc in edit.b.items()}
    return replace(edit, b=docs)


def _renamed(doc: Doc, percent: int, seed: str, kept: Collection[str]) -> Doc:
    names = sorted(
        {
            (event["cat"] == "kernel", event["name"])
            for event in doc["traceEvents"]
            if event.get("cat") in ("cpu_op", "kernel") and _may_change(event["name"], kept)
        }
    )
    chosen = random.Random(seed).sample(names, round(len(names) * percent / 100))
    new = {name: f"new_kernel_{n}" if name[0] else f"ext::op_{n}" for n, name in enumerate(chosen)}
    for event in doc["traceEvents"]:
        if event.get("cat") in ("cpu_op", "kernel"):
            event["name"] = new.get((event["cat"] == "kernel", event["name"]), event["name"])
    return doc


def _may_change(name: str, kept: Collection[str]) -> bool:
    return name not in kept and not any(part in name for part in _KEPT)
