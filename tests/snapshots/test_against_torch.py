"""Snapshots beside torch's own programs: its summary of segments, its flame graph, and its profile of memory.

A CPU has no snapshot of an allocator; torch makes one of a profile (`_profile_to_snapshot`), with true categories.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from snapshots import replay, training

import traceq

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SUMS = """
import json, pickle, re, sys
from torch.cuda._memory_viz import _format_size, memory, segsum
data = pickle.load(open(sys.argv[1], "rb"))
flames = [line.rpartition(" ") for line in memory(data, format_flamegraph=str).splitlines()]
print(json.dumps({
    "segments": dict(re.findall(r"^total_(\\w+): (\\S+)", segsum(data), re.MULTILINE)),
    "used": sum(int(size) for frames, _, size in flames if ";active_" in frames and "<gaps>" not in frames),
    "sizes": {size: _format_size(size) for size in map(int, sys.argv[2:])},
}))
"""

PROFILES = """
import pickle, sys, torch
from torch.profiler import ProfilerActivity, profile
from torch.cuda._memory_viz import _profile_to_snapshot

def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        torch.nn.functional.mse_loss(model(torch.randn(128, 256)), torch.randn(128, 64)).backward()
        optimizer.step()
    return optimizer

def build():
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))

train(build(), 1)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as result:
    model = build()
    optimizer = train(model, 2)
pickle.dump(_profile_to_snapshot(result), open(sys.argv[1], "wb"))
"""


def torch_runs(program: str, path: Path, *arguments: int) -> str:
    """What a program prints that has its file, and a snapshot's path as its first argument."""
    pytest.importorskip("torch")
    file = path.with_name("train.py")
    file.write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", str(file), str(path), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def parts_of(path: Path) -> dict[str, int]:
    rows = traceq.analyze(path, "memory_reserved").table("memory_reserved").to_dicts()
    return {str(row["part"]): int(str(row["size_bytes"])) for row in rows}


def check_sums(path: Path) -> None:
    parts = parts_of(path)
    reserved = sum(parts.values())
    free = reserved - parts["allocated"]
    answer = json.loads(torch_runs(SUMS, path, reserved, parts["allocated"], free))
    reported = {"reserved": reserved, "allocated": parts["allocated"], "free": free}
    assert answer["segments"] == {name: answer["sizes"][str(size)] for name, size in reported.items()}
    assert answer["used"] == parts["allocated"]


def test_segments_add_up_as_in_torchs_summary_and_flame_graph(tmp_path: Path) -> None:
    check_sums(training().write(tmp_path / "snapshot.pickle"))


def test_a_profile_of_a_cpu_has_the_kinds_that_torch_gave_it(tmp_path: Path) -> None:
    path = tmp_path / "cpu.pickle"
    torch_runs(PROFILES, path)
    check_sums(path)
    content: dict[str, Any] = pickle.loads(path.read_bytes())
    (rows,) = content["device_traces"]
    blocks = [
        block | {"address": address}
        for segment in content["segments"]
        for address, block in addressed(segment)
        if block["state"] == "active_allocated"
    ]
    states = replay(rows, blocks)
    totals = [sum(state.values()) for state in states]
    moments = traceq.analyze(path, "memory_moments").table("memory_moments").to_dicts()
    assert [row["allocated_bytes"] for row in moments] == [max(totals), totals[-1]]

    category: dict[int, str] = {}
    for row in rows[: totals.index(max(totals))]:
        if row["action"] == "alloc":
            category[row["addr"]] = row["category"]
    truth: Counter[str] = Counter()
    for address, size in states[totals.index(max(totals))].items():
        truth[category.get(address, "")] += size
    kinds = traceq.analyze(path, "memory_kinds").table("memory_kinds").to_dicts()
    at_peak = {row["kind"]: row["size_bytes"] for row in kinds if row["moment"] == "peak"}
    parameters = 4 * (256 * 512 + 512 + 512 * 64 + 64)
    assert at_peak["optimizer state"] == truth["optimizer_state"] >= 2 * parameters
    assert at_peak["gradients"] == truth["gradient"] == parameters
    assert at_peak["weights"] == truth["parameter"]
    lines = traceq.analyze(path, "memory_lines").table("memory_lines").to_dicts()
    assert {row["line"].partition(" ")[2] for row in lines if row["kind"] == "weights"} == {
        "build",
        "train",
    }


def addressed(segment: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Blocks of a segment with their addresses, which a profile's do not have."""
    place, result = segment["address"], []
    for block in segment["blocks"]:
        result.append((place, block))
        place += block["size"]
    return result
