"""One file, one command: parse options, call the library, hand the result to a renderer."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SUMMARIES"]

SUMMARIES: Mapping[str, str] = {
    "show": "Show what a trace holds",
    "record": "Record a training job as it is, or a recipe",
    "improve": "Try what would make a training job faster",
    "watch": "Run a training job and say when it becomes slower, on which rank and why",
    "capture": "Trace some steps of a run that is watched, on all of its ranks at the same step",
    "diff": "Say what a change costs a step",
    "whatif": "Say what a step would be without its waits, or with faster parts",
    "check": "Check that rules hold on every rank",
    "history": "Keep what runs measured, and say where that changed",
    "open": "Show a run in the Perfetto UI, zoomed to the slowest step or costliest sync",
    "query": "Ask a run in SQL (DuckDB)",
    "export": "Write a run for other programs",
    "recipes": "List the recipes, or show one",
    "mcp": "Serve an agent",
    "crosscheck": "Compare with HTA and Perfetto",
    "cache": "Show the cache of large folders' ranks",
}
"""Name of each command, in order of use, and how its docstring begins: listed without importing any."""
