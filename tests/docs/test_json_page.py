"""docs/json.md names just the keys that the JSON of `show`, `diff` and `whatif` has, each with its type."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from builder import write
from item_trace import with_item
from made_batches import compared, manifest
from made_interaction import diffs_of
from paths import ROOT
from show_keys import SHOW
from terminal import traceq

from traceq.analysis.registry import analyze_all
from traceq.compare.result import Diffs
from traceq.renderers.diff_json import diffs_to_json
from traceq.runs.read import read

FIXTURES = ROOT / "fixtures"
JOB = FIXTURES / "example" / "job"
KINDS: dict[str, Any] = {"text": str, "int": int, "bool": bool, "number": (int, float)}
KINDS["text or number"] = (str, int, float)

Keys = dict[str, dict[str, str]]
"""By name of an object, and that is the key under which it stands: the type of each of its keys."""


@cache
def page(part: str) -> Keys:
    """What the page says about a command."""
    text = (ROOT / "docs" / "json.md").read_text()
    (selected,) = (result for result in re.split("^## ", text, flags=re.MULTILINE)[1:] if result.startswith(part))
    keys: Keys = {}
    for section in re.split("^### ", selected, flags=re.MULTILINE)[1:]:
        heading, _, rest = section.partition("\n")
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", rest, re.MULTILINE))
        keys |= dict.fromkeys(re.findall("`(.*?)`", heading), rows)
    return keys


def fits(value: Any, kind: str, name: str, reported: Keys) -> None:
    """A value is what the page says; so is all inside it."""
    if value is None:
        assert kind.endswith(" or null"), name
        return
    kind = kind.removesuffix(" or null")
    if kind.startswith("list of "):
        for inner in value:
            fits(inner, kind.removeprefix("list of ").removesuffix("s"), name, reported)
    elif kind == "numbers by name":
        assert value, name
        assert all(isinstance(number, KINDS["number"]) for number in value.values()), name
    elif kind == "values by name":
        assert all(isinstance(inner, (str, *KINDS["number"])) for inner in value.values()), name
    elif kind == "object":
        seldom = {"arm", "step", "rows_of", "window", "num_windows"} if name == "source" else set()
        assert value.keys() | seldom == reported[name].keys(), name
        for key, inner in value.items():
            fits(inner, reported[name][key], key, reported)
    else:
        assert isinstance(value, KINDS[kind]), (name, value)
        assert not isinstance(value, bool) or kind == "bool", (name, value)


def shown(*words: str | Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(traceq(*words, "--json").out)
    return result


@pytest.mark.parametrize("path", ["outlier_ab/on", "example/job", "example/uneven", "strategies/fsdp2.json.gz"])
def test_show_is_as_the_page_says(path: str) -> None:
    result = shown("show", FIXTURES / path)
    fits(result, "object", result["schema"], page("show"))


def test_tables_without_rows_are_as_the_page_says() -> None:
    tables = [table for report in analyze_all(read(JOB)) for table in report.tables]
    assert {table.key: {part.key for part in (*table.columns, *table.parts)} for table in tables} == {
        table.key: page("show")[table.key].keys() for table in tables
    }


def test_what_is_promised_is_on_the_page() -> None:
    for name, shape in SHOW.items():
        rows = shape[0] if isinstance(shape, list) else shape
        assert name in page("show")["traceq.show/3"]
        assert not isinstance(rows, dict) or rows.keys() <= page("show")[name].keys(), name


@pytest.mark.slow
def test_diff_is_as_the_page_says() -> None:
    result = shown("diff", FIXTURES / "outlier_ab")
    fits(result, "object", result["schema"], page("diff"))


def test_a_change_in_two_places_is_as_the_page_says() -> None:
    reported = json.loads(diffs_to_json(diffs_of(here_ms=1.0, there_ms=3.0)))
    fits(reported, "object", reported["schema"], page("diff"))
    assert reported["joint"]


def test_a_sync_and_samples_in_a_diff_are_as_the_page_says(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{item}.json", *with_item(item=item)) for item in (True, False)]
    result = shown("diff", *paths)
    fits(result, "object", result["schema"], page("diff"))
    assert result["causes"][0]["chain"]
    result = json.loads(diffs_to_json(Diffs("small", (compared(manifest(4, 8)),))))
    fits(result, "object", result["schema"], page("diff"))
    assert result["sample"]


@pytest.mark.parametrize("options", [(), ("--without", "syncs", "--without-straggler=1")])
def test_whatif_is_as_the_page_says(options: tuple[str, ...]) -> None:
    result = shown("whatif", JOB, *options)
    fits(result, "object", result["schema"], page("whatif"))
    assert result["predictions"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("show", FIXTURES / "kinds" / "snapshot_oom.pickle"), "memory snapshot"),
        (
            ("diff", *(FIXTURES / "kinds" / f"snapshot{which}.pickle" for which in ("", "_oom"))),
            "two memory snapshots",
        ),
    ],
)
def test_memory_snapshots_are_as_the_page_says(words: tuple[str | Path, ...], part: str) -> None:
    result = shown(*words)
    fits(result, "object", result["schema"], page("show") | page(part))
    tables = {name for name, kind in page(part)[result["schema"]].items() if kind == "list of objects"}
    assert tables & result.keys() == tables
    assert page(part).keys() - {result["schema"]} == {name for name in tables if name.startswith("memory_")}


def test_the_page_has_no_object_that_the_json_lacks() -> None:
    for part in ("show", "diff", "whatif"):
        objects = {
            name for keys in page(part).values() for name, kind in keys.items() if re.search(r"\bobjects?\b", kind)
        }
        assert page(part).keys() == objects | {name for name in page(part) if name.startswith("traceq.")}
