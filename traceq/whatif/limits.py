"""Limits of what is predicted, each with its unit and its reason; counts and ns are plain numbers."""

from __future__ import annotations

MOST_UNREPLAYED = 0.05  # part of a step: nothing is predicted where more of it cannot be replayed
GRAIN = 0.005  # part of a step: ends of a range that are closer are one number
SAME_SAVING = 0.002  # part of a step: all syncs that save no more than those of one line are these
LEAST_STEPS = 3
"""Steps from which their scatter says something."""

# of the graph of ranks

LEAST_MEETING = 0.95  # part of the collectives: as many have to meet for clocks of one machine to be one
EARLY_NS = 50_000
"""A collective of which one part ends so long before the last rank starts it does not meet."""
LEAST_WAIT_NS = 20_000
"""The host waited for a collective if it computed nothing for so long before that ended."""
AT_ONCE_NS = 200_000
"""A collective that begins so soon after another one, and was issued before that ended, had to wait for it."""
