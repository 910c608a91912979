"""On every fixture and every real trace, each finding, label and total agrees with the tables it speaks about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from catalogue import FILES, JOBS, sheet_of
from claims import FOUND_IN, contradictions
from paths import FIXTURES, ROOT

OURS = [
    *sorted(FIXTURES.glob("strategies/*.json.gz")),
    *sorted(FIXTURES.glob("recompiles/*.json.gz")),
    *sorted(path for path in FIXTURES.glob("example/*") if path.is_dir()),
    *(FIXTURES / "outlier_ab" / arm for arm in ("absent", "off", "deferred", "on")),
]


@pytest.mark.parametrize("path", [*(pytest.param(path, id=path.stem) for path in OURS), *FILES, *JOBS])
def test_a_sheet_does_not_contradict_itself(path: Path) -> None:
    assert list(contradictions(sheet_of(path))) == []


def test_every_finding_names_its_table() -> None:
    """The codes that docs/method.md lists are those that can be found again in a table."""
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ", (ROOT / "docs" / "method.md").read_text(), re.MULTILINE)
    documented = {code for row in rows for code in re.findall("[a-z_]+", row)}
    assert set(FOUND_IN) <= documented
    raised = {
        code
        for source in (ROOT / "traceq" / "analysis").glob("*.py")
        for code in re.findall(r'Finding\("([a-z_]+)"', source.read_text())
    }
    assert raised <= set(FOUND_IN)
