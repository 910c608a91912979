"""Text that would control a terminal, through every command and every way in which a text gets into one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from builder import annotation, frame, kernel, launch, memcpy, op, step, text, world, write
from terminal import Outcome, shell, traceq

from traceq.commands import open as open_command
from traceq.errors import RecordingFailed
from traceq.viewer import TraceServer

HOSTILE = "a\x1b]52;c;aGk=\x07b\x1b[2J\rc\x9b31m\x7fd\u202eevil\u2066e\u2028f\ttab"
"""Sets the clipboard (OSC 52), clears the screen (CSI, and as C1), returns, deletes, and turns the reading order."""

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200e\u200f\u061c]")

Channel = Callable[[Path], Path]

ARMS = ("off", "a\x1b]52;c;aGk=\x07\x9b2J\u202eon")


def events(name: str) -> list[dict[str, Any]]:
    """Two steps of everything that is named in an output."""
    rows = []
    for index, start in enumerate((0, 1000)):
        rows += [step(start, 1000, index), frame(f"/x/{name}.py(3): {name}", start + 1, 900), op(name, start + 2, 500)]
        rows += [annotation(name, start + 2, 600), launch(start + 10, 5, 10 * index + 1, **{"Python id": name})]
        rows += [kernel(name, start + 20, 300, 10 * index + 1), memcpy(name, start + 400, 90, 10 * index + 2)]
        rows += [op("aten::item", start + 380, 200), launch(start + 390, 1, 10 * index + 2)]
    return rows


def names(folder: Path) -> Path:
    return write(folder / "trace.json", *events(HOSTILE), **world(0, 2, HOSTILE), host_name=HOSTILE)


def device(folder: Path) -> Path:
    return write(folder / "trace.json", *events("x"), deviceProperties=[{"id": 0, "name": HOSTILE}], traceName=HOSTILE)


def file_name(folder: Path) -> Path:
    return write(folder / f"{HOSTILE}.json", *events("x"))


def folder_name(folder: Path) -> Path:
    for rank in range(2):
        write(folder / HOSTILE / f"rank{rank}.json", *events("x"), **world(rank, 2))
    return folder / HOSTILE


def keys(folder: Path) -> Path:
    (folder / "keys.json").write_text(json.dumps({HOSTILE: 1, "events": []}))
    return folder / "keys.json"


def damage(folder: Path) -> Path:
    broken = text(*events("x")).replace(b'"cat":"kernel"', b'"cat":"kernel" ' + HOSTILE.encode(), 1)
    (folder / "damaged.json").write_bytes(broken)
    return folder / "damaged.json"


def unreadable_rank(folder: Path) -> Path:
    write(folder / "job" / "rank0.json", *events("x"), **world(0, 2))
    (folder / "job" / f"{HOSTILE}rank1.json").write_text(json.dumps({HOSTILE: 1}))
    return folder / "job"


def run(folder: Path) -> Path:
    """A recording with a hostile arm, question, device and reason of its end."""
    arms = [{"name": name, "meaning": HOSTILE, "baseline": name == "off"} for name in ARMS]
    manifest = {
        "version": 1,
        "run_id": HOSTILE,
        "recipe": HOSTILE,
        "question": HOSTILE,
        "parameters": {HOSTILE: HOSTILE},
        "arms": arms,
        "phases": [HOSTILE],
        "num_ranks": 1,
        "seed": 0,
        "hosts": [HOSTILE],
        "status": "failed",
        "fault": f"rank 0: RuntimeError: {HOSTILE}",
        "environment": {"gpu": HOSTILE},
    }
    pairs = [
        {"kind": "pair", "a": a, "b": b, "pair": pair, "b_second": bool(pair % 2)}
        | {"first_ns": 10**6 + pair, "second_ns": 10**6 + 9 * pair}
        for a, b in (("off", ARMS[1]), ("off", "off"))
        for pair in range(8)
    ]
    (folder / "run" / "steps").mkdir(parents=True)
    (folder / "run" / "run.json").write_text(json.dumps(manifest))
    (folder / "run" / "steps" / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in pairs))
    for arm in ARMS:
        write(folder / "run" / arm / "rank0.json.gz", *events(HOSTILE))
    return folder / "run"


def damaged_run(folder: Path) -> Path:
    path = run(folder)
    (path / "steps" / "rank0.jsonl").write_text(json.dumps({"kind": HOSTILE}) + "\n")
    return path


def damaged_manifest(folder: Path) -> Path:
    path = run(folder)
    (path / "run.json").write_text(json.dumps({"version": HOSTILE}))
    return path


def missing(folder: Path) -> Path:
    return folder / HOSTILE


def dump(folder: Path) -> Path:
    entry = {"process_group": [HOSTILE, HOSTILE], "collective_seq_id": 1, "profiling_name": HOSTILE, "state": HOSTILE}
    entry |= {"input_dtypes": [HOSTILE], "frames": [{"name": HOSTILE, "filename": HOSTILE, "line": 1}]}
    for rank in range(2):
        group = {HOSTILE: {"ranks": HOSTILE}}
        content = {"entries": [entry] * (1 + rank), "pg_config": group, "waits_at": HOSTILE}
        (folder / f"rank{rank}.flight.json").write_text(json.dumps(content))
    return folder


CHANNELS: tuple[Channel, ...] = (
    *(names, device, file_name, folder_name, keys, damage, unreadable_rank, run, damaged_run, damaged_manifest),
    *(missing, dump),
)

COMMANDS: dict[str, tuple[str, ...]] = {
    "show": ("show", "PATH"),
    "show --full": ("show", "PATH", "--full"),
    "show --json": ("show", "PATH", "--json"),
    "show --markdown": ("show", "PATH", "--markdown"),
    "show --html": ("show", "PATH", "--html", "page.html"),
    "show --only": ("show", "PATH", "--only", HOSTILE),
    "show --strict": ("show", "PATH", "--strict", "--memory", "1GB"),
    "diff": ("diff", "PATH"),
    "diff A B": ("diff", "PATH", "PATH", "--full"),
    "diff --json": ("diff", "PATH", "PATH", "--json"),
    "diff --markdown": ("diff", "PATH", "PATH", "--markdown", "--full"),
    "diff --html": ("diff", "PATH", "PATH", "--html", "page.html"),
    "diff --threshold": ("diff", "PATH", "--threshold", HOSTILE),
    "diff --fail-on": ("diff", "PATH", "--fail-on", HOSTILE),
    "check": ("check", "PATH", "--rule", "kernels == 0", "--rule", "dtoh == 0", "--rule", f"dtoh in {HOSTILE} == 0"),
    "check identical": ("check", "PATH", "--rule", "collectives identical across ranks"),
    "check --rule": ("check", "PATH", "--rule", f"{HOSTILE} == 0"),
    "check --rules": ("check", "PATH", "--rules", "rules.toml"),
    "query": ("query", "PATH", f'select name as "{HOSTILE}", * from events'),
    "query --json": ("query", "PATH", f'select name as "{HOSTILE}", * from events', "--json"),
    "query, an error": ("query", "PATH", f'select "{HOSTILE}"'),
    "export": ("export", "PATH", "--to", "perfetto"),
    "export A B": ("export", "PATH", "PATH", "--to", "perfetto", "-o", f"{HOSTILE}.pftrace"),
    "export --to": ("export", "PATH", "--to", HOSTILE),
    "open": ("open", "PATH", "--no-browser"),
    "open A B": ("open", "PATH", "PATH", "--no-browser"),
    "check --json": ("check", "PATH", "--rule", "kernels == 0", "--rule", f"dtoh in {HOSTILE} == 0", "--json"),
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on any free port that nobody asks."""
    start = TraceServer.__init__
    monkeypatch.setattr(TraceServer, "__init__", lambda self, trace, port, ui=None: start(self, trace, port=0, ui=ui))
    monkeypatch.setattr(open_command, "_wait", lambda server: None)
    monkeypatch.setenv("SSH_CONNECTION", "")


def harmless(outcome: Outcome) -> bool:
    """Whether nothing was printed raw; an escape of JSON is as good as none."""
    return not RAW.search(outcome.out) and not RAW.search(outcome.err) and "\t" not in outcome.err


EVERY = 3
"""One of so many pairs of a command and a channel is quick; these have each command and each channel."""


@pytest.mark.parametrize(
    ("command", "channel"),
    [
        pytest.param(
            words,
            channel,
            id=f"{channel.__name__}-{command}",
            marks=[] if (first + second) % EVERY == 0 else [pytest.mark.slow],
        )
        for first, (command, words) in enumerate(COMMANDS.items())
        for second, channel in enumerate(CHANNELS)
    ],
)
def test_no_command_prints_what_controls_a_terminal(command: tuple[str, ...], channel: Channel, tmp_path: Path) -> None:
    path = str(channel(tmp_path))
    (tmp_path / "rules.toml").write_text(f"rules = [{json.dumps(HOSTILE.replace(chr(127), ''))}]")
    with chdir(tmp_path):
        outcome = traceq(*(path if word == "PATH" else word for word in command))
    assert harmless(outcome)
    assert outcome.code in (0, 1, 2, 3)
    if outcome.code:
        assert outcome.err
    page = tmp_path / "page.html"
    assert not RAW.search(page.read_text("utf-8") if page.is_file() else "")
    if command[-1] == "--json" and outcome.code == 0:
        whole = outcome.out.splitlines() if command[0] == "query" else [outcome.out]
        assert all(map(json.loads, whole))


def test_recipes_and_recordings_print_what_a_recipe_says_escaped(tmp_path: Path) -> None:
    recipe = tmp_path / "hostile.py"
    recipe.write_text(f"{HOSTILE!r}\nraise RuntimeError({HOSTILE!r})\n")
    for words in (["recipes", recipe], ["record", "--recipe", recipe], ["record", "--recipe", HOSTILE], [HOSTILE]):
        outcome = traceq(*words)
        assert outcome.code in (1, 2)
        assert harmless(outcome)
        assert outcome.err


def test_the_exception_of_a_rank_is_printed_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, *_: object, **options: object) -> None:
        raise RecordingFailed(f"rank 0: RuntimeError: {HOSTILE}\nthe end of its log: {HOSTILE}")

    monkeypatch.setattr("traceq.engines.analyze_path.sheet_of", fail)
    outcome = traceq("show", "x")
    assert not RAW.search(outcome.err)
    assert outcome.err.count("\n") == 2


def test_an_unexpected_fault_is_printed_escaped() -> None:
    outcome = shell(f"""{sys.executable} -c 'import traceq.cli as c
class Odd(Exception): __str__ = lambda self: chr(27) + "[2J"
def fail(words): raise Odd
c._run = fail
c.main()'""")
    assert "Traceback" in outcome.err
    assert not RAW.search(outcome.err)


def test_json_holds_the_text_as_it_is(tmp_path: Path) -> None:
    shown = json.loads(traceq("show", names(tmp_path), "--json").out)
    assert HOSTILE in {row["name"] for row in shown["kernels"]}
