"""How results present themselves: `str` is the text of a terminal, `_repr_html_` the HTML of a notebook.

Results are below the renderers and do not import them; they are looked up by name when something is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from traceq.escaping import visible_lines
from traceq.frozen import frozen

if TYPE_CHECKING:
    from traceq.model import Run, Trace


@frozen
class RenderOptions:
    """What a renderer can be told besides the result.

    `width`: columns to which text is wrapped, None for those of the terminal. `full`: tables of durations are shown
    even if these are no evidence. For a renderer that draws a step: `traces` returns the run with the traces of some of
    its ranks, `sides` the traces of A and B that a Diff explains; None where no run is at hand.
    """

    width: int | None = None
    traces: Callable[[Sequence[int]], Run] | None = None
    full: bool = False
    sides: Callable[[Any], tuple[Trace, Trace]] | None = None


def to_text(kind: str, result: object) -> str:
    """Return what a terminal shows of a result, without colours; `kind` is sheet, report, table or diffs.

    Printed, a sheet or a comparison is what `traceq show` and `traceq diff` write, to the last space.
    """
    text = _rendered("text", kind, result).removesuffix("\n")
    if kind in ("sheet", "diffs"):
        return text
    return "\n".join(line.rstrip() for line in text.split("\n"))


def to_html(kind: str, result: object) -> str:
    """Return what a notebook shows of a result."""
    return _rendered("notebook", kind, result)


def _rendered(renderer: str, kind: str, result: object) -> str:
    file = StringIO()
    import_module("traceq.renderers").find_renderer(renderer, kind)(result, file, RenderOptions())
    return visible_lines(file.getvalue())
