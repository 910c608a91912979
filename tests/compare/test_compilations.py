"""A side that compiles in its steps: that is the cause, as often as it does."""

from __future__ import annotations

import pytest
from paths import FIXTURES

from traceq.compare.diff import diff

FOLDER = FIXTURES / "recompiles"


def test_what_recompiles_in_each_step_costs_its_compilations() -> None:
    result = diff(FOLDER / "none.json.gz", FOLDER / "lengths.json.gz")
    (cause,) = (each for each in result.causes if each.name == "torch.compile")
    (cell,) = (each for each in result.cells if each.category == "compiling")
    assert (cause.kind, cause.phase, cause.delta_num) == ("host", "compiling", 2)  # forward and backward
    assert cause.delta_ns == pytest.approx(cell.delta_ns, abs=1)
    assert cell.delta_ns == cell.b_ns


def test_a_side_that_compiles_has_no_other_phases() -> None:
    result = diff(FOLDER / "none.json.gz", FOLDER / "lengths.json.gz")
    assert not any("phases on one side" in caveat.text for caveat in result.caveats)
