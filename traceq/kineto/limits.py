"""Limits of what is read: the longest event, the members of the metadata, the events that fit into memory."""

from __future__ import annotations

from traceq.cores import memory_bytes
from traceq.errors import UnreadableInput
from traceq.locations import Place

LONGEST_MB = 64
LONGEST = LONGEST_MB << 20
"""Bytes of one event, of the text before the events, and of the text after them."""

MOST_MEMBERS = 1000
"""Members that are read of a metadata object that is not valid JSON."""

_ROW_BYTES = 93


def check_size(path: Place, num_rows: int) -> None:
    """Raise UnreadableInput if this many events do not fit into memory: gzip can expand a thousandfold."""
    limit = memory_bytes() // _ROW_BYTES
    if num_rows > limit:
        raise UnreadableInput(str(path), f"more than {limit:,} events do not fit into this machine's memory")
