"""Flat tables of a run for other programs (SQL, Parquet, data frames): a row per event, piece of time, sync ..."""

from __future__ import annotations

from traceq.frames.sql import Answer, ask
from traceq.frames.tables import NAMES, Frame, Texts, frame, frames

__all__ = ["NAMES", "Answer", "Frame", "Texts", "ask", "frame", "frames"]
