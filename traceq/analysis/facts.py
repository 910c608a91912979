"""What did the recipe of a recording measure besides time: the facts that it declares, by arm?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceq.analysis import sentences
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Manifest, Trace
from traceq.report import Cell, Column, Report, Table, column
from traceq.units import Unit, format_value


@frozen
class FactRow:
    """What a recipe measured besides time, of an arm or the run (`arm` "")."""

    key: str = column("key")
    arm: str = column("arm")
    title: str = column("fact")
    unit: str = column("unit")
    """`text`, `count`, `number`, `bytes`, `ns` or `percent`."""
    value: Cell = column("value")
    """None: not measured."""


def summarize(trace: Trace) -> None:
    """Return nothing: facts are in the manifest."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return the facts of all arms; people see a row for each arm, and those of the run below."""
    if job.manifest is None:
        return Report("facts", (Table.of("facts", "Facts", FactRow, ()),))
    complete, view = fact_tables(job.manifest)
    return Report("facts", (complete,), (view,) if view.rows or view.note else ())


def fact_tables(manifest: Manifest) -> tuple[Table, Table]:
    """Return (a row for each fact of each arm, a row for each arm with any); without rows where none is declared."""
    rows: list[FactRow] = []
    shown: list[tuple[Cell, ...]] = []
    of_run = [(fact, manifest.fact(fact.key)) for fact in manifest.facts if fact.of_run]
    rows += [FactRow(fact.key, "", fact.title, fact.unit.value, value) for fact, value in of_run]
    of_arms = [fact for fact in manifest.facts if not fact.of_run]
    for arm in manifest.arms:
        values = [manifest.fact(fact.key, arm) for fact in of_arms]
        if any(value is not None for value in values):
            pairs = zip(of_arms, values, strict=True)
            rows += [FactRow(fact.key, arm.name, fact.title, fact.unit.value, value) for fact, value in pairs]
            shown.append((arm.name, *values))
    columns = (Column("arm", "arm"), *(Column(fact.key, fact.title, fact.unit) for fact in of_arms))
    title = sentences.FACTS if manifest.recipe else "By arm"
    view = Table("facts", title, columns, tuple(shown)).non_empty_columns
    texts = [f"{fact.title}: {format_value(value, fact.unit)}" for fact, value in of_run if value not in ("", None)]
    return Table.of("facts", "Facts", FactRow, rows), _with_note(view, texts)


def _with_note(view: Table, texts: list[str]) -> Table:
    """Return the view with a note of the run's facts, and of texts that are the same for all of several arms."""
    alike = []
    for index, each in enumerate(view.columns[1:], start=1):
        values = {row[index] for row in view.rows}
        if each.unit is Unit.TEXT and len(view.rows) > 1 and len(values) == 1:
            alike.append(each.key)
            texts = [*texts, f"{each.title}: {values.pop()} in all arms"]
    view = view.without(*alike)
    rows = view.rows if len(view.columns) > 1 else ()
    return replace(view, rows=rows, note=f"{'; '.join(texts)}." if texts else "")
