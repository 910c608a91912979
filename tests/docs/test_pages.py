"""The pages: what they quote is what the commands print, their links lead somewhere, and they build."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from golden_files import UPDATE
from paths import ROOT
from terminal import options_of, traceq

DOCS = sorted((ROOT / "docs").glob("**/*.md"))
QUOTING = [
    ROOT / "README.md",
    *(ROOT / "docs" / page for page in ("tutorial.md", "reading-a-trace.md", "whatif.md")),
    *sorted((ROOT / "docs" / "analyses").glob("*.md")),
]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
OPTION = re.compile(r"--[\w-]+")
NOT_RUN = ("record", "open")  # one takes minutes, the other waits for a browser


def commands(block: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(line, output) for line, _, output in (part.partition("\n") for part in parts)]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(line: str) -> str:
    """What a command of a page prints, or its first lines (`| head -9`); nothing for those that are not run."""
    line, _, num = line.partition("  #")[0].partition(" | head -")
    program, command, *words = shlex.split(line)
    assert program == "traceq"
    printed = "" if command in NOT_RUN else traceq(command, *words).out
    return "".join(printed.splitlines(keepends=True)[: int(num) if num else None])


@pytest.mark.parametrize("page", QUOTING, ids=name)
def test_a_page_quotes_what_the_commands_print(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    text = page.read_text()
    for block in BLOCK.findall(text):
        quoted = commands(block)
        if page.name == "README.md" and "fixtures/" not in block:  # of the reader's own job
            continue
        printed = "".join(f"$ {line}\n" + _plain(run(line)) for line, _ in quoted)
        if UPDATE:
            text = text.replace(block, printed)
        else:
            assert block == printed
    if UPDATE:
        page.write_text(text)


def _plain(printed: str) -> str:
    """Without blank lines at either end, and without spaces at the ends of lines."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    for block in BLOCK.findall(page.read_text()):
        for line, _ in commands(block):
            if line.startswith("traceq "):
                command, *words = shlex.split(line.partition("  #")[0].partition(" -- ")[0])[1:]
                assert {word for word in words if OPTION.fullmatch(word)} <= options_of(command), line


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_links_lead_to_pages(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_the_pictures_are_taken_from_the_pages(browser: Any, tmp_path: Path) -> None:
    """Each of them, of the size of its window or its part; and all that are in the repository are shown somewhere."""
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    pictures["take"](browser, tmp_path)
    views, shown = pictures["VIEWS"], ROOT / "docs" / "pictures"
    assert {file.name for file in shown.iterdir()} == {f"{view}.png" for view in views} | {"open.png"}
    for view, picture in views.items():
        (width, height), there = png_size(tmp_path / f"{view}.png"), png_size(shown / f"{view}.png")
        assert (width, height) == tuple(2 * pixels for pixels in picture.size) or picture.part
        assert (width, height) == pytest.approx(there, rel=0.1), f"{view}: run docs/pictures.py"  # fonts differ
    texts = [page.read_text() for page in (*DOCS, ROOT / "README.md")]
    assert all(any(f"pictures/{file.name}" in text for text in texts) for file in shown.iterdir())


def png_size(file: Path) -> tuple[int, ...]:
    """Width and height of a PNG in pixels."""
    return struct.unpack(">II", file.read_bytes()[16:24])


@pytest.mark.slow
def test_the_pages_build_and_every_one_can_be_reached(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    listed = (ROOT / "mkdocs.yml").read_text()
    assert {page.relative_to(ROOT / "docs").as_posix() for page in DOCS} == set(re.findall(r"[\w/-]+\.md", listed))
