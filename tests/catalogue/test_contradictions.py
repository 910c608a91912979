"""On every fixture and every real trace, each finding, label and total agrees with the tables it speaks about."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalogue import FILES, JOBS, sheet_of
from claims import FOUND_IN, contradictions
from paths import FIXTURES

from traceq.claims.rules import RULES

OURS = [
    *sorted(FIXTURES.glob("strategies/*.json.gz")),
    *sorted(FIXTURES.glob("recompiles/*.json.gz")),
    *sorted(path for path in FIXTURES.glob("example/*") if path.is_dir()),
    *(FIXTURES / "outlier_ab" / arm for arm in ("absent", "off", "deferred", "on")),
]


@pytest.mark.parametrize("path", [*(pytest.param(path, id=path.stem) for path in OURS), *FILES, *JOBS])
def test_a_sheet_does_not_contradict_itself(path: Path) -> None:
    assert list(contradictions(sheet_of(path))) == []


def test_every_claim_names_its_table() -> None:
    assert FOUND_IN.keys() == RULES.keys() - {"memory_peak", "memory_delta", "out_of_memory", "fragmentation"}
