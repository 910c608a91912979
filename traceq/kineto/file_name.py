"""Rank and host in the name of a trace file, for traces whose metadata lacks them."""

from __future__ import annotations

import re
from collections.abc import Container

__all__ = ["host_in_name", "rank_in_name"]

_RANK = re.compile(r"rank[-_]?(\d+)")
_HANDLERS_NAME = re.compile(r"^(.+)_(\d+)\.\d+\.pt\.trace\.json")


def rank_in_name(name: str) -> int | None:
    """Return 3 for `rank3.json`, `rank-3.json.gz` and the like; None without a rank."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def host_in_name(name: str, processes: Container[str]) -> str:
    """Return the host in a name that tensorboard_trace_handler gave a file; "" in others.

    Such a name has one of the trace's processes; else a user chose a name of this form.
    """
    match = _HANDLERS_NAME.match(name)
    return match[1] if match is not None and match[2] in processes else ""
