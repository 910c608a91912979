"""The page around all HTML output: one file with its style, its scripts and a content security policy."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from traceq import __version__
from traceq.escaping import visible_lines
from traceq.renderers.html.markup import element

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
