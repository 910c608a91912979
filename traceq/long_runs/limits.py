"""Limits of what is said of a run that is watched, each with its unit and its reason; counts are plain numbers."""

from __future__ import annotations

# when steps became slower (`benchmarks/watch.py` counts false alarms and delays)

STEPS_PER_BLOCK = 16
"""Steps whose median is one value: a pause in less than half of them does not move it."""
COARSE = 16
"""Values whose median is one of the slower look, which sees smaller and slower changes."""
BASELINE, FEWEST_BEFORE = 128, 24
"""Values before a change, at most and at least; older ones are another machine, another part of the data."""
MOST_AFTER, FEWEST_AFTER = 64, 8
"""Values after a change: at most, so that memory is fixed; at least, as a burst of other programs is none."""
LEAST_GROWTH = 0.02  # part of the step: drift within a baseline and its window is no onset
THRESHOLD = 5.0  # standard errors beyond the least growth: at most one false alarm in 100,000 steps
CLIP = 5.0  # standard deviations of a value: one value is worth no more: heavy tails
LEAST_SCALE = 0.003  # part of the step: noise of the clock and of a few values that happen to agree
PART_OF_GROWTH = 0.5  # part of what the step grew by: less is not the kind of what happened
MEMORY_VALUES = 13
"""Values of memory that grow from each to the next: by chance in one of 4,096, if each grew or fell alike."""
MEMORY_GROWTH = 0.01  # part of a rank's memory: caches fill by as much, and then stop
MEMORY_AGAIN = 2.0  # times the memory that was last said to grow: a leak goes on: again when it doubled
MOST_OF_JUMP = 0.5  # part of the growth of memory: one allocation of much is no leak

# what is kept: of a rank 38 MB of steps, and 9 MB of histograms a day

FILE_BYTES, KEPT_FILES = 4 << 20, 9
"""Size and number of the files of steps: an hour of steps of 5 ms, a week of steps of 1 s."""
SKETCH_S = 60.0
"""Time of a histogram of steps, s."""

EVERY_S = 1.0
"""Time after which ranks write their steps and look for a request, and the launcher reads what they wrote, s."""

# launchers of several nodes

FAN_IN = 32
"""Children of a launcher: 1,057 nodes are two levels below the first one, 33,825 three."""
LATE_S = 10.0
"""Time, s, after which a child that sends nothing is waited for no longer: each sends four times as often."""
FIRST_WITHIN_S = 60.0
"""Time, s, within which a child opens the store: it imports torch, from a disk that all may read at once."""

# what is traced

TIMED_STEPS = 16
"""Steps of a capture that are timed before some are traced, as `traceq diff` compares these."""
TRACED_STEPS, MAX_TRACED_STEPS = 3, 100
"""Steps of a capture that are profiled on each rank, and on demand at most."""
CAPTURES_A_DAY, CAPTURES_OF_A_KIND = 4, 2
"""Captures in 24 hours: each makes some steps slower, and takes megabytes for each rank."""
LEAD_S, LEAD_STEPS, TRIES = 3.0, 3, 3
"""Time, s, and steps at least until a capture: ranks look for it once a second. Twice as much with each further try."""
DYNOLOG_EVERY_S = 5.0
"""Time after which dynolog is asked again, s, as Kineto does."""
LATE_STEPS = 8
"""Steps behind the first one of a capture at which it has begun, or never will."""
