"""No string of any input is markup of a page: each is shown in Chromium with tags, quotes and the end of a script."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from paths import FIXTURES
from terminal import traceq

import traceq as library

MARKUP = (
    """<img src=x onerror=alert(1)>'"><xss></script><script>alert(2)</script><!--<script>`${alert(3)}`&lt;xss&gt;"""
)
IN_FOLDER = "<img src=x onerror=alert(1)>'\"><xss>"
"""Names of arms are folders, and have no slash."""
ARMS = {name: f"{name}{IN_FOLDER}" for name in ("off", "on", "deferred", "absent")}
STRUCTURE = {"ph", "cat", "kind", "status", "state", "device", "segment_type", "action", "stage", "s"}
"""Members that say what the others mean: with markup in them there is little to show, so each has it alone."""

Chosen = Callable[[str], bool]


def with_markup(value: Any, is_chosen: Chosen, member: str = "") -> Any:
    """A document with markup behind the strings of the chosen members, also of keys that are data."""
    if isinstance(value, str):
        return ARMS.get(value, f"{value}{MARKUP}") if is_chosen(member) else value
    if isinstance(value, dict):
        are_data = is_chosen(member) and member in ("parameters", "phases", "pg_config")
        renamed = {f"{key}{MARKUP}" if are_data else key: each for key, each in value.items()}
        return {key: with_markup(each, is_chosen, str(key)) for key, each in renamed.items()}
    return [with_markup(each, is_chosen, member) for each in value] if isinstance(value, list) else value


def members(value: Any, member: str = "") -> set[str]:
    """Names of members that hold strings."""
    if isinstance(value, str):
        return {member}
    inside: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inside = ((member, each) for each in value)
    return {name for key, each in inside for name in members(each, str(key))}


def loaded(path: Path) -> Any:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if path.suffix == ".pickle":
        return pickle.loads(content)
    return [json.loads(line) for line in content.splitlines()] if path.suffix == ".jsonl" else json.loads(content)


def stored(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pickle":
        path.write_bytes(pickle.dumps(document, 2))
        return
    lines = "".join(json.dumps(line) + "\n" for line in document) if path.suffix == ".jsonl" else json.dumps(document)
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


def dumps(folder: Path) -> Path:
    for rank in range(2):
        frames = [{"name": "f", "filename": "/x/train.py", "line": 3}]
        entry = {"process_group": ["0", "default"], "profiling_name": "nccl:all_reduce", "input_dtypes": ["Float"]}
        entry |= {"state": "started", "frames": frames, "input_sizes": [[4]], "time_created_ns": 10**18}
        entries = [entry | {"collective_seq_id": number} for number in range(4 - rank)]
        stored(folder / f"rank{rank}.flight.json",
               {"entries": entries, "pg_config": {"0": {"ranks": "[0, 1]"}}, "waits_at": "train.py:3 f"})  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "job": FIXTURES / "example" / "job",
        "run": FIXTURES / "outlier_ab",
        "dumps": dumps(tmp_path_factory.mktemp("dumps")),
        "snapshot": FIXTURES / "kinds" / "snapshot.pickle",
    }


SUFFIXES = (".json", ".jsonl", ".pickle", ".gz")


def copied(source: Path, target: Path, is_chosen: Chosen, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """The input, or its files of some suffixes, with markup in strings of the chosen members, and in names of arms."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    for file in files:
        if file.suffix in suffixes:
            names = [ARMS.get(part, part) if is_chosen("name") else part for part in file.relative_to(source).parts]
            stored(target.joinpath(*names or [file.name]), with_markup(loaded(file), is_chosen))
    return target / source.name if source.is_file() else target


@pytest.fixture
def harmless(browser: Any) -> Iterator[Callable[[str | Path], bool]]:
    """Opens a page, and all that is folded on it, and walks with the keys and the pointer over its figures.

    Returns whether the page shows the markup as text.
    """
    messages: list[str] = []
    context = browser.new_context(offline=True)

    def harmless(content: str | Path) -> bool:
        page = context.new_page()
        for event in ("console", "pageerror", "dialog"):
            page.on(event, lambda what: messages.append(str(getattr(what, "text", what))))
        page.goto(content.as_uri()) if isinstance(content, Path) else page.set_content(content)
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        page.wait_for_timeout(300)
        for figure in page.locator("figure[data-chart]").all()[:12]:
            figure.scroll_into_view_if_needed()
            box = figure.bounding_box()
            for share in (0.2, 0.5, 0.8):
                page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.6 * box["height"])
            page.keyboard.press("Tab")
            page.keyboard.press("ArrowRight")
        assert page.locator("xss, img").count() == 0
        attributes = "[...document.querySelectorAll('*')].flatMap(each => [...each.attributes].map(at => at.name))"
        assert [name for name in page.evaluate(attributes) if name.startswith("on")] == []
        is_shown = "<xss>" in page.inner_text("body")
        page.close()
        return is_shown

    yield harmless
    context.close()
    assert messages == []


WORDS = ("show PATH", "diff PATH", "show PATH --full", "diff PATH PATH")


def pages(path: Path, folder: Path, commands: Sequence[str] = WORDS) -> Iterator[Path | str]:
    """What is HTML of a path, as far as it can be read, and what a notebook shows of it."""
    for command in commands:
        words = [path if word == "PATH" else word for word in command.split()]
        target = folder / "page.html"
        done = traceq(*words, "--html", target)
        assert done.code in (0, 1, 2)
        if target.is_file():
            yield target
            target.unlink()
    if commands == WORDS:
        yield library.analyze(path)._repr_html_()


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["job", *map(slow, ("run", "dumps", "snapshot"))])
def test_all_strings_together_are_text(
    kind: str, inputs: dict[str, Path], harmless: Callable[[str | Path], bool], tmp_path: Path
) -> None:
    path = copied(inputs[kind], tmp_path / f"{kind}{IN_FOLDER}", lambda member: member not in STRUCTURE)
    shown = [harmless(page) for page in pages(path, tmp_path)]
    assert len(shown) >= 2
    assert all(shown)


class Elements(HTMLParser):
    """The tags of a page, and the names of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["job", "run", "dumps", "snapshot"])
def test_each_string_alone_is_text(kind: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    source = inputs[kind]
    files = [source] if source.is_file() else [path for path in source.rglob("*") if "json" in path.suffix]
    names = sorted({name for file in files for name in members(loaded(file))})
    assert len(names) > 3
    for number, name in enumerate(names):
        path = copied(
            source, tmp_path / str(number), name.__eq__, SUFFIXES[:3]
        )  # the traces of a run are as those of a job
        for page in pages(path, tmp_path, WORDS[:1]):
            text = page if isinstance(page, str) else page.read_text("utf-8")
            markup = {each for each in Elements(text).names if each in ("xss", "img") or each.startswith("on")}
            assert markup == set(), name
