"""A run as flat tables for other programs: SQL, Parquet, data frames. One row an event, a piece of time, a sync ..."""

from __future__ import annotations

from traceq.frames.database import Answer, ask
from traceq.frames.frame import Frame, Texts
from traceq.frames.tables import NAMES, frame, frames

__all__ = ["NAMES", "Answer", "Frame", "Texts", "ask", "frame", "frames"]
