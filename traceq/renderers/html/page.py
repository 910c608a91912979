"""The page around all HTML output: one file with its style, its scripts and a content security policy."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from traceq.escaping import visible_lines

__all__ = ["page"]

_SCRIPTS = ("d3.min.js", "drawing.js", "charts.js", "tables.js", "page.js")
"""In the order in which they run; the last one calls the others."""


def page(title: str, body: Iterable[str]) -> str:
    """Return a complete page that loads nothing; its policy allows no style and no script but those of traceq."""
    style, script = _asset("page.css"), "\n".join(map(_asset, _SCRIPTS))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    inside = "\n".join([*body, f"<script>{script}</script>"])
    return visible_lines(f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{inside}\n</body></html>\n')


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
