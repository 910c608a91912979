"""`traceq mcp`: eight questions of show, diff, query and check as tools of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def command(
    urls: Annotated[bool, typer.Option("--urls", help="Read URLs, too; else local files only.")] = False,
) -> None:
    """Serve an agent: a server of the Model Context Protocol on stdin and stdout, which an agent's program starts.

    Its tools read what you can read; nothing is written or executed, and nothing leaves this machine. Connecting, the
    tools and their answers: docs/agents.md. Needs the package mcp (pip install mcp).
    """
    from traceq.entry_points import import_or_fault
    from traceq.errors import TraceqError

    if not hasattr(import_or_fault("mcp"), "Client"):
        raise TraceqError("the package mcp is older than 2: pip install 'mcp>=2'")
    from traceq.agent_tools.server import serve

    if sys.stdin.isatty():
        typer.echo("waiting for a client on stdin; clients start this command themselves: docs/agents.md", err=True)
    os.environ["TRACEQ_CACHE"] = "0"
    serve(urls=urls)
