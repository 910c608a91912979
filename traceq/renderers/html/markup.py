"""HTML elements, figures, their axes, tables, and the page around them: one file that loads nothing.

All text is escaped, since a kernel may be called `</script>`.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain, repeat

from traceq import __version__
from traceq.escaping import visible_lines
from traceq.model import Caveat
from traceq.renderers.limits import PAGE_ROWS
from traceq.report import Cell, Column, Table
from traceq.units import Unit, format_value

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))

_Axis = dict[str, float | str]
"""`unit`, the title of an axis, and `per`, the size of the unit: of ms, with values in ns, 1e6."""

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
"""Data of a figure."""

_UNIT = re.compile(r"(?<=\d) (?=(?:[num]?s|[KMGT]iB|B|[GT]B/s|TFLOP/s|/s|%)(?!\w))")
"""The space between a number and its unit."""
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

    `data` is without anything that the page's text would not show: all of it passes `visible_lines`.
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


def _visible_texts(value: Json) -> Json:
    if isinstance(value, str):
        return visible_lines(value)
    if isinstance(value, Mapping):
        return {visible_lines(key): _visible_texts(member) for key, member in value.items()}
    return list(map(_visible_texts, value)) if isinstance(value, Sequence) else value


def paragraphs(lines: Iterable[str], of: str = "") -> str:
    """Return a paragraph per line."""
    return "".join(element("p", escape(line), of=of) for line in lines)


def caveats_list(caveats: Iterable[Caveat]) -> str:
    """Return doubts as a list; "" without any."""
    items = [element("li", escape(caveat.text)) for caveat in caveats]
    return element("ul", *items, of="caveats") if items else ""


def folded(summary: str, *inside: str, of: str = "", is_open: bool = False) -> str:
    """Return what opens by a click on its summary, which is markup as what is `inside`."""
    return element("details", element("summary", summary), *inside, of=of, open="open" if is_open else "")


def numbers(figures: Iterable[tuple[str, str, str, str]]) -> str:
    """Return the numbers that matter: (what, number, its detail, "costs" or "saves" for its colour) each."""
    each = [
        element(
            "div",
            element("dt", escape(what)),
            element("dd", escape(number), of=f"figure {colour}".strip()),
            element("dd", escape(detail), of="detail"),
        )
        for what, number, detail, colour in figures
    ]
    return element("dl", *each, of="numbers") if each else ""


def table(content: Table, places: Sequence[str] = ()) -> str:
    """Return a table that sorts, filters and copies itself; a long one is cut to its first rows.

    `places`: values of `data-goto` for the first rows, whose first cell then leads into the timeline; "" for none.
    """
    headings = [
        element("th", element("button", escape(column.heading or column.key)), of=_kind(column.unit), scope="col")
        for column in content.columns
    ]
    rows = [
        element(
            "tr",
            *(
                _cell(value, column, place if number == 0 else "")
                for number, (value, column) in enumerate(zip(row, content.columns, strict=True))
            ),
            of="total" if row and row[0] == "total" else "",
        )
        for row, place in zip(content.rows[:PAGE_ROWS], chain(places, repeat("")), strict=False)
    ]
    title = content.title or content.key.replace("_", " ")
    drawn = element(
        "table",
        element("thead", element("tr", *headings)),
        element("tbody", *rows),
        aria_label=title,
        data_key=content.key,
    )
    num_left_out = len(content.rows) - PAGE_ROWS
    notes = [content.note, f"{num_left_out:,} more rows in --json." if num_left_out > 0 else ""]
    tools = element("div", element("span", escape(title), of="title"), of="tools")
    shown = element("div", drawn, of="wide") if content.rows or not content.note else ""
    return element("div", tools, shown, paragraphs(filter(None, notes), "note"), of="table", data_title=title)


def unbroken(text: str) -> str:
    """Return a text in which a number and its unit stand on one line."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def linked(text: str, place: str) -> str:
    """Return a text that leads to a place of the timeline, the value of `data-goto`; without one the text."""
    return element("span", escape(text), data_goto=place) if place else escape(text)


def _cell(value: Cell, column: Column, place: str) -> str:
    text, kind = linked(format_value(value, column.unit), place), _kind(column.unit)
    if value is None or isinstance(value, str):
        return element("td", text, of=kind)
    colour = _direction(value) if column.key == "delta_ns" else ""
    return element("td", text, of=f"{kind} {colour}".strip(), data_value=str(float(value)))


def _kind(unit: Unit) -> str:
    return "text" if unit is Unit.TEXT else "number"


def _direction(delta: float) -> str:
    return "costs" if delta > 0 else "saves" if delta < 0 else ""


def time_axis(values_ns: Iterable[float], what: str = "") -> _Axis:
    """Return the axis of times in ns, in s, ms or us; `what` follows the unit, as in `ms per step`."""
    return _axis(values_ns, _TIMES, "ns", what)


def bytes_axis(values: Iterable[float], what: str = "") -> _Axis:
    """Return the axis of sizes in bytes, in GiB, MiB or KiB."""
    return _axis(values, _SIZES, "bytes", what)


def _axis(values: Iterable[float], units: Iterable[tuple[float, str]], least: str, what: str) -> _Axis:
    most = max(map(abs, values), default=0)
    per, unit = next((each for each in units if most >= each[0]), (1.0, least))
    return {"per": per, "unit": f"{unit} {what}".strip()}


_SCRIPTS = (
    "d3.min.js",
    "drawing.js",
    "charts.js",
    "timeline_data.js",
    "timeline_paint.js",
    "timeline.js",
    "flame.js",
    "tables.js",
    "page.js",
)
"""In the order in which they run; the last one calls the others."""

_STYLES = ("page.css", "timeline.css")


def page(title: str, body: Iterable[str], aside: str = "") -> str:
    """Return a complete page that loads nothing; its policy allows no style and no script but those of traceq.

    `body` and `aside`, the contents beside it, are markup.
    """
    style, script = ("\n".join(map(_asset, names)) for names in (_STYLES, _SCRIPTS))
    allowed = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"  # no default holds for the last two
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    without_scripts = element("noscript", element("p", "Charts need JavaScript; the tables hold the same numbers."))
    made = element("footer", f"traceq {escape(__version__)}. Everything on this page is in this file.")
    shown = element("div", aside, element("main", without_scripts, *body), made, of="page")
    inside = f"{shown}\n<script>{script}</script>"
    return visible_lines(f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{inside}\n</body></html>\n')


def contents(sections: Iterable[tuple[str, str]]) -> str:
    """Return links to sections, (id, title) each."""
    links = [element("li", element("a", escape(title), href=f"#{name}")) for name, title in sections]
    listed = element("details", element("summary", "On this page"), element("ol", *links))
    return element("nav", listed, of="contents", aria_label="Sections")


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
