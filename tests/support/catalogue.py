"""The real traces as parameters of a test."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paths import TRACES

from traceq.analysis.registry import sheet
from traceq.report import Sheet
from traceq.runs.read import read

__all__ = ["FILES", "JOBS", "every_trace", "sheet_of"]


REPRESENTED = re.compile(
    r"/rank[1-7]\.|^(hta-diff|owlv2|sam-a100-ab|mtia|resnet50-2021|resnet-ddp-mi300|torchrec-v100-ab/b|ddp-a100)/"
    r"|^ep-moe-b200-ab/syncless\."
    r"|^inference/(sglang-prefill-decode-mi300|vllm-piecewise-mi300-capture)\."
)
"""Further ranks of a job, and large traces: smaller ones are in every run, and these in `make slow`."""


def every_trace() -> Iterable[Any]:
    """A parameter per file; those that a smaller one represents are marked slow."""
    for path in sorted(TRACES.rglob("*.json.gz")):
        name = path.relative_to(TRACES).as_posix()
        marks = [pytest.mark.slow] if REPRESENTED.search(name) else []
        yield pytest.param(path, id=name.removesuffix(".json.gz"), marks=marks)


FILES = list(every_trace()) or [pytest.param(None, id="none", marks=pytest.mark.skip(reason=f"no {TRACES}"))]

JOBS = [
    pytest.param(
        path.parent,
        id=path.parent.relative_to(TRACES).as_posix(),
        marks=[pytest.mark.slow] if path.parent.name in ("b", "dlrm-v100-8r", "nanogpt-h100-8r") else [],
    )
    for path in sorted(TRACES.rglob("rank0.json.gz"))
    if (path.parent / "rank1.json.gz").exists()
]
"""The jobs of several ranks among them, none where there are no traces."""


@cache
def sheet_of(path: Path) -> Sheet:
    """Every report on a trace or job, which several tests look at; the trace itself is not kept."""
    return sheet(read(path))
