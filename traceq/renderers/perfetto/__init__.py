"""Render a run, or a pair of runs, for the Perfetto UI: events and derived facts, in Perfetto's own format.

The UI drops overlapping slices and nanoseconds of Chrome's JSON; TrackEvent packets lose nothing.
"""

from __future__ import annotations

from traceq.renderers.perfetto.exports import pair_place, write_pair, write_perfetto
from traceq.renderers.perfetto.worst_place import WorstPlace, pair_commands, startup_commands, worst_place

__all__ = [
    "WorstPlace",
    "pair_commands",
    "pair_place",
    "startup_commands",
    "worst_place",
    "write_pair",
    "write_perfetto",
]
