"""The recorded traces of each strategy, with one call more or less."""

from __future__ import annotations

import gzip
import json

from paths import FIXTURES

__all__ = ["with_one_call"]


def with_one_call(name: str, *, op_name: str, times: int) -> bytes:
    """A recorded trace in which the first op of a name and the row of gloo that ran it are there `times` times."""
    document = json.loads(gzip.decompress((FIXTURES / "strategies" / f"{name}.json.gz").read_bytes()))
    events = document["traceEvents"]
    ops = sorted((e for e in events if e.get("name", "").startswith("c10d::")), key=lambda e: e["ts"])
    rows = sorted((e for e in events if e.get("name", "").startswith("gloo:")), key=lambda e: e["ts"])
    index = next(n for n, e in enumerate(ops) if op_name in e["name"])
    for kind in (ops, rows):
        events.remove(kind[index])
        events += [{**kind[index], "ts": kind[index]["ts"] + n / 1000} for n in range(times)]
    return json.dumps(document).encode()
