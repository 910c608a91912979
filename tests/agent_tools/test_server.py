"""The server in its own process: what it offers, faults that do not end it, clients that come, go and are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

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


@pytest.mark.slow
def test_two_clients_have_a_server_each(connection: Connection) -> None:
    with connected(ROOT / "fixtures") as other:
        assert other.answer("read", path="example/job")["num_findings"] == 4
        assert connection.answer("read", path=JOB)["num_findings"] == 4


@pytest.mark.slow
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
    started_by_any = set[int]()
    for started in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since
            started_by_any |= set(map(int, started.read_text().split()))
    return started_by_any


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server without a client: what is written to it, and its end, are the test's."""
    program = server(folder)
    process = subprocess.Popen(
        [program.command, *program.args],
        env={**os.environ, **(program.env or {})},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def send(process: subprocess.Popen[bytes], method: str, **more: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, **more}).encode() + b"\n")
    process.stdin.flush()


def greet(process: subprocess.Popen[bytes]) -> None:
    """Begin as clients of the protocol do, and wait for the answer."""
    client = {"name": "test", "version": "1"}
    send(
        process, "initialize", id=1, params={"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    )
    assert process.stdout is not None
    assert b"serverInfo" in process.stdout.readline()
    send(process, "notifications/initialized")


@pytest.mark.slow
def test_it_ends_with_its_client_and_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        out, err = process.communicate(timeout=patient(20))
    assert (process.returncode, out, err) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_it_ends_at_once_though_a_query_still_runs() -> None:
    with started(ROOT) as process:
        greet(process)
        send(process, "tools/call", id=2, params={"name": "query", "arguments": {"path": JOB, "sql": ENDLESS}})
        _, err = process.communicate(timeout=patient(20))
    assert (process.returncode, err) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        greet(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=patient(20)) == -signal.SIGINT


@pytest.mark.slow
def test_garbage_on_stdin_does_not_end_it(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write(b"garbage\n\xff\xfe\n{}\n[]\n")
        greet(process)
        _, err = process.communicate(timeout=patient(20))
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    outcome = traceq("mcp")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert outcome.err.endswith(": pip install mcp\n")


def test_an_older_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", ModuleType("mcp"))
    outcome = traceq("mcp")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert outcome.err.endswith("older than 2: pip install 'mcp>=2'\n")
