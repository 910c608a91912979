"""Two halves of a recording of one process: nothing is called a cause of their difference but what is once."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from builder import read_text
from paths import TRACES

import traceq
from traceq.causes.host_line import ONCE
from traceq.model import Run

pytestmark = pytest.mark.skipif(not TRACES.exists(), reason=f"no {TRACES}")

NOTABLE = 0.02
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "gpu_user_annotation", "cuda_sync"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
FILES = [f"nanogpt-h100-8r/rank{rank}" for rank in range(8)]
FILES += ["resnet50-2021/workers0", "resnet50-2021/workers4", "resnet50-2021/bare-array", "gloo-cpu/rank34"]
FILES += ["hta-diff/control-a100-rank3", "hta-diff/test-v100-rank1"]
FAST = {"nanogpt-h100-8r/rank3", "gloo-cpu/rank34", "resnet50-2021/workers0"}


def halves(name: str) -> tuple[Run, Run]:
    """A trace until the middle of its steps, and from there on with what runs then and was launched before."""
    with gzip.open(TRACES / f"{name}.json.gz") as file:
        document = json.load(file)
    document = {"traceEvents": document} if isinstance(document, list) else document
    timed = [event for event in document["traceEvents"] if event and "ts" in event and event["ph"] != "M"]
    meta = [event for event in document["traceEvents"] if event and event["ph"] == "M"]
    marks = {
        float(event["ts"])
        for event in timed
        if str(event["name"]).startswith("ProfilerStep#") and event["cat"] != "gpu_user_annotation"
    }
    cut = sorted(marks)[len(marks) // 2]
    launched = {event["args"].get("correlation"): float(event["ts"]) for event in timed if kind(event) in CALLS}

    def begins(event: dict[str, Any]) -> float:
        start = float(event["ts"])
        return launched.get(event["args"].get("correlation"), start) if kind(event) in ON_DEVICE else start

    sides = (
        [event for event in timed if begins(event) < cut],
        [event for event in timed if float(event["ts"]) >= cut],
    )
    first, second = (
        Run("half", (read_text(json.dumps({**document, "traceEvents": [*meta, *events]}).encode()),))
        for events in sides
    )
    return first, second


def kind(event: dict[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


@pytest.mark.parametrize(
    "name", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in FILES]
)
def test_halves_of_one_process_have_no_cause(name: str) -> None:
    diff = traceq.diff(*halves(name))
    assert diff.traced is not None
    least_ns = NOTABLE * (diff.traced.a_ns + diff.traced.b_ns) / 2
    assert not [
        (cause.name, cause.delta_ns)
        for cause in diff.causes
        if cause.names_a_change and cause.name != ONCE and abs(cause.delta_ns) > least_ns
    ]
