"""`traceq cache`: where summaries of ranks are kept, and how to remove them."""

from __future__ import annotations

from typing import Annotated

import typer

from traceq.engines.cache import MOST_BYTES, cache_entries, cache_folder, clear_cache
from traceq.units import Unit, format_value


def command(clear: Annotated[bool, typer.Option("--clear", help="Remove all of it.")] = False) -> None:
    """Show the cache of large folders' ranks: its folder, entries and size."""
    if clear:
        typer.echo(f"{cache_folder()}: {clear_cache()} entries removed")
        return
    sizes = [status.st_size for _, status in cache_entries()]
    used, most = (format_value(size, Unit.BYTES) for size in (sum(sizes), MOST_BYTES))
    typer.echo(f"{cache_folder()}: {len(sizes)} entries, {used} of {most}")
