"""What another tool says about a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Opinion"]


@dataclass(frozen=True, slots=True)
class Opinion:
    """Numbers of one tool by the key of the quantity, times in ns; a quantity that it does not tell is absent.

    `failed`: why it has no numbers, or lacks some.
    """

    tool: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
