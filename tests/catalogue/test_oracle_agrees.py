"""`traceq show --json` on every real trace says what the slow oracle computes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from catalogue import FILES
from oracle import answer
from oracle.partition import without_once
from typer.testing import CliRunner

Row = dict[str, Any]


@pytest.fixture(scope="module", params=FILES)
def both(request: pytest.FixtureRequest) -> tuple[Row, Row]:
    """What the product shows of a file, and what the oracle answers."""
    from traceq.cli import app

    result = CliRunner().invoke(app, ["show", "--json", str(request.param)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), answer(request.param)


def total(rows: list[Row], key: str, *fields: str) -> dict[str, dict[str, int]]:
    """Rows added up by `key`; keys whose fields are all zero are left out."""
    sums: dict[str, Counter[str]] = {}
    for row in rows:
        sums.setdefault(row[key], Counter()).update({field: row[field] or 0 for field in fields})
    return without_zeros({name: {field: result[field] for field in fields} for name, result in sums.items()})


def without_zeros(table: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {name: row for name, row in table.items() if any(row.values())}


@pytest.mark.slow
def test_events_are_all_read(both: tuple[Row, Row]) -> None:
    shown, expected = both
    assert shown["source"]["num_events"] == expected["num_events"]
    assert shown["coverage"] == expected["coverage"]


def test_steps_have_the_same_windows(both: tuple[Row, Row]) -> None:
    shown, expected = both
    fields = ("name", "dur_ns", "window", "window_ns", "partial", "lag_ns")
    assert [[step[field] or 0 for field in fields] for step in shown["steps"]] == [
        [step[field] or 0 for field in fields] for step in expected["steps"]
    ]


def test_memcpys_agree(both: tuple[Row, Row]) -> None:
    shown, expected = both
    assert total(shown["memcpy"], "kind", "num", "bytes", "gpu_ns") == expected["memcpy"]


def test_syncs_agree(both: tuple[Row, Row]) -> None:
    shown, expected = both
    assert total(shown["syncs"], "kind", "num", "bytes", "blocked_ns", "wait_ns") == expected["syncs"]


def test_collectives_agree(both: tuple[Row, Row]) -> None:
    shown, expected = both
    rows, wanted = shown["collectives"], expected["collectives"]
    calls = {name: row["num"] for name, row in total(rows, "name", "num").items()}
    assert calls == wanted["calls"]
    assert sum(row["num_kernels"] for row in rows) == wanted["num_kernels"]
    assert sum(row["gpu_ns"] for row in rows) == wanted["gpu_ns"]
    if wanted["bytes"]:
        assert {name: row["bytes"] for name, row in total(rows, "name", "bytes").items()} == wanted["bytes"]


def test_phases_agree(both: tuple[Row, Row]) -> None:
    shown, expected = both
    fields = ("cpu_ns", "gpu_busy_ns", "gpu_sum_ns", "num_kernels", "num_gpu_ops")
    assert {row["rule"] for row in shown["phases"]} == {expected["phases"]["rule"]}
    assert total(shown["phases"], "name", *fields) == without_zeros(expected["phases"]["rows"])


def cells_by_step(shown: Row) -> list[dict[tuple[str, str], int]]:
    places = {step["step"]: place for place, step in enumerate(shown["steps"])}
    cells: list[dict[tuple[str, str], int]] = [{} for _ in places]
    for row in shown["partition"]:
        cells[places[row["step"]]][row["phase"], row["category"]] = row["dur_ns"]
    return cells


def test_cells_add_up_to_their_window(both: tuple[Row, Row]) -> None:
    shown, _ = both
    windows = [step["window_ns"] for step in shown["steps"]]
    assert [sum(cells.values()) for cells in cells_by_step(shown)] == windows


def test_cells_agree(both: tuple[Row, Row]) -> None:
    shown, expected = both
    steps = zip(cells_by_step(shown), expected["partition"], strict=True)
    pairs = [without_once(of_shown, of_expected) for of_shown, of_expected in steps]
    assert [of_shown for of_shown, _ in pairs] == [of_expected for _, of_expected in pairs]
