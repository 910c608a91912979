"""What a step saves without syncs is computed a second time, by a graph that is built and played event by event."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from catalogue import FILES, JOBS, sheet_of
from oracle.savings import CODES, Savings
from paths import FIXTURES

from traceq.claims.claim import Claim
from traceq.facts.timeline.once import once
from traceq.runs.read import read

WITH_SYNCS = re.compile(
    "^(cuda-sync|dlrm|ep-moe-b200-ab/ref|hta-diff|owlv2|resnet50-2021|sam-a100-ab|torchrec|example|kinds/inference)"
    "|^inference/vllm-piecewise-mi300-capture"
)
"""Traces and jobs that have a finding on what is saved without syncs."""

LONGEST = ("resnet50-2021/bare-array",)
"""Traces that the oracle replays for seconds; others have findings of the same codes."""

OURS = [f"example/{name}/rank{rank}" for name in ("job", "uneven") for rank in (0, 1)]
OURS += ["kinds/inference", "kinds/inference_slower", "kinds/late_start"]


def findings_of(path: Path) -> list[Claim]:
    return [finding for finding in sheet_of(path).findings if finding.code in CODES]


def once_of(path: Path) -> list[tuple[int, int]]:
    """Spans on which the host does what later steps do not."""
    (trace,) = read(path).traces
    return [(start, end) for start, end in once(trace).parts.tolist()]


def marks_of(name: str, marks: Collection[pytest.Mark | pytest.MarkDecorator]) -> Collection[Any]:
    return [pytest.mark.slow] if name in LONGEST else marks


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(pytest.param(FIXTURES / f"{name}.json", name, id=name) for name in OURS),
        *(pytest.param(*file.values, file.id, id=file.id, marks=marks_of(file.id, file.marks)) for file in FILES),
    ],
)
def test_what_a_finding_saves_is_what_a_replay_of_its_events_saves(path: Path, name: str) -> None:
    findings = findings_of(path)
    assert bool(findings) == bool(WITH_SYNCS.search(name))
    savings = Savings(path, once=once_of(path)) if findings else None
    for finding in findings:
        assert savings is not None
        assert finding.ns == pytest.approx(savings.saved_ns(finding.code, finding.key), abs=1)
    if savings is not None:
        replayed = zip(savings.replay.observed, savings.replay.steps, strict=True)
        assert all(ns == step["window_ns"] for ns, step in replayed if step["window"] == "device")


EXAMPLES = ("example/job", "example/uneven")


@pytest.mark.parametrize(
    "path", [*(pytest.param(FIXTURES / "example" / name, id=name) for name in ("job", "uneven")), *JOBS]
)
def test_what_a_finding_of_a_job_saves_is_what_a_replay_of_its_rank_saves(path: Path) -> None:
    of_rank: dict[int, Savings] = {}
    findings = findings_of(path)
    files = sorted(path.glob("rank*.json*")) if findings else []
    partial = set().union(*(Savings(file).partial for file in files))
    for finding in findings:
        rank = finding.subject.rank
        assert rank is not None
        if rank not in of_rank:
            (file,) = path.glob(f"rank{rank}.json*")
            of_rank[rank] = Savings(file, partial, once_of(file))
        assert finding.ns == pytest.approx(of_rank[rank].saved_ns(finding.code, finding.key), abs=1)
    assert bool(of_rank) == bool(re.search("example|dlrm|torchrec", path.as_posix()))
