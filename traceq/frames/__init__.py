"""Flat tables of a run for other programs (SQL, Parquet, data frames): a row per event, piece of time, sync ..."""

from __future__ import annotations

from traceq.frames.database import Answer, ask
from traceq.frames.frame import Frame, Texts
from traceq.frames.tables import NAMES, frame, frames

__all__ = ["NAMES", "Answer", "Frame", "Texts", "ask", "frame", "frames"]
