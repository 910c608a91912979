"""Real memory snapshots beside this checkout: the peak and its lines are those of a loop over the actions.

In `TRACES/snapshots`, from public repositories: kkaitlyn111/cs336-a2-systems (memory_files), Wedsonlin/
assignment2-systems (results), shreyansh26/MLSys-Experiments (model_memory_usage), cranberrii/ftcourse,
Felixburton7/voxelflex and albi2/thesis-text-to-SQL; they are no part of this project.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from paths import TRACES

import traceq
from traceq.runs.plain_pickle import load_plain

FILES = [pytest.param(path, id=path.stem) for path in sorted((TRACES / "snapshots").glob("*.p*kl*"))] or [
    pytest.param(None, id="none", marks=pytest.mark.skip(reason=f"no snapshots in {TRACES / 'snapshots'}"))
]
Alive = dict[int, tuple[int, Any]]
"""Bytes and frames by address."""


def in_use(content: dict[str, Any]) -> Alive:
    """The blocks in use at the end."""
    alive: Alive = {}
    for segment in content["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                alive[address] = block["requested_size"], block["frames"]
            address += block["size"]
    return alive


def highest(content: dict[str, Any]) -> Alive:
    """What is alive at the peak, by a loop over the actions of the first device."""
    rows = [row for row in content["device_traces"][0] if row["action"] in ("alloc", "free_completed")]
    first = {row["addr"]: row for row in reversed(rows)}
    alive: Alive = {address: block for address, block in in_use(content).items() if address not in first}
    alive |= {address: (row["size"], None) for address, row in first.items() if row["action"] != "alloc"}
    level = most = sum(size for size, _ in alive.values())
    peak = dict(alive)
    for row in rows:
        if row["action"] == "alloc":
            alive[row["addr"]] = row["size"], row["frames"]
            level += row["size"]
        else:
            level -= alive.pop(row["addr"])[0]
        if level > most:
            most, peak = level, dict(alive)
    return peak


def has_stack(line: object) -> bool:
    return line != "(no stack)"


@pytest.mark.parametrize("path", FILES)
def test_the_peak_and_the_end_are_those_of_a_loop(path: Path) -> None:
    content = load_plain(path.read_bytes())
    sheet = traceq.analyze(path)
    moments = {row["moment"]: row for row in sheet.report("memory_moments").table("memory_moments").to_dicts()}
    at_end = in_use(content)
    assert moments["end"]["allocated_bytes"] == sum(size for size, _ in at_end.values())
    assert moments["end"]["reserved_bytes"] == sum(segment["total_size"] for segment in content["segments"])
    assert [caveat.code for caveat in sheet.caveats if caveat.code == "contradictions"] == []
    name, peak = ("peak", highest(content)) if "peak" in moments else ("end", at_end)
    assert moments[name]["allocated_bytes"] == sum(size for size, _ in peak.values())
    truth, shown = Counter[bool](), Counter[bool]()
    for size, frames in peak.values():
        truth[bool(frames)] += size
    for row in sheet.report("memory_lines").table("memory_lines").to_dicts():
        if row["moment"] == name:
            shown[has_stack(row["line"])] += int(str(row["size_bytes"]))
    assert shown == truth
