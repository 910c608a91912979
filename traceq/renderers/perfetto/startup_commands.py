"""Commands for the Perfetto UI to run after loading an export: pin tracks, expand a process, run a query."""

from __future__ import annotations

from traceq.renderers.perfetto.worst_place import WorstPlace

__all__ = ["pair_commands", "startup_commands"]

_PINNED = "findings|steps|phases|where the time goes|syncs|collectives|queue depth"
_PINNED_OF_ALL = "where the time goes"

_SUMS = f"""select process.name as rank, slice.name as what, count(*) as num, sum(slice.dur) / 1e6 as ms
from slice join process_track on slice.track_id = process_track.id join process using (upid)
where process_track.name glob '{_PINNED_OF_ALL}*' group by 1, 2 order by 1, 4 desc"""


Command = tuple[str, tuple[str, ...]]


def startup_commands(place: WorstPlace) -> tuple[Command, ...]:
    """Return commands (id, arguments): expand the rank, pin its derived tracks, show sums by category.

    Of other ranks only the track `where the time goes` is pinned.
    """
    return (
        ("dev.perfetto.PinTracksByRegex", (rf"^({_PINNED})( · rank {place.rank})?$|^{_PINNED_OF_ALL} · rank \d+$",)),
        ("dev.perfetto.ExpandTracksByRegex", (rf"^rank {place.rank}\b",)),
        ("dev.perfetto.RunQueryAndShowTab", (_SUMS,)),
    )


def pair_commands() -> tuple[Command, ...]:
    """Return the commands for a pair: pin the derived tracks of both sides, A above B."""
    return (
        ("dev.perfetto.PinTracksByRegex", (rf"^(what differs|{_PINNED}) · [AB] |^B is behind A",)),
        ("dev.perfetto.ExpandTracksByRegex", ("^[AB] ",)),
        ("dev.perfetto.RunQueryAndShowTab", (_SUMS,)),
    )
