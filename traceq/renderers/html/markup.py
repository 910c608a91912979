"""HTML elements, figures and tables; all text is escaped, since a kernel may be called `</script>`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from traceq.escaping import visible
from traceq.report import Table
from traceq.units import Unit, format_value

__all__ = ["Json", "element", "figure", "picture", "table"]

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
"""Data of a figure."""

_MOST_ROWS = 500
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def element(tag: str, *inside: str, **attributes: str) -> str:
    """Return `<tag attribute="...">inside</tag>`; `inside` is markup. `of` means `class`, and `_` in a name `-`."""
    written = "".join(
        f' {"class" if name == "of" else name.replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value
    )
    return f"<{tag}{written}>{''.join(inside)}</{tag}>"


def figure(kind: str, data: Mapping[str, Json], title: str, summary: str = "", *, key: str = "") -> str:
    """Return a figure that the script `charts.KIND` draws, with a caption: its title and what it shows in numbers.

    `data` is without anything that the page's text would not show: all of it passes `visible`.
    """
    text = json.dumps(_visible_texts({**data, "name": title}), separators=(",", ":"))
    for character, escaped in _IN_SCRIPT.items():
        text = text.replace(character, escaped)
    caption = element("strong", escape(title)) + (f" {escape(summary)}" if summary else "")
    return element(
        "figure",
        element("figcaption", caption),
        element("script", text, type="application/json"),
        data_chart=kind,
        data_key=key,
    )


def picture(svg: str, caption: str) -> str:
    """Return a drawn figure with a caption."""
    return element("figure", svg, element("figcaption", escape(caption)))


def _visible_texts(value: Json) -> Json:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(key): _visible_texts(member) for key, member in value.items()}
    return list(map(_visible_texts, value)) if isinstance(value, Sequence) else value


def table(content: Table) -> str:
    """Return a table that sorts by a click on a heading; a long one is cut to its first rows."""
    headings = [
        element("th", element("button", escape(column.heading or column.key)), of=_kind(column.unit), scope="col")
        for column in content.columns
    ]
    rows = [
        element("tr", *(_cell(value, column.unit) for value, column in zip(row, content.columns, strict=True)))
        for row in content.rows[:_MOST_ROWS]
    ]
    markup = element(
        "table",
        element("caption", escape(content.title)),
        element("thead", element("tr", *headings)),
        element("tbody", *rows),
        data_key=content.key,
    )
    num_left_out = len(content.rows) - _MOST_ROWS
    notes = [content.note, f"{num_left_out:,} more rows in --json." if num_left_out > 0 else ""]
    return element("div", markup, of="wide") + "".join(element("p", escape(note), of="note") for note in notes if note)


def _cell(value: str | int | float | bool | None, unit: Unit) -> str:
    number = "" if value is None or isinstance(value, str) else str(float(value))
    return element("td", escape(format_value(value, unit)), of=_kind(unit), data_value=number)


def _kind(unit: Unit) -> str:
    return "text" if unit is Unit.TEXT else "number"
