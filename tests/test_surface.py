"""What docs/stability.md promises is there: tests/surface.json records commands, JSON, SQL, functions, metrics, runs.

TRACEQ_UPDATE_GOLDENS=1 adds what is new to the record and takes nothing out: what a new major version drops is deleted
from it by hand.
"""

from __future__ import annotations

import json

import pytest
from golden_files import UPDATE
from paths import FIXTURES, TESTS
from surface import PARTS, surface

import traceq

RECORD = TESTS / "surface.json"


def broken(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """What is gone, is of another type, or must now be given to what was there."""
    changed = {name: current.get(name, "gone") for name, kind in recorded.items() if current.get(name) != kind}
    new = {name: kind for name, kind in current.items() if name not in recorded and kind.endswith(", required")}
    needed = {name: kind for name, kind in new.items() if name.rpartition(" ")[0] in recorded}
    return [f"{name}: {kind}" for name, kind in (changed | needed).items()]


@pytest.mark.parametrize("part", PARTS)
def test_what_was_promised_is_there(part: str) -> None:
    record, current = json.loads(RECORD.read_text(encoding="utf-8")), surface(part)
    assert broken(record.get(part, {}), current) == []
    if UPDATE:
        text = json.dumps(record | {part: current}, indent=1, ensure_ascii=False)
        RECORD.write_text(f"{text}\n", encoding="utf-8")
        return
    assert [name for name in current if name not in record[part]] == [], "TRACEQ_UPDATE_GOLDENS=1 records what is new"


def test_what_is_gone_changed_or_newly_required_breaks_a_promise_and_an_addition_does_not() -> None:
    recorded = {"f": "returns int", "f x": "argument 0: int, required"}
    assert broken(recorded, recorded | {"f y": "keyword: int = 0", "g": "returns int", "g x": "int, required"}) == []
    assert broken(recorded, {"f": "returns int"}) == ["f x: gone"]
    assert broken(recorded, recorded | {"f": "returns None"}) == ["f: returns None"]
    assert broken(recorded, recorded | {"f y": "keyword: int, required"}) == ["f y: keyword: int, required"]


def test_a_run_that_an_older_version_recorded_is_read() -> None:
    run = traceq.read(FIXTURES / "outlier_ab")
    assert run.manifest is not None
    assert run.manifest.environment["traceq"] == "0.1.0"
    assert [diff.b_name for diff in traceq.diff(run).diffs] == ["on", "deferred"]
