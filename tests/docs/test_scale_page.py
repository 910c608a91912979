"""What docs/scale.md quotes of a job of many ranks is what the commands print."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

import fleet
import pytest
from golden_files import UPDATE
from paths import DOCS
from terminal import traceq

PAGE = DOCS / "scale.md"
MAKE = "PYTHONPATH=tests/support python tests/support/fleet.py "
(BLOCK,) = re.findall(r"```console\n(\$ PYTHONPATH=tests.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_the_page_shows_a_job_as_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, show = (line for line in BLOCK.splitlines() if line.startswith("$ "))
    with patch.object(sys, "argv", ["fleet.py", *shlex.split(make.removeprefix(f"$ {MAKE}"))]):
        fleet.main()
    printed = traceq(*shlex.split(show.removeprefix("$ traceq "))).out
    lines = [make, "job", show, *(line.rstrip() for line in printed.strip().splitlines())]
    if UPDATE:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(text.replace(BLOCK, "".join(f"{line}\n" for line in lines)), encoding="utf-8")
    else:
        assert lines == BLOCK.splitlines()
