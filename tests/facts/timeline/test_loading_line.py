"""Which line makes the batches, where a recording tells the lines between ops."""

from __future__ import annotations

import pytest
from builder import annotation, build, op, step

from traceq.facts.timeline.main_lines import loading_line
from traceq.model import Manifest, SourceLines

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LINES = ("train.py:26 main", "train.py:11 Slow.__getitem__", "train.py:30 main")
MANIFEST = Manifest(1, "", "", "", {}, (), ("forward",), 1, 0)


@pytest.mark.parametrize("before", [1, 2], ids=["the loader", "the loop"])
def test_what_runs_before_a_batch_is_asked_for_may_be_the_loader_already(before: int) -> None:
    """From 20 us to the first op of the loader at 70 one line runs, and the batch is asked for at 25."""
    between = {
        "other|aten::zero": (((before, 100),),),
        "other|aten::randn": (((1, 100),),),
        "other|aten::stack": (((0, 100),),),
    }
    rows = [step(0, 100, 1), op("aten::zero", 10, 10), annotation(LOADER, 25, 65), op("aten::randn", 70, 2)]
    rows += [op("aten::stack", 84, 4), op("aten::mm", 95, 5)]
    line = loading_line(build(*rows, recorded={"lines": SourceLines(LINES, {}, between), "manifest": MANIFEST}))
    assert line is not None
    assert (line.line, line.share_pct) == (LINES[1], pytest.approx(100 * (45 * (before == 1) + 12) / 65))
