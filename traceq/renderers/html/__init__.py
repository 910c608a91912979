"""One HTML file that opens anywhere, offline: what is found in words, pictures and tables that sort."""

from __future__ import annotations

from traceq.renderers.html.diff import diffs_to_html
from traceq.renderers.html.sheet import sheet_to_html

__all__ = ["diffs_to_html", "sheet_to_html"]
