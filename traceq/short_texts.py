"""Texts cut to a width such that different ones look different."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

LONGEST_NAME = 4096
"""Characters of a name, as many as the longest of CUTLASS have: pages, patterns and tables take room and time by it."""

_IN_WORD, _BEFORE_WORD = re.compile(r"[A-Za-z0-9]"), re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]*$")


def capped(name: str) -> str:
    """Return a name of at most LONGEST_NAME characters, the end of a longer one replaced by its hash."""
    if len(name) <= LONGEST_NAME:
        return name
    from hashlib import blake2b  # OpenSSL takes 2 ms to load, which few names need

    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{name[: LONGEST_NAME - len(digest)]}{digest}"


def cut_end(text: str, longest: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def cut_middle(text: str, longest: int) -> str:
    """Return a text of about so many characters at most, with its beginning and its end."""
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-(longest // 2) :]}"


def cut_apart(texts: Sequence[str], longest: int, cut: Callable[[str, int], str] = cut_end) -> list[str]:
    """Return texts of at most so many characters; those that `cut` makes alike lose what is before their difference."""
    by_look: dict[str, set[str]] = {}
    for text in texts:
        by_look.setdefault(cut(text, longest), set()).add(text)
    places = {look: place_of_difference(alike) for look, alike in by_look.items() if len(alike) > 1}
    return [cut_before(text, places.get(cut(text, longest), 0), longest, cut) for text in texts]


def place_of_difference(texts: Collection[str]) -> int:
    """Return the number of characters before the first difference of texts, or before the word that it is in."""
    first, last = min(texts), max(texts)
    differs = (place for place, (x, y) in enumerate(zip(first, last, strict=False)) if x != y)
    place = next(differs, len(first))
    is_in_word = any(_IN_WORD.match(text, place) for text in (first, last))
    return len(_BEFORE_WORD.sub("", first[:place])) if is_in_word else place


def cut_before(text: str, place: int, longest: int, cut: Callable[[str, int], str] = cut_end) -> str:
    """Return a text of at most so many characters, without what is before a place but for its beginning."""
    if len(text) <= longest or not place:
        return cut(text, longest)
    head = max((longest - 1) // 3, longest - 1 - (len(text) - place))
    return f"{text[:head]}…{cut(text[place:], longest - 1 - head)}"


def without_module(line: str) -> str:
    """Return `train.py:14` for `train.py:14 <module>`: code outside of all functions."""
    return line.removesuffix(" <module>")
