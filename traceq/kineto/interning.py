"""Dicts that number unseen keys: `map` looks values up in them without calling a Python function per event."""

from __future__ import annotations

from traceq.kineto.categories import BY_NAME, categorise

NAME_DECIDES = -1
"""Code of a category whose meaning depends on the event's name."""


class Interner(dict[str, int]):
    """Text -> its number, counted in order of first occurrence."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


class InternedNumbers(dict[int, int]):
    """Number -> the string id of its digits: process and thread ids are mostly numbers, and few."""

    def __init__(self, strings: Interner) -> None:
        super().__init__()
        self._strings = strings

    def __missing__(self, number: int) -> int:
        self[number] = text = self._strings[str(number)]
        return text


class InternedStrings(dict[bytes, int]):
    """JSON text -> the string id of that text; -1 for an absent value and for null."""

    def __init__(self, strings: Interner) -> None:
        super().__init__({b"": -1, b"null": -1})
        self._strings = strings

    def __missing__(self, text: bytes) -> int:
        self[text] = number = self._strings[text.decode("utf-8", "replace")]
        return number


class CategoryCodes(dict[str, int]):
    """Category string -> its code; NAME_DECIDES where the event's name is needed, too."""

    def __missing__(self, cat: str) -> int:
        self[cat] = code = NAME_DECIDES if cat in BY_NAME else int(categorise(cat, ""))
        return code
