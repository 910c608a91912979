"""How much a screen, a page or a file shows at most."""

from __future__ import annotations

SCREEN_LINES = 40  # lines of what a terminal shows at once
LEAD_WIDTH = 30  # columns of a lead from which it stands beside its gain
NARROW_WIDTH = 100  # columns of a terminal below which a matrix of arms has fewer
COMMAND_LINES = 2  # lines that stay on the screen for the command that was typed and the next prompt
FINDINGS = 8  # findings that are listed; --json has all
PIPED_WIDTH = 140  # columns where there is no terminal, enough for every table
GAP = 2  # spaces between columns
LINE_WIDTH = 27  # characters that stay of a `file.py:LINE`, from its end, before columns are hidden
NOTEBOOK_ROWS = 100  # rows of a table in a notebook
PAGE_ROWS = 500  # rows of a table in a page
NAME_LENGTH = 160  # characters of a name in a page; names of kernels have up to thousands
ARMS_NAMED = 6  # arms that a sentence names
TIMELINES = 4  # timelines of a page, one for each of the arms that differ most
ARM_POINTS = 2000  # steps that are drawn of an arm
OPS_DRAWN = 200  # ops that are drawn under their roofs
ROOF_MARGIN = 2.0  # factor by which roofs go beyond the ops
RANK_COLUMNS = 128  # columns of ranks or hosts in a chart
STEP_POINTS = 4000  # steps of all ranks that are drawn
FRAMES = 2_000  # longest frames of a page; what others of one parent take together is one frame
RUNS_DRAWN = 200  # latest runs that are drawn: each is a point in every chart
CHART_ROOM = 0.08  # part of a value that a chart spans at least, so that noise of a percent looks like noise
STREAM_ROWS = 3  # rows for work that overlaps on one stream, as programmatic launches do
SPANS = 60_000  # spans of a page, together: packed, 5 to 8 characters each
CAUSES_LINKED = 8  # causes that a file shows
PLACE_MARGIN = 3  # margin on either side of a sync, as a multiple of its duration
