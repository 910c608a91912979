"""The smallest difference that is material, unless a caller sets another one."""

from __future__ import annotations

THRESHOLD_PCT = 0.5
"""Percent of A's median step. In a module without imports, so that `traceq diff --help` needs no numpy."""
