"""HTML elements and tables; all text is escaped, since a kernel may be called `</script>`."""

from __future__ import annotations

from html import escape

from traceq.report import Table
from traceq.units import Unit, format_value

__all__ = ["element", "figure", "table"]

_MOST_ROWS = 500


def element(tag: str, *inside: str, **attributes: str) -> str:
    """Return `<tag attribute="...">inside</tag>`; `inside` is markup. `of` means `class`, and `_` in a name `-`."""
    written = "".join(
        f' {"class" if name == "of" else name.replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value
    )
    return f"<{tag}{written}>{''.join(inside)}</{tag}>"


def figure(svg: str, caption: str) -> str:
    """Return a figure with a caption."""
    return element("figure", svg, element("figcaption", escape(caption)))


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
