"""Limits of claims, each with its unit, its reason and what it rests on; those with one meaning are one."""

from __future__ import annotations

# of all claims

NOTABLE = 0.01  # part of a step: a gain below it is lost in the scatter of most jobs' steps
SHOWN = 0.005  # part of a step: a row of less tells nobody anything
NOTHING = 0.001  # part of a step, or of a time: less is nothing (grain of the replay)
NEARLY_ALL = 0.9  # part of a whole: what is missing changes nothing
UNLIKE = 2.0  # longest over shortest step: beyond it the mean resembles no step

# of what takes time in a step

LARGE = 0.1  # part of a step: a remedy gains only a part of it
MODERATE = 0.05  # part of a step: less is hardly worth a change of the program
FEW = 0.02  # part of a step: the cause is known and can be removed
FAR_MORE = 1.5  # saved together over saved by one: below it, one sync is the better advice

# of the host, the data loader, and time that is lost

MOST = 0.5  # part of a time: it is more than all else together
MUCH = 0.25  # part of a whole: a remedy for less changes little
LIMITING = 0.85  # part of most steps: nothing else gains much
SHORT_GAP = 1_000_000  # ns: in a longer gap the host does more than launching
BUSY_CORES = 0.2  # part of the cores: other processes that keep fewer busy make no thread wait
WORKER_CORES = 0.1  # cores: workers that are busy for less take no core from the step

# of communication and ranks

UNEVEN_STAGES = 1.15  # slowest rank over the mean: moving layers gains more than another schedule
LOST = 0.05  # part of a trace: beyond it the trace may lack calls that were issued
