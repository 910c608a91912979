"""Damage of a file: what was lost and repaired, at which byte, and the caveats that say so."""

from __future__ import annotations

from math import inf

from traceq.frozen import frozen
from traceq.kineto.event_windows import Document
from traceq.model import Caveat

__all__ = ["Damage", "damage_caveats"]


@frozen
class Damage:
    """Lost and repaired parts of a file, as byte positions in the uncompressed text.

    `commas_at`: positions after a missing or an extra comma. `num_dropped` counts complete events without a usable
    time.
    """

    truncated_at: int | None = None
    skipped_at: tuple[int, ...] = ()
    mended_at: tuple[int, ...] = ()
    commas_at: tuple[int, ...] = ()
    broken_metadata_at: int | None = None
    num_dropped: int = 0

    @classmethod
    def of(cls, document: Document, num_dropped: int) -> Damage:
        """Return the damage that a document has recorded once it was read to its end."""
        return cls(
            document.truncated_at,
            skipped_at=tuple(document.skipped_at),
            mended_at=tuple(document.mended_at),
            commas_at=tuple(document.commas_at),
            broken_metadata_at=document.broken_metadata_at,
            num_dropped=num_dropped,
        )


def damage_caveats(damage: Damage, fault: str, num_events: int) -> list[tuple[float, Caveat]]:
    """Return a caveat per kind of damage, each with the byte position of its first occurrence."""
    caveats: list[tuple[float, Caveat]] = []
    if (byte := damage.truncated_at) is not None:
        reason = f" ({fault})" if fault else ""
        text = f"byte {byte}: the file ends early{reason}; {num_events:,} of its events were read"
        caveats.append((byte, Caveat("truncated", text)))
    elif fault:
        text = f"the archive is damaged at its end ({fault}); its JSON is complete, with {num_events:,} events"
        caveats.append((inf, Caveat("damaged_archive", text)))
    for code, positions, what in (
        ("malformed_events", damage.skipped_at, "events are not valid JSON and were skipped"),
        ("mended_events", damage.mended_at, "events with NaN, Infinity or broken Unicode were repaired"),
        ("misplaced_commas", damage.commas_at, "missing or extra commas"),
    ):
        if positions:
            caveats.append((positions[0], Caveat(code, f"byte {positions[0]}: {len(positions):,} {what}")))
    if (byte := damage.broken_metadata_at) is not None:
        text = f"byte {byte}: the metadata is not valid JSON; its readable part is used"
        caveats.append((byte, Caveat("malformed_metadata", text)))
    if damage.num_dropped:
        text = f"{damage.num_dropped:,} events have no usable time and were dropped"
        caveats.append((inf, Caveat("dropped_events", text)))
    return caveats
