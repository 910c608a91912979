"""Arguments of a tool, checked and described from one declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from traceq.agent_tools.answer import Answer
    from traceq.agent_tools.readings import Readings

__all__ = ["PATH", "RANKS", "Tool"]

PATH = Meta(description="A trace, a folder of rank traces, a recorded run, RUN/ARM, or a memory snapshot.")
RANKS = Meta(description="Only these ranks, like 0,8,16-31.")


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool: its arguments are the fields, its description is the docstring."""

    def answer(self, readings: Readings) -> Answer:
        """Return the answer. Raises TraceqError for arguments that name nothing."""
        raise NotImplementedError
