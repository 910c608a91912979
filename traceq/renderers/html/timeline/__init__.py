"""The timeline of a page: which step of which ranks it shows, its lanes as columns, and where something is on it."""

from __future__ import annotations

from traceq.renderers.html.timeline.places import Place, place_of_cause, place_of_finding, place_of_sync
from traceq.renderers.html.timeline.shown_steps import shown_ranks
from traceq.renderers.html.timeline.view import Timeline, pair_timeline, run_timeline

__all__ = [
    "Place",
    "Timeline",
    "pair_timeline",
    "place_of_cause",
    "place_of_finding",
    "place_of_sync",
    "run_timeline",
    "shown_ranks",
]
