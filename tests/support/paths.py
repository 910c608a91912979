"""Where the project's own files lie, and the real traces beside the checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CORPUS", "DOCS", "FIXTURES", "ROOT", "SHARED", "TESTS", "TRACES"]

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CORPUS = TESTS / "corpus"
DOCS = ROOT / "docs"
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared"
TRACES = SHARED / "traces"
"""Real traces, absent on a user's machine: tests that need them skip and say why."""
