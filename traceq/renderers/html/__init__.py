"""Render a sheet or a diff as one HTML file that opens offline: findings, charts and sortable tables."""

from __future__ import annotations

from traceq.renderers.html.diff import diffs_to_html
from traceq.renderers.html.show import sheet_to_html

__all__ = ["diffs_to_html", "sheet_to_html"]
