"""Numbers of `traceq improve`."""

from __future__ import annotations

SURVEY_STEPS = 32
TRIAL_SHARE = 2 / 3
"""Part of the time that is left for trials; the rest is for the fresh start."""
LEAST_S = 15.0
"""Seconds that each of them has in any case."""
LEAST_PAIRS = 16
"""Pairs of each arm for which there has to be time: those of the first look. What is decided then leaves its time."""
OTHER_STEPS = 26
"""Steps of an arm besides its pairs: it warms up, and is traced."""
