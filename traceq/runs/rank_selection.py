"""Option `--ranks 0,8,16-31`."""

from __future__ import annotations

import re

from traceq.errors import UsageFault

__all__ = ["parse_ranks"]


def parse_ranks(text: str | None) -> set[int] | None:
    """Return `0,8,16-31` as a set; None for all ranks. Raises UsageFault."""
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part)
        if match is None:
            raise UsageFault(f"--ranks {text}: '{part.strip()}' is not a rank; expected something like 0,8,16-31")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return ranks
