"""User, password and query of a URL open it, and are in nothing that is printed or written."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from paths import FIXTURES
from terminal import traceq

import traceq as library
from traceq.commands import open as open_command
from traceq.errors import TraceqError
from traceq.locations import Remote, as_printed, place, without_secrets
from traceq.viewer import TraceServer

pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")

SECRETS = ("Alice", "Pa55word", "T0ken")
QUERY = f"sig={SECRETS[2]}1&Expires={SECRETS[2]}2"


COMMANDS = (
    *(
        "PATH",
        "show PATH",
        "show PATH --full",
        "show PATH --json",
        "show PATH --markdown",
        "show PATH --html page.html",
    ),
    *("show PATH PATH --only syncs", "show PATH --strict --ranks 7", "diff PATH", "diff PATH PATH --full"),
    *("diff PATH PATH --json", "diff PATH PATH --markdown", "diff PATH PATH --html page.html"),
    *("check PATH --rules rules.toml", "check PATH PATH --rule kernels==0", "query PATH steps", "whatif PATH"),
    *("query PATH 'from steps' --json", "export PATH --to perfetto", "export PATH PATH --to perfetto -o x.pftrace.gz"),
    *("export PATH --to parquet", "open PATH --no-browser", "open PATH PATH --no-browser", "crosscheck PATH"),
)


class Served(SimpleHTTPRequestHandler):
    """A folder for those who know the password, of which no line is logged."""

    def send_head(self) -> Any:
        return super().send_head() if self.headers.get("Authorization") else self.send_error(401)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a folder with a job, a recorded run, a damaged trace, and what is no trace."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(FIXTURES / "example" / "job", folder / "job")
    shutil.copytree(FIXTURES / "outlier_ab", folder / "run")
    packed = gzip.compress((folder / "job" / "rank0.json").read_bytes())
    (folder / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "keys.json").write_text(json.dumps({"x": 1}))
    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(folder)))
    thread = Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://{SECRETS[0]}:{SECRETS[1]}@127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()
    thread.join()


WHERE = ("job/rank0.json", "job", "run", "cut.json.gz", "keys.json", "missing.json", "nonsense")


def url_of(server: str, where: str) -> str:
    if where == "job":
        return f"{server}/{where}"  # the files of a folder have none of its query
    return f"nonsense://{server[7:]}/x?{QUERY}" if where == "nonsense" else f"{server}/{where}?{QUERY}"


def everything(folder: Path) -> bytes:
    """Names and contents of all files; of packed ones the content, too."""
    contents = [os.fsencode(path) + path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    packed = [gzip.decompress(path.read_bytes()) for path in folder.rglob("*.gz")]
    return b"\n".join([*contents, *packed])


@pytest.mark.parametrize(
    ("command", "where"),
    [
        pytest.param(command, where, marks=[] if (i + j) % 12 == 0 else [pytest.mark.slow])
        for i, command in enumerate(COMMANDS)
        for j, where in enumerate(WHERE)
    ],
)
def test_no_output_of_a_command_has_a_secret(
    command: str, where: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = TraceServer.__init__
    monkeypatch.setattr(TraceServer, "__init__", lambda self, trace, port, ui=None: start(self, trace, port=0, ui=ui))
    monkeypatch.setattr(open_command, "_wait", lambda server: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rules.toml").write_text('rules = ["syncs == 0"]')
    with chdir(tmp_path):
        done = traceq(*(url_of(server, where) if word == "PATH" else word for word in shlex.split(command)))
    assert done.code in (0, 1, 2, 3)
    printed = os.fsencode(done.out) + os.fsencode(done.err) + everything(tmp_path)
    assert [secret for secret in SECRETS if secret.encode() in printed] == []
    if where.startswith(("job", "run")) and command.startswith("show PATH --"):
        assert done.code == 0 or "--strict" in command


@pytest.mark.parametrize(
    "where", [where if where != "run" else pytest.param(where, marks=pytest.mark.slow) for where in WHERE]
)
def test_nothing_that_the_library_or_an_agent_gets_has_a_secret(where: str, server: str) -> None:
    pytest.importorskip("mcp", reason="the mcp package is not installed")
    from traceq.agent_tools.readings import Readings
    from traceq.agent_tools.server import call_tool

    url, given = url_of(server, where), []
    for ask in (
        lambda: library.analyze(url),
        lambda: library.diff(url, url),
        lambda: library.diff(url),
        lambda: library.read(url),
        lambda: call_tool(Readings(urls=True), "read", {"path": url}),
        lambda: call_tool(Readings(urls=True), "compare", {"a": url, "b": url}),
        lambda: call_tool(Readings(), "read", {"path": url}),
    ):
        try:
            result = ask()
            given += [str(result), repr(result), str(getattr(result, "_repr_html_", str)())]
        except TraceqError as fault:
            given += [str(fault), repr(fault)]
    assert [text for text in given if any(secret in text for secret in SECRETS)] == []


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("s3://KEY:a@b@bucket/a@b.json", "s3://xxxxx@bucket/a@b.json"),
        ("https://h/a.json?b=1=2&c&d=#e", "https://h/a.json?b=xxxxx&xxxxx&d=xxxxx#xxxxx"),
        ("zip://a.json::https://u@h/b.zip?k=v", "zip://a.json::https://xxxxx@h/b.zip?k=xxxxx"),
        ("hf://datasets/a/b@main/c.json", "hf://datasets/a/b@main/c.json"),
        ("fixtures/a?b=c.json", "fixtures/a?b=c.json"),
    ],
)
def test_a_url_is_printed_without_its_secrets_and_found_again(url: str, printed: str) -> None:
    assert as_printed(url) == as_printed(as_printed(url)) == printed
    assert without_secrets(f"cannot open '{url}' now") in (f"cannot open '{printed}' now", f"cannot open '{url}' now")


def test_two_versions_of_a_file_stay_two() -> None:
    first, second = (f"http://127.0.0.1/a.json?versionId={number}" for number in (1, 2))
    assert [place(as_printed(url)) for url in (first, second, first)] == list(map(Remote, (first, second, first)))
    assert str(Remote(first)) != str(Remote(second))
    assert "versionId=1" not in repr(Remote(first))
