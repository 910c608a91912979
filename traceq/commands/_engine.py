"""What reads the ranks: `--cluster`, else processes of this machine within `--memory`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from traceq.engines.engine import Engine, Start
from traceq.errors import UsageFault

__all__ = ["parse_memory", "shown_ranks", "starter"]

_SHARE = 0.5
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = 1.024


def parse_memory(text: str) -> int:
    """`8GB`, `500MiB` or `2g` in bytes. Raises UsageFault."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if found is None or not float(found[1]):
        raise UsageFault(f"--memory {text}: expected a size, like 8GB")
    power = "kmgt".find(found[2]) + 1 if found[2] and found[3] else 0
    return int(float(found[1]) * _UNITS[found[2]] * _BINARY**power)


def starter(memory: str | None, cluster: str | None) -> Start:
    """What starts the engine, when there are many ranks to read."""
    if cluster is not None:
        from traceq.engines.cluster import Cluster

        return lambda: Cluster(cluster)
    budget = parse_memory(memory) if memory is not None else None

    def pool() -> AbstractContextManager[Engine]:
        from traceq.engines.memory_budget import free_bytes
        from traceq.engines.pool import Pool

        return Pool(budget or int(_SHARE * free_bytes()))

    return pool


@contextmanager
def shown_ranks() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, or a line each quarter, from the first rank that an engine has read."""
    from traceq.commands._progress import shown_progress

    with ExitStack() as stack:
        shown: list[Callable[[int, int], None]] = []

        def show(ended: int, planned: int) -> None:
            if not shown:
                shown.append(stack.enter_context(shown_progress("ranks", "starting processes"))[0])
            shown[0](ended, planned)

        yield show
