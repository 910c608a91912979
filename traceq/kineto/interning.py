"""Dicts that number what they have not seen: `map` looks values up in them without a call of ours per event."""

from __future__ import annotations

from traceq.kineto.categories import BY_NAME, categorise

__all__ = ["NAME_DECIDES", "Digits", "InternedStrings", "Interner", "Kinds"]

NAME_DECIDES = -1
"""Stands for the code of a category whose meaning depends on the event's name."""


class Interner(dict[str, int]):
    """Text -> its number in order of first sight."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


class Digits(dict[int, int]):
    """Number -> the string id of its digits: ids of processes and threads are numbers most often, and few."""

    def __init__(self, strings: Interner) -> None:
        super().__init__()
        self._strings = strings

    def __missing__(self, number: int) -> int:
        self[number] = text = self._strings[str(number)]
        return text


class InternedStrings(dict[bytes, int]):
    """JSON text -> its string id, as it is written; -1 where it says nothing."""

    def __init__(self, strings: Interner) -> None:
        super().__init__({b"": -1, b"null": -1})
        self._strings = strings

    def __missing__(self, text: bytes) -> int:
        self[text] = number = self._strings[text.decode("utf-8", "replace")]
        return number


class Kinds(dict[str, int]):
    """Category string -> its code; NAME_DECIDES where the name of the event decides."""

    def __missing__(self, cat: str) -> int:
        self[cat] = code = NAME_DECIDES if cat in BY_NAME else int(categorise(cat, ""))
        return code
