"""Files that are no Kineto trace, named for what they are, with the tool that reads them."""

from __future__ import annotations

import re

import numpy as np

from traceq.model import Category, Events

__all__ = ["browser_trace", "describe_file"]

_BY_NAME = (
    (re.compile(r"\.(nsys-rep|qdrep|qdstrm)$"), "a report of Nsight Systems; `nsys stats` and nsys-ui read it"),
    (re.compile(r"\.(ncu-rep|ncu-repz)$"), "a report of Nsight Compute; ncu-ui reads it"),
)
_BY_START = (
    (b"SQLite format 3", "an SQLite database, as `nsys export` writes; `nsys stats` and sqlite3 read it"),
    (b"\x80", "a pickle; of torch.cuda.memory._dump_snapshot, `traceq show` and `traceq diff` read it"),
    (b"<", "a page of HTML or XML"),
)
_BROWSER = re.compile(r"^(devtools|disabled-by-default-|blink|v8|cc$|viz|loading|toplevel|__metadata)")
_SHOWN = 3


def describe_file(name: str, start: bytes) -> str:
    """Return what a file is by its name or its first bytes, and what reads it; "" if that is not known."""
    by_name = next((text for pattern, text in _BY_NAME if pattern.search(name)), "")
    return by_name or next((text for magic, text in _BY_START if start.startswith(magic)), "")


def browser_trace(events: Events) -> str:
    """Return what a browser's trace is, of which no event is one of PyTorch's profiler; "" for others."""
    if len(events) == 0 or (events.category != Category.OTHER).any():
        return ""
    numbers, counts = np.unique(events.cat, return_counts=True)
    names = [events.strings[number] for number in numbers[np.argsort(-counts)].tolist()]
    listed = ", ".join(f"`{name}`" for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    if not any(map(_BROWSER.match, names)):
        return ""
    return f"a trace of a browser, with {len(events):,} events in the categories {listed}"
