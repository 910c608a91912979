"""A comparison in a notebook: the answer first, the tables folded up."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TextIO

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import (
    causes_table,
    exchanges_table,
    facts_table,
    inference_table,
    matrix,
    ranks_table,
    waterfall,
    work_table,
)
from traceq.display import RenderOptions
from traceq.renderers.notebook import caveats_list, folded, table_fragment

__all__ = ["write_diffs"]


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison: a table of the arms, then each answer and its explanation."""
    if len(diffs.diffs) > 1:
        file.write(table_fragment(matrix(diffs)))
    if diffs.exchanges:
        file.write(table_fragment(exchanges_table(diffs)))
    if (facts := facts_table(diffs)) is not None:
        file.write(table_fragment(facts))
    lines = (
        *(interaction.words for interaction in diffs.interactions),
        *dict.fromkeys(diff.free for diff in diffs.diffs if diff.free),
    )
    file.writelines(f"<p>{escape(line)}</p>" for line in lines)
    for diff in diffs.diffs:
        file.writelines(_fragments(diff))


def _fragments(diff: Diff) -> Iterator[str]:
    yield f"<p><b>{escape(diff.words[0])}</b></p>"
    yield from (f"<p>{escape(line)}</p>" for line in diff.words[1:])
    if diff.traced is not None:
        tables = (inference_table(diff), waterfall(diff), ranks_table(diff), causes_table(diff), work_table(diff))
        title = f"{diff.b_name} against {diff.a_name}, part by part"
        yield folded(title, (table_fragment(table) for table in tables if table.rows))
    yield caveats_list(diff.caveats)
