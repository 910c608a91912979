"""A recording of 20,000 steps keeps of each what its verdict needs, a few hundred bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient
from recording import MAIN

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells what a process holds"),
]
STEPS = 20_000
EVERY = 2_000
MOST_BYTES = 400
"""A step leaves its loss and its half of a pair, 210 bytes; as it is logged it would be 1,000."""
LOOP = f"""
import re, torch
from pathlib import Path

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
with open("held.txt", "w", buffering=1) as held:
    for step in range(3 * {STEPS}):
        if step % {EVERY} == 0:
            print(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=held)
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_memory_does_not_grow_with_what_is_logged(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    each = STEPS // 4  # of two arms against each other, and of one against itself
    words = ["--toggle", "torch.backends.cudnn.benchmark=False,True", "--steps", str(each), "--trace-steps", "0"]
    command = [*MAIN, *words, "--out", "run", "--", sys.executable, "loop.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=patient(300))
    assert (tmp_path / "run" / "steps" / "rank0.jsonl").read_text().count('"kind":"step"') >= STEPS
    held_kb = [int(line) for line in (tmp_path / "held.txt").read_text().split()]
    begun = held_kb[2:]  # by then torch is imported, the pattern of a step learned, and the first groups timed
    assert len(begun) >= STEPS // EVERY - 2
    assert 1024 * (begun[-1] - begun[0]) <= MOST_BYTES * EVERY * (len(begun) - 1), held_kb
