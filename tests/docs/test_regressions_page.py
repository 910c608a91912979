"""docs/regressions.md up to its sections on the history: what it quotes is what the commands print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from builder import call, frame, kernel, launch, memcpy, op, step, write
from golden_files import UPDATE
from paths import DOCS, ROOT
from terminal import traceq

FILE = DOCS / "regressions.md"
PAGE = FILE.read_text(encoding="utf-8").partition("\n## History")[0]
TEN, *EXAMPLES = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def job(length: int, lines: Sequence[int]) -> list[dict[str, object]]:
    """Three steps that read a value at each of these lines, and wait for a copy there."""
    rows: list[dict[str, object]] = []
    for number in range(3):
        start, first = number * length, 10 * number
        rows += [step(start, length, number), launch(start + 10, 5, first), kernel("gemm", start + 20, 500, first)]
        for place, line in enumerate(lines):
            at_us, corr = start + 595 + 200 * place, first + 1 + place
            rows += [
                frame(f"train.py({line}): log", at_us, 110),
                op("aten::_local_scalar_dense", at_us + 5, 100),
                call("cudaMemcpyAsync", at_us + 10, 10, corr),
                memcpy("DtoH (Device -> Pageable)", at_us + 15, 10, corr, size=4),
                call("cudaStreamSynchronize", at_us + 21, 60),
            ]
    return rows


def test_the_page_begins_with_ten_commands() -> None:
    assert TEN.count("\n$ ") == 9


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.partition("\n")[0][2:50])
def test_an_example_does_what_the_page_says(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    Path("fixtures").symlink_to(ROOT / "fixtures")
    write(Path("main.json.gz"), *job(1000, [12]))
    write(Path("head.json.gz"), *job(1310, [12, 14]))
    (rules,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    Path("traceq.toml").write_text(rules)
    printed, code = "", 0
    for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        printed += f"$ {line}\n"
        if line == "echo $?":
            printed += f"{code}\n"
            continue
        command, _, file = line.partition(" > ")
        done = traceq(*shlex.split(command)[1:])
        code, printed = done.code, printed + ("" if file else done.out) + done.err
    if UPDATE:
        FILE.write_text(FILE.read_text(encoding="utf-8").replace(block, printed), encoding="utf-8")
    else:
        assert printed == block
