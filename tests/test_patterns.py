"""No pattern takes quadratic time: names of a trace may be long, and made to hurt."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

import traceq

PARTS = (
    *("0", "a", "_", " ", "<", "(", "[", "{", ":", "/", ".", ",", "-", "\n", "\\", "'"),
    *(
        "a_",
        "a<",
        "a(",
        "a/",
        "1a",
        "a ",
        "0,",
        "0.",
        "a::",
        "(a)",
        "<a>",
        "a.py(1): ",
        "void a<",
        "at::native::",
        "_Z",
        "N1a",
    ),
    *("nccl", "memcpy", "kernel", "gemm", "all_", "fwd", "Backward", "AllReduce", "aten::", "float ", "a::b<c>, "),
)
"""What long names are made of here."""
LENGTH, MUCH, LITTLE_S = 3000, 8, 1e-3
"""Characters; of MUCH times as many a quadratic pattern takes MUCH * MUCH times as long. None that is linear takes so
many seconds for LENGTH."""


def modules() -> Iterator[Any]:
    for module in walk_packages(traceq.__path__, "traceq."):
        if ".recipes" not in module.name and not module.name.endswith("__main__"):
            try:
                yield import_module(module.name)
            except ImportError:  # of a package that is not installed
                continue


def patterns(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, dict):
        yield from patterns((*value.keys(), *value.values()))
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from patterns(each)


ALL = sorted(
    {
        pattern
        for module in modules()
        for name, value in vars(module).items()
        if not name.startswith("__")
        for pattern in patterns(value)
    },
    key=lambda pattern: pattern.pattern,
)


def seconds(pattern: re.Pattern[str], text: str) -> float:
    """CPU time of this thread: on a busy machine the wall time is that of others."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        pattern.search(text)
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("end", ["", "!\n"])
def test_no_pattern_takes_quadratic_time(end: str) -> None:
    slow = []
    for pattern in ALL:
        for part in PARTS:
            short, long = (part * (length // len(part)) + end for length in (LENGTH, MUCH * LENGTH))
            took_s = seconds(pattern, short)
            if took_s > LITTLE_S and seconds(pattern, long) > MUCH * MUCH / 2 * took_s:
                slow.append((pattern.pattern, part))
    assert slow == []
    assert len(ALL) > 250
