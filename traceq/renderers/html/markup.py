"""HTML whose every text is escaped: a kernel may be called `</script>`."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from traceq.report import Table
from traceq.units import Unit, format_value

__all__ = ["element", "figure", "page", "table"]

_MOST_ROWS = 500


def element(tag: str, *inside: str, **attributes: str) -> str:
    """`<tag attribute="...">inside</tag>`; `inside` is markup. `of` stands for `class`, `_` in a name for `-`."""
    told = "".join(
        f' {"class" if name == "of" else name.replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value
    )
    return f"<{tag}{told}>{''.join(inside)}</{tag}>"


def figure(svg: str, caption: str) -> str:
    """A picture with a line below it."""
    return element("figure", svg, element("figcaption", escape(caption)))


def page(title: str, body: Iterable[str]) -> str:
    """A whole page that loads nothing, and whose policy lets nothing run but its own sorting."""
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "sort.js"))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    inside = "\n".join([*body, f"<script>{script}</script>"])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{inside}\n</body></html>\n'


def table(found: Table) -> str:
    """A table that sorts at a click on a heading; of a long one the first rows."""
    headings = [
        element("th", element("button", escape(column.title or column.key)), of=_kind(column.unit), scope="col")
        for column in found.columns
    ]
    rows = [
        element("tr", *(_cell(value, column.unit) for value, column in zip(row, found.columns, strict=True)))
        for row in found.rows[:_MOST_ROWS]
    ]
    drawn = element(
        "table",
        element("caption", escape(found.title)),
        element("thead", element("tr", *headings)),
        element("tbody", *rows),
        data_key=found.key,
    )
    left_out = len(found.rows) - _MOST_ROWS
    notes = [found.note, f"{left_out:,} more rows in --json." if left_out > 0 else ""]
    return element("div", drawn, of="wide") + "".join(element("p", escape(note), of="note") for note in notes if note)


def _cell(value: str | int | float | bool | None, unit: Unit) -> str:
    number = "" if value is None or isinstance(value, str) else str(float(value))
    return element("td", escape(format_value(value, unit)), of=_kind(unit), data_value=number)


def _kind(unit: Unit) -> str:
    return "text" if unit is Unit.TEXT else "number"


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
