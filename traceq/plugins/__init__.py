"""What other packages can add to traceq, each under an entry-point group: protocols of their objects.

| group | protocol | used by |
|---|---|---|
| `traceq.analyses` | `Analysis` | `traceq show`, `traceq.analyze` |
| `traceq.recipes` | `RecipeModule` | `traceq record --recipe NAME`, `traceq recipes` |
| `traceq.toggles` | `ToggleModule` | `traceq record --toggle @NAME=A,B -- COMMAND` |
| `traceq.renderers` | `Renderer` | `traceq show --to NAME`, `traceq diff --to NAME` |
| `traceq.renderers` | `Exporter` | `traceq export --to NAME` |
"""

from __future__ import annotations

from traceq.analysis.registry import Analysis
from traceq.display import RenderOptions
from traceq.recorder.spec.catalogue import RecipeModule
from traceq.recorder.toggles.toggle import Toggle, ToggleModule
from traceq.renderers import Exporter, Renderer

__all__ = ["Analysis", "Exporter", "RecipeModule", "RenderOptions", "Renderer", "Toggle", "ToggleModule"]
