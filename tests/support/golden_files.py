"""Texts that are compared whole; TRACEQ_UPDATE_GOLDENS=1 writes what is found instead."""

from __future__ import annotations

import os

from paths import TESTS

GOLDENS = TESTS / "golden"
UPDATE = bool(os.environ.get("TRACEQ_UPDATE_GOLDENS"))


def check_golden(name: str, text: str) -> None:
    """`text` is what tests/golden/<name> holds."""
    path = GOLDENS / name
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
