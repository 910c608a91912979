"""Limits of what is said of a history, each with its unit and its reason; counts are plain numbers."""

from __future__ import annotations

MIN_MAGNITUDE = 0.02  # part of what was before, and of the step: with 1 % there are 11.5 false alarms, not 4.5
"""In 1,000 runs whose noise is autocorrelated (`benchmarks/history.py`)."""
MAX_P = 1e-4  # chance of a change point by the t-test: with 1e-3 there are 7 false alarms in those runs
FEWEST_RUNS = 3
"""Runs from which on there are changes: of two, one may be any."""
LEAST_RUNS = 2
"""Runs that a change of a measure with noise has to last: one slow run is a busy machine."""
WIDE = 3.0  # times the median interval: a run whose interval is wider had a busy machine
ALONE = 5.0  # times the usual difference of neighbours: a run so far from both, which agree, is left out
FEWEST_VALUES = 4
"""Processes, or blocks of steps, from which there is an interval, as in a comparison."""
NOISE = 3.0  # standard deviations of runs: two differ by less by chance: 2.1 of the difference of two
NUM_NOISE, FEWEST_NOISE = 16, 4
"""Runs whose spread is the noise of a branch: the latest up to the baseline, and how many there have to be."""
MOST_EXPLAINED = 8
"""Latest events whose causes are told: each takes a diff of two runs."""
