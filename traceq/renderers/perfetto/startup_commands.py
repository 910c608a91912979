"""What the Perfetto UI does when it has loaded an export: which tracks it pins, and what it asks."""

from __future__ import annotations

from traceq.renderers.perfetto.worst_place import WorstPlace

__all__ = ["pair_commands", "startup_commands"]

_PINNED = "findings|steps|phases|where the time goes|syncs|collectives|queue depth"
_OF_ALL = "where the time goes"

_SUMS = f"""select process.name as rank, slice.name as what, count(*) as num, sum(slice.dur) / 1e6 as ms
from slice join process_track on slice.track_id = process_track.id join process using (upid)
where process_track.name glob '{_OF_ALL}*' group by 1, 2 order by 1, 4 desc"""


Command = tuple[str, tuple[str, ...]]


def startup_commands(place: WorstPlace) -> tuple[Command, ...]:
    """Commands of the UI, (id, arguments): that rank unfolded, its tracks of ours on top, the sums below.

    Of the other ranks only where their time goes.
    """
    return (
        ("dev.perfetto.PinTracksByRegex", (rf"^({_PINNED})( · rank {place.rank})?$|^{_OF_ALL} · rank \d+$",)),
        ("dev.perfetto.ExpandTracksByRegex", (rf"^rank {place.rank}\b",)),
        ("dev.perfetto.RunQueryAndShowTab", (_SUMS,)),
    )


def pair_commands() -> tuple[Command, ...]:
    """The same for a pair: the tracks of ours of both sides on top, A's above B's."""
    return (
        ("dev.perfetto.PinTracksByRegex", (rf"^(what differs|{_PINNED}) · [AB] |^B is behind A",)),
        ("dev.perfetto.ExpandTracksByRegex", ("^[AB] ",)),
        ("dev.perfetto.RunQueryAndShowTab", (_SUMS,)),
    )
