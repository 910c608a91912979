"""The oldest packages that are allowed are those of pyproject.toml, as constraints that pip reads."""

from __future__ import annotations

import re
import subprocess
import sys

from paths import ROOT


def test_each_requirement_has_its_oldest_version() -> None:
    words = [
        sys.executable,
        str(ROOT / "packaging" / "oldest.py"),
        "record",
        "cluster",
        "hta",
        "parquet",
        "query",
        "zstd",
    ]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert all(re.fullmatch(r"[\w-]+==\d+(\.\d+)*", line) for line in lines)
    assert {"numpy==1.26", "torch==2.4", "duckdb==1.1"} <= {*lines}
    assert len(lines) == len({line.partition("==")[0] for line in lines})
