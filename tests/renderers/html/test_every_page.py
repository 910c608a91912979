"""Every kind of trace, and every real one, has a page: small enough to send, with its three numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from catalogue import FILES, JOBS
from paths import FIXTURES
from terminal import traceq

KINDS = [
    pytest.param(path, id=path.stem) for path in sorted((FIXTURES / "kinds").iterdir()) if path.suffix != ".pickle"
]
FIRST_NUMBER = re.compile(r'<dl class="numbers"><div><dt>(\w+)</dt><dd[^>]*>([^<]+)</dd><dd[^>]*>([^<]+)</dd>')
MOST_BYTES = 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("path", [*KINDS, *FILES, *JOBS])
def test_a_page_of_less_than_a_megabyte_has_the_time_of_a_step_or_of_the_trace(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    result = traceq("show", path, "--html", target)
    assert result.code == 0
    assert target.stat().st_size < MOST_BYTES
    page = target.read_text(encoding="utf-8")
    (number,) = FIRST_NUMBER.findall(page)
    lacks_steps = "ProfilerStep marks no whole step" in result.err or ">Whole trace, without steps<" in page
    assert number[0] == ("Trace" if lacks_steps else "Step")
    assert number[2].startswith("profiled, without steps" if lacks_steps else "profiled, mean of ")
    numbers = page.partition('<dl class="numbers">')[2].partition("</dl>")[0]
    assert f"of the {'step' if lacks_steps else 'trace'}<" not in numbers
