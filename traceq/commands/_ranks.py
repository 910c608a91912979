"""`--ranks 0,8,16-31`."""

from __future__ import annotations

import re

from traceq.errors import UsageFault

__all__ = ["parse_ranks"]


def parse_ranks(text: str | None) -> set[int] | None:
    """`0,8,16-31` as a set; None for all. Raises UsageFault."""
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part)
        if found is None:
            raise UsageFault(f"--ranks {text}: '{part.strip()}' is no rank; expected something like 0,8,16-31")
        ranks.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return ranks
