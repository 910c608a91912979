"""The server in its own process: what it offers, faults that do not end it, clients that come, go and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from patience import patient

pytest.importorskip("mcp", reason="the mcp package is not installed")

from mcp import MCPError
from mcp_client import Connection, connected, server
from terminal import traceq

from traceq.agent_tools.answer import num_tokens

JOB = "fixtures/example/job"
ENDLESS = "select count(*) from events a, events b, events c, events d, events e"


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with connected(ROOT) as connection:
        yield connection


def test_it_offers_eight_tools_that_only_read(connection: Connection) -> None:
    tools = connection.tools()
    assert len(tools) == 8
    for tool in tools:
        assert tool.annotations.read_only_hint
        assert tool.input_schema["additionalProperties"] is False
        assert tool.input_schema["required"]
        assert "erdict" in tool.description
    assert sum(num_tokens(tool.model_dump_json(exclude_none=True)) for tool in tools) < 3000


def test_a_fault_is_an_answer_and_the_server_goes_on(connection: Connection) -> None:
    for arguments in ({"path": "nowhere"}, {"pth": JOB}, {"path": JOB, "analysis": "x"}):
        result = connection.result("findings", **arguments)
        assert result.is_error
        assert len(result.content) == 1
    assert connection.result("no_such_tool", path=JOB).is_error
    assert connection.answer("findings", path=JOB)["verdict"] == "found"


def test_two_clients_have_a_server_each(connection: Connection) -> None:
    with connected(ROOT / "fixtures") as other:
        assert other.answer("read", path="example/job")["num_findings"] == 4
        assert connection.answer("read", path=JOB)["num_findings"] == 4


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="/proc tells the server's process")
def test_a_server_that_is_killed_is_an_error_of_its_client_alone() -> None:
    before = children()
    with connected(ROOT) as connection, connected(ROOT) as other:
        first, second = sorted(children() - before)
        assert connection.answer("read", path=JOB)["verdict"] == "readable"
        threading.Timer(0.5, os.kill, (first, signal.SIGKILL)).start()
        with pytest.raises(MCPError, match="closed"):
            connection.result("query", path=JOB, sql=ENDLESS)
        assert other.answer("read", path=JOB)["verdict"] == "readable"
        assert second in children()


def children() -> set[int]:
    """The processes that this one started."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(word) for each in lists for word in each.read_text().split()}


def test_it_ends_when_its_client_is_gone(tmp_path: Path) -> None:
    program = server(tmp_path)
    done = subprocess.run(
        [program.command, *program.args],
        input=b"",
        capture_output=True,
        env={**os.environ, **(program.env or {})},
        cwd=tmp_path,
        check=False,
        timeout=patient(20),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_garbage_on_stdin_does_not_end_it(tmp_path: Path) -> None:
    program = server(tmp_path)
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = subprocess.run(
        [program.command, *program.args],
        input=b"garbage\n\xff\xfe\n{}\n[]\n" + ping,
        capture_output=True,
        env={**os.environ, **(program.env or {})},
        cwd=tmp_path,
        check=False,
        timeout=patient(20),
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    outcome = traceq("mcp")
    assert (outcome.code, outcome.err) == (2, "traceq: mcp is not installed: pip install mcp\n")
