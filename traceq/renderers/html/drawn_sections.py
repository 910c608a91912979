"""Sections of both pages that scripts draw: the timeline of a step, and the host's time as a flame view."""

from __future__ import annotations

from traceq.renderers.html.markup import folded, paragraphs
from traceq.renderers.html.section_titles import Section

__all__ = ["drawn_sections"]

_TIMELINE = Section(
    "A step over time",
    "What every phase, stream and thread did; a click on a linked sync, finding or cause leads here.",
)
_FLAME = Section(
    "Where the host's time goes", "Each frame is as wide as its time per step, and holds what ran inside it."
)


def drawn_sections(timeline: str, flame: str, doubt: str = "") -> tuple[tuple[str, Section, list[str]], ...]:
    """Return (id, title, parts) of the sections, given the figures in them.

    `doubt` says why durations of traced steps are no evidence: it stands above the timeline, and folds the flame view,
    which colours them.
    """
    if doubt:
        flame = folded("Durations of the traced steps, which are no evidence here", flame, of="doubt")
    noted = [paragraphs([doubt], "note")] if doubt else []
    return ("timeline", _TIMELINE, [*noted, timeline]), ("flame", _FLAME, [flame])
