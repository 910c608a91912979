"""One file, one command: parse options, call the library, hand the result to a renderer."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SUMMARIES"]

SUMMARIES: Mapping[str, str] = {
    "cache": "Show the cache of large folders' ranks",
    "check": "Check that rules hold on every rank",
    "crosscheck": "Compare with HTA and Perfetto",
    "diff": "Say what a change costs a step",
    "export": "Write a run for other programs",
    "mcp": "Serve an agent",
    "open": "Show a run in the Perfetto UI, zoomed to the slowest step or costliest sync",
    "query": "Ask a run in SQL (DuckDB)",
    "recipes": "List the recipes, or show one",
    "record": "Record a training job as it is, or a recipe",
    "show": "Show what a trace holds",
    "whatif": "Say what a step would be without its waits, or with faster parts",
}
"""Name of each command, which is that of its module, and how its docstring begins: listed without importing any."""
