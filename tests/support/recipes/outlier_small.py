"""Three arms of the recipe `outlier_ab`, of a model whose step takes a few milliseconds."""

from __future__ import annotations

from dataclasses import replace

from traceq.recipes.outlier_ab import recipe as base
from traceq.recipes.workload.model import SIZES, Tower

__all__ = ["recipe"]

SIZES["tiny"] = replace(SIZES["tiny"], **dict.fromkeys(("vision", "language", "action"), Tower(32, 1, 4, 64)))

recipe = replace(base, arms=tuple(arm for arm in base.arms if arm.name in ("off", "on", "absent")))
