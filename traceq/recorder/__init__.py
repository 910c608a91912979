"""Record an experiment on every rank. With recipes/ the only package that imports torch.

A recipe is a file with a docstring and a module-level `recipe`:

>>> from traceq.recorder import Arm, Context, Recipe
>>> recipe = Recipe(question=..., arms=(Arm("off", ...), Arm("on", ...)), phases=(...), parameters=..., build=...)
"""

from __future__ import annotations

from traceq.model import Arm, Fact
from traceq.recorder.spec.recipe import Context, Outcome, Recipe, Skip, Step, next_batch
from traceq.units import Unit

__all__ = ["Arm", "Context", "Fact", "Outcome", "Recipe", "Skip", "Step", "Unit", "next_batch"]
