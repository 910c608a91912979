"""Words that are read without typer mean what they mean to typer, and stored help is typer's."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
from golden_files import UPDATE
from hypothesis import given
from hypothesis import strategies as st
from terminal import shell, traceq

import traceq as package
from traceq.commands import SUMMARIES
from traceq.commands._plain_arguments import plain_arguments
from traceq.commands._typer import declared_parameters
from traceq.typer_app import app

STORED = Path(package.__file__).parent / "commands" / "help"
VALUES = ("a", "a=b", "7", "007", "39", "80", "-1", "1.5", "", " ", "-", "--", "x/y.json", "stop", "é")


def taken_by_typer(name: str, words: list[str]) -> dict[str, Any] | None:
    """What typer calls the command with; None where it ends with a message instead."""
    module = import_module(f"traceq.commands.{name}")
    taken: dict[str, Any] = {}

    @wraps(module.command)
    def record(**values: Any) -> None:
        taken.update(values)

    with patch.object(module, "command", record):
        try:
            typer.main.get_command(app).main([name, *words], "traceq", standalone_mode=False)
        except typer._click.exceptions.UsageError:
            return None
    return taken or None


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command, and words that are its options, values, and what looks like them."""
    name = draw(st.sampled_from(list(SUMMARIES)))
    parameters = list(declared_parameters(import_module(f"traceq.commands.{name}").command))
    options = [option for each in parameters for option in each.names]
    value = st.sampled_from(VALUES)
    word = st.one_of(value, value)
    if options:
        option = st.sampled_from([*options, *(option[:-1] for option in options), "--unknown"])
        joined = st.tuples(option, value).map("=".join)
        word = st.one_of(value, option, joined, st.tuples(option, value).map(lambda pair: pair[0] + pair[1]))
    return name, draw(st.lists(word, max_size=5))


@pytest.mark.slow
@given(command_lines())
def test_plain_words_mean_what_they_mean_to_typer(line: tuple[str, list[str]]) -> None:
    name, words = line
    plain = plain_arguments(import_module(f"traceq.commands.{name}").command, words)
    if plain is not None:
        assert plain == taken_by_typer(name, words)


PLAIN = {
    "show": ["a.json", "b.json", "--only", "idle", "--only=steps", "--full", "--width", "80", "--html", "x.html"],
    "diff": ["a", "b", "--threshold", "1%", "--json", "--memory=8GB", "--fail-on", "material"],
    "check": ["a", "--rule", "dtoh in forward == 0", "--rules", "rules.toml"],
    "query": ["a", "from syncs", "--json", "--ranks", "0,8"],
    "export": ["a", "b", "--to", "perfetto", "-o", "x.gz"],
    "open": ["a", "--no-browser", "--offline"],
    "whatif": ["a", "--without", "syncs", "--without-straggler=3"],
    "record": ["--toggle", "main.x=0,1", "--steps", "64", "--", "python", "train.py", "--lr", "1"],
    "recipes": [],
    "cache": ["--clear"],
}


@pytest.mark.parametrize("name", PLAIN)
def test_common_words_are_plain(name: str) -> None:
    plain = plain_arguments(import_module(f"traceq.commands.{name}").command, PLAIN[name])
    assert plain is not None
    assert plain == taken_by_typer(name, PLAIN[name])


@pytest.mark.parametrize("words", [["--steps", "64"], ["--hang-after", "1.5"]], ids=["plain", "by typer"])
def test_options_behind_the_first_word_of_a_job_are_the_job_s(words: list[str]) -> None:
    """Also without `--`: the job may have options of the same names."""
    job = ["python", "train.py", "--steps", "5", "--dry-run", "--", "--lr"]
    plain = plain_arguments(import_module("traceq.commands.record").command, [*words, *job])
    taken = taken_by_typer("record", [*words, *job])
    assert taken is not None
    assert (taken["job"], taken["is_dry"]) == (job, False)
    assert plain in (taken, None)
    assert taken == taken_by_typer("record", [*words, "--", *job])


@pytest.mark.pinned
@pytest.mark.parametrize("name", ["", *SUMMARIES])
def test_stored_help_is_that_of_typer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = STORED / f"{name or 'traceq'}.txt"
    monkeypatch.delenv("COLUMNS", raising=False)
    quick = traceq(*name.split(), "--help")
    monkeypatch.setenv("COLUMNS", "80")  # with it typer is asked
    full = traceq(*name.split(), "--help")
    if UPDATE:
        stored.write_text(full.out, encoding="utf-8")
    assert full.out == stored.read_text(encoding="utf-8"), "TRACEQ_UPDATE_GOLDENS=1 stores the help of commands anew"
    assert (quick.code, quick.err) == (full.code, full.err) == (0, "")


def test_every_stored_help_is_of_a_command() -> None:
    assert {file.stem for file in STORED.iterdir()} == {"traceq", *SUMMARIES}


@pytest.mark.slow
def test_help_of_a_narrow_terminal_is_narrow() -> None:
    narrow = shell("COLUMNS=60 $TRACEQ show --help")
    assert narrow.code == 0
    assert max(map(len, narrow.out.splitlines())) <= 60 < max(map(len, shell("$TRACEQ show --help").out.splitlines()))


@pytest.mark.pinned
def test_shells_that_ask_for_completions_are_answered_by_typer() -> None:
    answer = shell("_TRACEQ_COMPLETE=complete_bash COMP_WORDS='traceq sh' COMP_CWORD=1 $TRACEQ")
    assert answer.err == "Shell bash not supported.\n"
