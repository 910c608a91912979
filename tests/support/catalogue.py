"""The real traces as parameters of a test."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from paths import TRACES

__all__ = ["FILES", "every_trace"]


def every_trace() -> Iterable[Any]:
    """A parameter per file; the third rank and on of a job are as the first two, and marked slow."""
    for path in sorted(TRACES.rglob("*.json.gz")):
        name = path.relative_to(TRACES).as_posix()
        is_further_rank = re.search(r"/rank[2-7]\.", name) is not None
        yield pytest.param(path, id=name.removesuffix(".json.gz"), marks=[pytest.mark.slow] if is_further_rank else [])


FILES = list(every_trace()) or [
    pytest.param(None, id="none", marks=pytest.mark.skip(reason=f"no traces beside this checkout, in {TRACES}"))
]
