"""Time by line of Python against a search through all frames, on every trace that has stacks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from builder import table
from catalogue import FILES
from oracle import reader
from oracle.lines import open_frames
from paths import ROOT

from traceq.facts.timeline.main_lines import main_lines
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace
from traceq.model import Category

FRAME = re.compile(r"^(.*\.py)\((\d+)\): (.*)$")
LIBRARY = re.compile(
    r"(?:^|/)(?:torch|torch_xla|accelerate|tqdm|multiprocessing|concurrent|asyncio|importlib|traceq/recorder)/"
    r"|(?:^|/)lib/python3\.\d+/(?!(?:site|dist)-packages/)"
    r"|(?:^|/)(?:threading|contextlib|functools|runpy|typing|weakref|warnings|inspect|abc|enum|dataclasses|copy)\.py$"
)
NUM_INSTANTS = 60
OURS = [ROOT / "fixtures" / "example" / "job" / "rank0.json"]


def innermost(frames: list[reader.Event], instant: int, without_line: set[int]) -> str:
    """`model.py:20 forward` of the user frame that is open and began last; no line if its row is `without_line`."""
    is_open = [frame for frame in frames if frame.start <= instant < frame.end]
    if not is_open:
        return ""
    last = max(is_open, key=lambda frame: (frame.start, -frame.end))
    path, line, function = FRAME.match(last.name).groups()  # type: ignore[union-attr]
    number = "" if last.row in without_line else f":{line}"
    return f"{path.rpartition('/')[2]}{number} {function}"


@pytest.mark.parametrize("path", [*(pytest.param(path, id=path.parent.name) for path in OURS), *FILES])
def test_a_moment_is_at_the_innermost_frame_and_all_of_them_are_the_step(path: Path) -> None:
    trace = read_trace(path)
    if not len(trace.events.rows(Category.PYTHON)):
        pytest.skip("no Python frames")
    lines, rows = main_lines(trace), table(trace, "lines")
    if not rows:
        pytest.skip("no frames of a user")
    host = steps(trace).host[steps(trace).counted]
    num, num_lines = len(host), len({(row["phase"], row["line"]) for row in rows})
    assert abs(sum(row["host_ns"] for row in rows) - int(np.diff(host).sum()) / num) <= num_lines
    read = reader.read(path)
    frames = [event for event in read.events if event.cat == "python_function" and event.thread == read.main]
    users = [event for event in frames if (match := FRAME.match(event.name)) and not LIBRARY.search(match[1])]
    parts = lines.parts[contains_middle(lines.parts, host)]
    chosen = parts[:: max(len(parts) // NUM_INSTANTS, 1)]
    wanted = [(int(begin + end) // 2) for begin, end in chosen.tolist()]
    named = [lines.texts[number] for number in lines.line_at(np.array(wanted)).tolist()]
    without_line = open_frames(read)
    expected = [innermost(users, instant, without_line) for instant in wanted]
    assert [line for line, naive in zip(named, expected, strict=True) if naive] == list(filter(None, expected))


def contains_middle(parts: np.ndarray, host: np.ndarray) -> np.ndarray:
    middle = parts.sum(axis=1) // 2
    return np.any((middle[:, None] >= host[:, 0]) & (middle[:, None] < host[:, 1]), axis=1)
