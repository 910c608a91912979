"""The table of exit codes in docs/check.md: commands end with each of its codes, and with no other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from builder import step, write
from paths import DOCS
from terminal import PROGRAM, traceq

from traceq.model import Arm, Manifest
from traceq.runs.run_folder import RunFolder

TABLE = (DOCS / "check.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("```")[0]
INTERRUPTED, READER_GONE = 130, 141
ENDINGS = {
    "check a.json --rule 'step > 0 ms'": 0,
    "check absent.json --rule 'step > 0 ms'": 1,
    "check a.json --rule 'dtoh == 0'": 1,
    "check a.json --rule 'step > 0 ms' --rule 'dtoh == 0'": 1,
    "check a.json --rule 'dtho == 0'": 2,
    "check a.json --none": 2,
    "check a.json --rule 'step == 0 ms' --rule 'dtoh == 0'": 3,
    "diff a.json b.json": 0,
    "diff a.json b.json --fail-on-delta 50%": 0,
    "diff a.json absent.json": 1,
    "diff empty/a empty/b --fail-on-delta 5%": 1,
    "diff a.json b.json --fail-on-delta x": 2,
    "diff a.json b.json --none": 2,
    "diff a.json b.json --fail-on-delta 5%": 3,
    "diff a.json b.json --fail-on inconclusive": 3,
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two traces without a device, B's step 20 % longer, and a recording of nothing."""
    monkeypatch.chdir(tmp_path)
    write(Path("a.json"), *(step(1000 * number, 1000, number) for number in range(3)))
    write(Path("b.json"), *(step(1200 * number, 1200, number) for number in range(3)))
    Path("empty").mkdir()
    arms = (Arm("a", "", baseline=True), Arm("b", ""))
    RunFolder(Path("empty")).write_manifest(Manifest(1, "id", "r", "?", {}, arms, (), 1, 0, "complete"))


@pytest.mark.parametrize("line", ENDINGS)
def test_a_command_ends_with_its_code(line: str) -> None:
    assert traceq(*shlex.split(line)).code == ENDINGS[line]


def test_the_table_has_these_codes_and_no_other() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)}
    assert codes == {*ENDINGS.values(), INTERRUPTED, READER_GONE}


@pytest.mark.parametrize("line", ["check a.json --rule 'step > 0 ms'", "diff a.json b.json"])
def test_an_end_from_outside_is_no_success(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *shlex.split(line)], stdout=writer, check=False)
    os.close(writer)
    assert done.returncode == READER_GONE

    def interrupted(*words: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("traceq.cli.app", interrupted)
    assert traceq(*shlex.split(line)).code == INTERRUPTED


def test_help_leads_to_the_table() -> None:
    for command in ("check", "diff"):
        assert "docs/check.md#exit-codes" in " ".join(traceq(command, "--help").out.split())
