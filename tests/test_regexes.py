"""Regular expressions are compiled by their first use, and all of them can be."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain
from pkgutil import walk_packages

import pytest

import traceq
from traceq.regexes import _Uncompiled, regex


def test_it_does_what_a_compiled_one_does() -> None:
    name, compiled = regex(r"(?P<kind>all)_reduce", re.IGNORECASE), re.compile(r"(?P<kind>all)_reduce", re.IGNORECASE)
    for text in ("ALL_REDUCE", "an all_reduce", "gather", ""):
        for method in ("search", "match", "fullmatch", "findall", "split"):
            value, standard = getattr(name, method)(text), getattr(compiled, method)(text)
            assert (value and str(value)) == (standard and str(standard))
    assert (name.pattern, name.flags, name.groupindex) == (compiled.pattern, compiled.flags, compiled.groupindex)
    assert regex(rb"\d+").sub(b"#", b"step 12") == b"step #"


def test_it_is_compiled_once_and_not_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_now = re.compile
    monkeypatch.setattr(re, "compile", lambda text, flags: compiled.append(text) or compile_now(text, flags))
    name = regex("a+")
    assert compiled == []
    assert [bool(name.search(text)) for text in ("a", "b")] == [True, False]
    assert compiled == ["a+"]


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_it_can_be_copied(twin: Callable[[re.Pattern[str]], re.Pattern[str]]) -> None:
    assert twin(regex("a+", re.IGNORECASE)).fullmatch("AA")


def test_every_one_can_be_compiled() -> None:
    num = 0
    for info in walk_packages(traceq.__path__, "traceq."):
        with suppress(ImportError):  # what an installation without torch lacks
            for each in _parts(vars(import_module(info.name))):
                re.compile(*each._source)
                num += 1
    assert num > 250


def _parts(value: object) -> Iterator[_Uncompiled]:
    if isinstance(value, _Uncompiled):
        yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(map(_parts, value.values()))
    elif isinstance(value, tuple | list):
        yield from chain.from_iterable(map(_parts, value))
