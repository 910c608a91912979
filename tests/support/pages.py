"""Reads the HTML pages of `--html`: their elements, and the data of their figures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from typing import Any

__all__ = ["Elements", "Figure", "figures", "labels"]


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside of script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclass(frozen=True)
class Figure:
    """A chart of a page: the script that draws it, its caption, and its data."""

    kind: str
    caption: str
    data: dict[str, Any]


_FIGURE = re.compile(r'<figure data-chart="(\w+)"[^>]*><figcaption>(.*?)</figcaption><script[^>]*>(.*?)</script>', re.S)


def figures(page: str, kind: str = "") -> list[Figure]:
    """Return the figures of a page in their order, those of one kind if it is given."""
    return [
        Figure(drawn, unescape(re.sub("<.*?>", "", caption)), json.loads(data))
        for drawn, caption, data in _FIGURE.findall(page)
        if kind in ("", drawn)
    ]


def labels(value: Any) -> list[str]:
    """Return what marks tell when one points at them: every `label` in a figure's data."""
    if isinstance(value, dict):
        of_this = [value["label"]] if "label" in value else []
        return [*of_this, *(text for member in value.values() for text in labels(member))]
    return [text for member in value for text in labels(member)] if isinstance(value, list) else []
