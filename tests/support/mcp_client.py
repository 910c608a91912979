"""A client of `traceq mcp`: the SDK's own, over stdin and stdout of a server in its own process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from terminal import PROGRAM

__all__ = ["Connection", "connected"]


class Connection:
    """A connected client whose calls block."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal, self.client = portal, client

    def tools(self) -> list[Any]:
        return list(self._portal.call(self.client.list_tools).tools)

    def result(self, tool: str, **arguments: Any) -> Any:
        """What the server returns, errors included."""
        return self._portal.call(self.client.call_tool, tool, arguments)

    def answer(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool; its text is the same JSON as its structured content."""
        result = self.result(tool, **arguments)
        assert not result.is_error, result.content[0].text
        document: dict[str, Any] = json.loads(result.content[0].text)
        assert document == result.structured_content
        return document


def server(cwd: Path, *options: str) -> StdioServerParameters:
    """How a client starts the server; it passes on few variables of its environment, as clients do."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    program = f"import sys; sys.argv[1:] = {['mcp', *options]!r}; {PROGRAM}"
    return StdioServerParameters(command=sys.executable, args=["-c", program], env=environment, cwd=cwd)


@contextmanager
def connected(cwd: Path, *options: str) -> Iterator[Connection]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server(cwd, *options))) as client:
        yield Connection(portal, client)
