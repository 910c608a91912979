"""No pattern takes quadratic time: names of a trace may be long, and made to hurt."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from paths import ROOT

import traceq

PARTS = (
    *("0", "a", "_", " ", "<", "(", "[", "{", ":", "/", ".", ",", "-", "\n", "\\", "'"),
    *("a_", "a<", "a(", "a/", "1a", "a ", "0,", "0.", "a::", "(a)", "<a>", "a.py(1): ", "void a<", "_Z", "N1a"),
    *("kernel", "all_", "Backward", "float ", "a::b<c>, "),
)
"""What long names are made of here, besides the literals of a pattern."""
LENGTH, MUCH, LITTLE_S = 1500, 4, 2e-4
"""Characters; of MUCH times as many a quadratic pattern takes MUCH * MUCH times as long. None that is linear takes so
many seconds for LENGTH."""


@dataclass(frozen=True)
class Use:
    """A pattern and what is done with it: a search, unless the module says otherwise in the same place."""

    pattern: str | bytes
    flags: int
    method: str = "search"

    def seconds(self, text: str) -> float:
        """CPU time of this thread: on a busy machine the wall time is that of others."""
        subject: Any = text.encode("latin-1", "replace") if isinstance(self.pattern, bytes) else text
        run: Callable[..., Any] = getattr(_compiled(self), self.method)
        start = time.thread_time()
        run(subject)
        return time.thread_time() - start

    def literals(self) -> set[str]:
        """What the pattern has verbatim: `kernel` of `\\w*kernel$`."""
        source = self.pattern.decode("latin-1") if isinstance(self.pattern, bytes) else self.pattern
        parsed = import_module("re._parser").parse(source, self.flags & ~re.UNICODE)
        return set(_literals(parsed))


@cache
def _compiled(use: Use) -> re.Pattern[Any]:
    return re.compile(use.pattern, use.flags & ~re.UNICODE if isinstance(use.pattern, bytes) else use.flags)


def _literals(tree: Any) -> Iterator[str]:
    run = ""
    for kind, value in tree:
        if str(kind) == "LITERAL":
            run += chr(value)
            continue
        yield from [run] if run else []
        run = ""
        yield from _literals_within(value)
    yield from [run] if run else []


def _literals_within(value: Any) -> Iterator[str]:
    if hasattr(value, "getwidth"):
        yield from _literals(value)
    elif isinstance(value, tuple | list):
        for each in value:
            if isinstance(each, tuple) and len(each) == 2 and str(each[0]) == "LITERAL":  # of a set of characters
                yield chr(each[1])
            else:
                yield from _literals_within(each)


def modules() -> Iterator[Any]:
    for module in walk_packages(traceq.__path__, "traceq."):
        if ".recipes" not in module.name and not module.name.endswith("__main__"):
            try:
                yield import_module(module.name)
            except ImportError:  # of a package that is not installed
                continue


def held(value: object) -> Iterator[Use]:
    if isinstance(value, re.Pattern):
        yield Use(value.pattern, value.flags)
    elif isinstance(value, dict):
        yield from held((*value.keys(), *value.values()))
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from held(each)


def written_in_functions() -> Iterator[Use]:
    """Patterns of calls such as `re.sub(r"...", ...)`."""
    for path in sorted((ROOT / "traceq").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                pattern = node.args[0]
                if ast.unparse(node.func.value) == "re" and isinstance(pattern, ast.Constant):
                    anchored = node.func.attr in ("match", "fullmatch")
                    yield Use(pattern.value, 0, node.func.attr if anchored else "search")


def every_pattern() -> set[Use]:
    """All of the product: those that its modules hold, and those written in its functions."""
    variables = [value for module in modules() for name, value in vars(module).items() if name[:2] != "__"]
    return {*held(variables), *written_in_functions()}


def texts(use: Use) -> Iterator[tuple[str, str, str]]:
    """(start, part, end) of texts: a part over and over, also behind a literal, and with an end that fits nothing."""
    verbatim = sorted(use.literals())
    for part in {*PARTS, *verbatim, *(literal + more for literal in verbatim for more in " a")}:
        yield from (("", part, ""), ("", part, "!\n"))
    for start in (*verbatim, "a"):
        yield from ((start, part, "!\n") for part in (*" a0", *(verbatim if len(verbatim) < 10 else ())))


def takes_quadratic_time(use: Use, start: str, part: str, end: str) -> bool:
    """Whether that is so each of three times: what interrupts a thread is in its time, too."""
    short, long = (start + part * (length // len(part)) + end for length in (LENGTH, MUCH * LENGTH))
    bar = MUCH * MUCH / 2
    return all((took_s := use.seconds(short)) > LITTLE_S and use.seconds(long) > bar * took_s for _ in range(3))


@pytest.mark.slow
def test_no_pattern_takes_quadratic_time() -> None:
    uses = every_pattern()
    assert len(uses) > 300
    slow = {use.pattern: text for use in uses for text in texts(use) if takes_quadratic_time(use, *text)}
    assert slow == {}


def test_a_quadratic_pattern_is_found() -> None:
    for pattern in (r"^x\s*\s*y", rb'"name"[^}]*"args"'):
        use = Use(pattern, 0)
        assert any(takes_quadratic_time(use, *text) for text in texts(use)), pattern
