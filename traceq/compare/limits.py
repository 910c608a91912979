"""Limits of what a comparison says, each with its unit, its reason and what it rests on; one meaning, one limit.

Limits of how much is listed stand where the list is made.
"""

from __future__ import annotations

# of all differences

SAME_TIME = 0.005  # % of a step: half of the last digit that is said of a step
NAMED = 0.05  # part of a delta, or of a step: what is less is next to nothing beside what is named
REST = 0.1  # part of a delta, or of a step: what is left over is said from there on, as it may hide a cause
PHASE = 0.2  # part of a delta: a phase or a loader with less of it is not where to look first
LARGE = 0.3  # part of a delta: one place with as much of it is a place where it shows
ALL = 1.005  # part of a delta: beyond it others have the opposite sign; the rest is rounding
CANCELLED = 1.5  # multiple of a delta: other changes cancel so much that the delta is not about it
CHANCE = 1.5  # events in the traced steps: a single event may be in a window by chance
STRAGGLES = 1.02  # own time over that of the other ranks: ranks of equal work scatter by a percent

# of work

SAME = 0.01  # change of a ratio: work is counted: what is less is rounding
SCATTER = 0.02  # change of a ratio: speeds and clocks scatter
COMMON = 0.95  # part of the time of ops: nearly all ops change by one factor, or there is none
COUNTED = 2  # ops: one op may be padded

# of what differs besides

DRAWN = 0.002  # part of the ops of a step: two runs of one code differ by what they draw at random
INSIDE = 12  # ops inside of one: an op that one side alone runs has at most so many inside
UNCOUNTED = 25.0  # % of the time: a change may be in steps that do not count
EVEN = 1.5  # longest over shortest process: processes of the same code that were disturbed
LAYOUT = 2.0  # % of a step: what identical models in one process differ by (benchmarks/layout.py)
BY_GRAPHS = 0.75  # replays in a step: a side that replays less runs by launches
FEW_LAUNCHES = 0.75  # part of the launches of the other side: graphs that replace fewer gain nothing
BUSY_DEVICE = 0.9  # part of a step: a device that computes as long is not kept waiting by its host
