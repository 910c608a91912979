"""docs/json.md is what the code says, and names every key of the JSON of `show`, `diff` and `whatif` with its type."""

from __future__ import annotations

import json
import re
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import write
from item_trace import with_item
from made_batches import compared, manifest
from made_history import write_run
from made_interaction import diffs_of
from paths import ROOT
from show_keys import SHOW
from terminal import traceq

from traceq.analysis.registry import analyze_all
from traceq.compare.result import Diffs
from traceq.renderers.diff_json import diffs_to_json
from traceq.runs.read import read

sys.path.insert(0, str(ROOT / "docs"))
sys.path.insert(0, str(ROOT / "tests" / "answers"))

from inputs import Question, questions
from json_page import PAGE, page

FIXTURES = ROOT / "fixtures"
JOB = FIXTURES / "example" / "job"
KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "bool": (bool,), "number": (int, float)}
PARTS = {
    "traceq.show/3": ("show",),
    "traceq.diff/3": ("show", "diff"),
    "traceq.diffs/3": ("show", "diff"),
    "traceq.whatif/1": ("show", "whatif"),
    "traceq.runs/1": ("show", "a folder of runs"),
    "traceq.history/1": ("show", "history"),
    "traceq.snapshot/2": ("show", "memory snapshot"),
    "traceq.snapshot_diff/2": ("show", "two memory snapshots"),
}
"""Parts of the page that have the objects of a schema."""

Keys = dict[str, dict[str, str]]
"""By name of an object, and that is the key under which it stands: the type of each of its keys."""


@cache
def part(title: str) -> Keys:
    """What the page says about a command."""
    (text,) = (each for each in re.split("^## ", PAGE.read_text(), flags=re.M)[1:] if each.startswith(f"{title}\n"))
    keys: Keys = {}
    for section in re.split("^### ", text, flags=re.M)[1:]:
        heading, _, rest = section.partition("\n")
        listed = re.search(r"With (`.*)\.$", rest, re.M)
        common = re.findall(r"(?:^|, )`(\w+)`", re.sub(r" \(.*?\)", "", listed[1])) if listed else []
        types = {key: usual_type(key) for key in common} | rows(rest)
        keys |= dict.fromkeys(re.findall("`(.*?)`", heading), types)
    return keys


@cache
def usual_type(key: str) -> str:
    """The type of a key by its name alone."""
    usual = rows(PAGE.read_text().split("\n## Keys of many tables\n")[1].split("\n## ")[0])
    return next(kind for name, kind in usual.items() if fnmatchcase(key, name))


def rows(text: str) -> dict[str, str]:
    """The types of keys in a list of the page; a key without one has the usual one of its name."""
    entries = re.findall(r"^- (`[\w*]+`(?:, `[\w*]+`)*)(?: \((.*?)\))?(?::|$)", text, re.M)
    return {name: kind or usual_type(name) for names, kind in entries for name in re.findall(r"`([\w*]+)`", names)}


def fits(value: Any, kind: str, name: str, objects: Keys) -> None:
    """A value is what the page says; so is all inside it."""
    kind = kind.removesuffix(" or absent")
    if value is None:
        assert kind.endswith("?"), name
        return
    kind = kind.removesuffix("?")
    if kind.startswith("list of "):
        for inner in value:
            fits(inner, kind.removeprefix("list of ").removesuffix("s"), name, objects)
    elif kind.endswith(" by name"):
        fitting = (int, float) if kind.startswith("numbers") else (str, int, float)
        assert all(isinstance(inner, fitting) for inner in value.values()), name
    elif kind == "object":
        seldom = {key for key, inner in objects[name].items() if inner.endswith(" or absent")}
        assert value.keys() | seldom == objects[name].keys(), name
        for key, inner in value.items():
            fits(inner, objects[name][key], key, objects)
    else:
        fitting = tuple(each for words in kind.split(" or ") for each in KINDS[words])
        assert isinstance(value, fitting), (name, value)
        assert not isinstance(value, bool) or bool in fitting, (name, value)


def fits_the_page(printed: str) -> dict[str, Any]:
    """All of a document is what the page says."""
    document: dict[str, Any] = json.loads(printed)
    objects: Keys = {}
    for title in PARTS[document["schema"]]:
        objects |= part(title)
    fits(document, "object", document["schema"], objects)
    return document


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python docs/json_page.py"


@pytest.mark.parametrize("path", ["outlier_ab/on", "example/job", "example/uneven", "strategies/fsdp2.json.gz"])
def test_show_is_as_the_page_says(path: str) -> None:
    fits_the_page(traceq("show", FIXTURES / path, "--json").out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "question",
    [
        each
        for each in questions()
        if each.command != "check" and all(path.startswith("fixtures") for path in each.inputs)
    ],
    ids=lambda question: question.name,
)
def test_every_answer_on_a_fixture_is_as_the_page_says(question: Question) -> None:
    done = traceq(question.command, *question.paths, "--json")
    if done.code == 0:
        fits_the_page(done.out)


def test_tables_without_rows_are_as_the_page_says() -> None:
    tables = [table for report in analyze_all(read(JOB)) for table in report.tables]
    assert {table.key: {each.key for each in (*table.columns, *table.parts)} for table in tables} == {
        table.key: part("show")[table.key].keys() for table in tables
    }


def test_what_is_promised_is_on_the_page() -> None:
    for name, shape in SHOW.items():
        keys = shape[0] if isinstance(shape, list) else shape
        assert name in part("show")["traceq.show/3"]
        assert not isinstance(keys, dict) or keys.keys() <= part("show")[name].keys(), name


def test_a_change_in_two_places_is_as_the_page_says() -> None:
    assert fits_the_page(diffs_to_json(diffs_of(here_ms=1.0, there_ms=3.0)))["joint"]


def test_a_sync_and_samples_in_a_diff_are_as_the_page_says(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{item}.json", *with_item(item=item)) for item in (True, False)]
    assert fits_the_page(traceq("diff", *paths, "--json").out)["causes"][0]["chain"]
    assert fits_the_page(diffs_to_json(Diffs("small", (compared(manifest(4, 8)),))))["sample"]


@pytest.mark.parametrize("options", [(), ("--without", "syncs", "--without-straggler=1")])
def test_whatif_is_as_the_page_says(options: tuple[str, ...]) -> None:
    assert fits_the_page(traceq("whatif", JOB, *options, "--json").out)["predictions"]


def test_a_folder_of_runs_is_as_the_page_says() -> None:
    assert fits_the_page(traceq("show", FIXTURES, "--json").out)["runs"]


def test_a_history_is_as_the_page_says(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    write_run(run, np.random.default_rng(1), number=0, has_sync=True, has_work=False, commit="c0ffee")
    assert traceq("history", "add", run, "--store", store, "--branch", "main").code == 0
    assert fits_the_page(traceq("history", "show", "--json", "--store", store).out)["values"]


@pytest.mark.parametrize("words", [("show", "snapshot_oom"), ("diff", "snapshot", "snapshot_oom")])
def test_memory_snapshots_are_as_the_page_says(words: tuple[str, ...]) -> None:
    command, *names = words
    document = fits_the_page(traceq(command, *(FIXTURES / "kinds" / f"{name}.pickle" for name in names), "--json").out)
    assert document["memory_lines"]


@pytest.mark.parametrize("title", sorted({title for titles in PARTS.values() for title in titles}))
def test_the_page_has_no_object_that_the_json_lacks(title: str) -> None:
    inside = {name for keys in part(title).values() for name, kind in keys.items() if re.search(r"\bobjects?\b", kind)}
    assert part(title).keys() <= inside | {name for name in part(title) if name.startswith("traceq.")}
