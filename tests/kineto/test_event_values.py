"""Values of events as they are written: what `json` makes of them, by key."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from builder import op, world, write

from traceq.kineto import reader_choice
from traceq.kineto.event_values import MOST_ARGUMENTS, EventValues, Kind, read_event_values

pytestmark = pytest.mark.skipif(bool(reader_choice.MISSING), reason=f"no native reader: {reader_choice.MISSING}")


def test_values_are_those_of_the_text(tmp_path: Path) -> None:
    mark = {"ph": "M", "name": "process_name", "pid": "Spans", "ts": 0}
    rows = op("mm", 1.5, 2, **{"Input Dims": [[2]], "bytes": 8}), op("mm", 3.25, 2, bytes="8")
    values = read_event_values(write(tmp_path / "trace.json", mark, *rows, **world(3, 4)), ["bytes", "Input Dims"])
    assert values is not None
    assert (values.num_events, values.index.tolist(), values.metadata) == (3, [1, 2], world(3, 4))
    assert values.event_keys == ("ph", "name", "pid", "ts", "cat", "tid", "dur", "args")
    assert values.of_event["ts"].numbers.tolist() == [1500, 3250]  # ns
    assert values.of_event["pid"].kinds == Kind.INTEGER | Kind.STRING  # also that of an event which is no row
    size, dims = values.of_arguments["bytes"], values.of_arguments["Input Dims"]
    assert (size.number_rows.tolist(), size.numbers.tolist()) == ([0], [8])
    assert [(row, values.texts[text]) for row, text in zip(size.text_rows, size.texts, strict=True)] == [(1, "8")]
    assert (dims.kinds, dims.text_rows.tolist(), values.texts[dims.texts[0]]) == (Kind.OTHER, [0], [[2]])


ANY = [0, -7, 10**17, 2**63, 0.5, 1e300, True, None, "", "8", 'é "→" \\ \n', [], [[1, 2], ["x"]], {"k": [1]}, "x" * 90]


def arguments_of(values: EventValues) -> list[dict[str, Any]]:
    """The arguments of each row, put together again."""
    rows: list[dict[str, Any]] = [{} for _ in values.index]
    for key, cells in values.of_arguments.items():
        for row, number in zip(cells.number_rows.tolist(), cells.numbers.tolist(), strict=True):
            rows[row][key] = number
        for row, text in zip(cells.text_rows.tolist(), cells.texts.tolist(), strict=True):
            rows[row][key] = values.texts[text]
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_any_value_comes_back(seed: int, tmp_path: Path) -> None:
    dice, keys = random.Random(seed), [f"key {number}" for number in range(MOST_ARGUMENTS)]
    events = [
        {"ph": "X", "name": "op", "cat": "cpu_op", "ts": 1, "dur": dice.choice([2, 0.25])}
        | {"args": {key: dice.choice(ANY) for key in dice.sample(keys, 9)}}
        for _ in range(300)
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}, ensure_ascii=seed % 2 == 0, indent=seed % 3 or None), "utf-8")
    values = read_event_values(file, keys)
    assert values is not None
    assert [list(map(repr, row.items())) for row in _sorted(arguments_of(values))] == [
        list(map(repr, row.items())) for row in _sorted([event["args"] for event in events])
    ]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(sorted(row.items())) for row in rows]


@pytest.mark.slow
def test_text_that_is_no_json_is_not_read(tmp_path: Path) -> None:
    """Nor is one that the reference reader would mend: of such a file nothing is returned, never a part."""
    whole = write(tmp_path / "trace.json", op("a", 0, 1, bytes=8), op("b", 2, 1), **world(0, 1)).read_bytes()
    assert read_event_values(tmp_path / "trace.json", ["bytes"]) is not None
    dice, file = random.Random(0), tmp_path / "broken.json"
    for _ in range(300):
        position = dice.randrange(len(whole))
        broken = whole[:position] + bytes([dice.choice(b'{}[],:"x1 ')]) + whole[position + 1 :]
        file.write_bytes(broken if dice.random() < 0.7 else whole[:position])
        values = read_event_values(file, ["bytes"]) if file.stat().st_size else None
        if values is not None:
            assert values.num_events == len(json.loads(file.read_bytes())["traceEvents"])


def test_the_python_reader_has_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEQ_READER", "python")
    assert read_event_values(write(tmp_path / "trace.json", op("a", 0, 1)), []) is None
