"""Options that several commands have, and the engine that reads many ranks: `--cluster`, else within `--memory`."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path

import typer

from traceq.engines.rank_reader import Engine, Start
from traceq.errors import UsageFault
from traceq.frozen import frozen

PATH = typer.Argument(metavar="PATH", help="A trace, a folder of rank traces, a run, or RUN/ARM; or its URL.")
RANKS = typer.Option(help="Ranks to read, like 0,8,16-31.")
JSON = typer.Option("--json", help="Everything, as JSON.")
MARKDOWN = typer.Option("--markdown", help="Tables to paste into an issue.")
HTML = typer.Option(metavar="FILE", help="A page with pictures, in one file that opens offline.")
TO = typer.Option(metavar="NAME", help="Write text, json, markdown, html, or a plugin's form.")
WIDTH = typer.Option(min=40, help="Columns of text; else those of the terminal.")
MEMORY = typer.Option(metavar="SIZE", help="What reading many ranks may take, like 8GB; else half of what is free.")
CLUSTER = typer.Option(metavar="ADDRESS", help="Read the ranks on this dask cluster, like tcp://host:8786.")

_SHARE = 0.5
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = 1.024


@frozen
class Reading:
    """How the ranks of a folder are read: what starts the engine, and the bytes of traces that need none."""

    start: Start
    small: int
    is_elsewhere: bool = False

    def path(self, path: str) -> str:
        """Return the path as the engine's processes find it: absolute where they run on other machines."""
        from traceq.locations import place

        where = place(path)
        return str(where.absolute()) if self.is_elsewhere and isinstance(where, Path) else path


def engine_for(memory: str | None, cluster: str | None) -> Reading:
    """Return how many ranks are read, by the options --memory and --cluster. Raises UsageFault."""
    from traceq.engines.analyze_path import SMALL

    if memory is not None and cluster is not None:
        raise UsageFault("--memory and --cluster: the workers of a cluster have limits already")
    if cluster is not None:
        from traceq.engines.workers import Cluster

        return Reading(lambda: Cluster(cluster), -1, is_elsewhere=True)
    budget = parse_memory(memory) if memory is not None else None

    def pool() -> AbstractContextManager[Engine]:
        from traceq.engines.rank_reader import free_bytes
        from traceq.engines.workers import Pool

        return Pool(budget or int(_SHARE * free_bytes()))

    return Reading(pool, SMALL)


def parse_memory(text: str) -> int:
    """Return `8GB`, `500MiB` or `2g` in bytes. Raises UsageFault."""
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None or not float(match[1]):
        raise UsageFault(f"--memory {text}: expected a size, like 8GB")
    power = "kmgt".find(match[2]) + 1 if match[2] and match[3] else 0
    return int(float(match[1]) * _UNITS[match[2]] * _BINARY**power)
