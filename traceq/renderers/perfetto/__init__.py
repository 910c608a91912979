"""A run for the Perfetto UI: its events and what traceq worked out of them, in Perfetto's own format.

Chrome's JSON loses overlapping slices and nanoseconds there; TrackEvent packets lose nothing.
"""

from __future__ import annotations

from traceq.renderers.perfetto.place import Place, worst_place
from traceq.renderers.perfetto.run import write_perfetto
from traceq.renderers.perfetto.view import startup_commands

__all__ = ["Place", "startup_commands", "worst_place", "write_perfetto"]
