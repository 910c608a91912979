"""The options of commands that read many ranks."""

from __future__ import annotations

import typer

__all__ = ["CLUSTER", "MEMORY"]

MEMORY = typer.Option(metavar="SIZE", help="What reading many ranks may take, like 8GB; else half of what is free.")
CLUSTER = typer.Option(metavar="ADDRESS", help="Read the ranks on this dask cluster, like tcp://host:8786.")
