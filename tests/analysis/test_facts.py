"""What a recipe measures besides time: declared by the recipe, printed by everything that prints a run."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from made_batches import compared, manifest, run_of

from traceq.analysis.facts import fact_tables
from traceq.analysis.registry import analyze, sheet
from traceq.compare.result import Diffs
from traceq.errors import UsageFault
from traceq.escaped_console import EscapedConsole
from traceq.model import Arm, Fact, Manifest
from traceq.recorder import Recipe
from traceq.recorder.spec.recipe import check_names
from traceq.renderers.diff_json import diffs_to_json
from traceq.renderers.diff_text import print_diffs
from traceq.renderers.json import json_pieces
from traceq.renderers.markdown import diffs_to_markdown
from traceq.units import Unit

FACTS = (
    Fact("loss", "loss", Unit.NUMBER),
    Fact("held_bytes", "left for backward", Unit.BYTES),
    Fact("device", "runs on", of_run=True),
    Fact("unknown", "never measured"),
)
MEASURED = {"loss.small": 2.50341, "loss.large": 7.4e-07, "held_bytes.small": 3 * 2**20, "device": "cpu"}
ROWS = [
    ("device", "", "cpu"),
    ("unknown", "small", None),
    ("loss", "small", 2.50341),
    ("loss", "large", 7.4e-07),
    ("held_bytes", "large", None),
]


@pytest.fixture
def measured() -> Manifest:
    """Two arms that share a process, of a recipe with facts of both, of one, of the run, and of none."""
    return replace(manifest(4, 8), facts=FACTS, environment=MEASURED)


def test_facts_are_those_of_the_arm_wherever_it_ran(measured: Manifest) -> None:
    rows = [(row["key"], row["arm"], row["value"]) for row in fact_tables(measured)[0].to_dicts()]
    assert len(rows) == 1 + 2 * 3
    assert set(ROWS) <= set(rows)
    apart = Arm("large", "", facts={"loss": 1.5})
    alone = replace(measured, arms=(measured.arms[0], apart), environment={})
    assert [row["value"] for row in fact_tables(alone)[0].to_dicts() if row["key"] == "loss"] == [1.5]


def test_show_prints_what_was_measured(measured: Manifest) -> None:
    (view,) = analyze(run_of("small", measured), "facts").views
    assert [column.title for column in view.columns] == ["arm", "loss", "left for backward"]
    assert view.rows == (("small", 2.50341, 3 * 2**20), ("large", 7.4e-07, None))
    assert view.note == "runs on: cpu."
    shown = json.loads("".join(json_pieces(sheet(run_of("small", measured), ["facts"]))))["facts"]
    assert {"key": "loss", "arm": "small", "title": "loss", "unit": "number", "value": 2.50341} in shown
    assert analyze(run_of("small", manifest(4, 8)), "facts").views == ()


def test_what_is_the_same_for_all_arms_is_printed_once(measured: Manifest) -> None:
    """A fact without an arm in its key holds for all that share the process."""
    same = replace(
        measured, facts=(*FACTS, Fact("state", "the optimizer updates")), environment={**MEASURED, "state": "f"}
    )
    (view,) = analyze(run_of("small", same), "facts").views
    assert view.note.endswith("updates: f in all arms.")
    assert [column.key for column in view.columns] == ["arm", "loss", "held_bytes"]
    rows = [row for row in fact_tables(same)[0].to_dicts() if row["key"] == "state"]
    assert [(row["arm"], row["value"]) for row in rows] == [("small", "f"), ("large", "f")]


def test_diff_prints_it_in_every_form(measured: Manifest) -> None:
    diffs = Diffs("small", (compared(measured),), facts=fact_tables(measured))
    console = EscapedConsole(StringIO(), width=120, no_color=True)
    with console.capture() as capture:
        print_diffs(diffs, console)
    texts = [capture.get(), diffs_to_markdown(diffs), diffs._repr_html_()]
    for text in texts:
        assert all(words in text for words in ("2.503", "7.4e-07", "3.00 MiB", "runs on: cpu."))
    result = json.loads(diffs_to_json(diffs))
    assert {(row["key"], row["arm"]) for row in result["facts"]} >= {("loss", "small"), ("device", "")}


def test_the_page_of_a_diff_has_it(measured: Manifest) -> None:
    from traceq.renderers.html.diff import diffs_to_html

    page = diffs_to_html(Diffs("small", (compared(measured),), facts=fact_tables(measured)))
    assert "7.4e-07" in page
    assert "left for backward" in page


def test_a_fact_is_declared_once() -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    recipe = Recipe("?", ("forward",), None, lambda context, parameters: lambda arm: None, facts=(FACTS[0], FACTS[0]))
    with pytest.raises(UsageFault, match="same key: loss, loss"):
        check_names(recipe, "mine.py")
