"""Calls of tools that take too much, for the process that answers them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from traceq.errors import TraceqError

__all__ = ["answering"]


def answering() -> Callable[[str, Mapping[str, Any]], dict[str, object]]:
    """What answers `sleep`, `fill`, `die`, `fail` and `refuse` by doing so, and all others with the process."""
    return _answer


def _answer(name: str, arguments: Mapping[str, Any]) -> dict[str, object]:
    match name:
        case "sleep":
            time.sleep(60)
        case "fill":
            bytearray(arguments["size_bytes"])
        case "die":
            os._exit(3)
        case "fail":
            raise ZeroDivisionError("of zero")
        case "refuse":
            raise TraceqError("no")
    return {"process": os.getpid()}
