"""How large the answers to an agent may get, and how long they may take."""

from __future__ import annotations

MOST_TOKENS = 2000  # tokens of an answer
MOST_ROWS = 400  # rows of a table that are looked at; far more than fit
LONGEST_TEXT = 400  # characters of a text
LONGER_COMMAND = 10  # a command may be so many times as long: cut off it would be another one
LONGEST_CELL = 160  # characters of a cell
MOST_RESULTS = 8  # results that are kept for the next questions
MOST_FILES = 20_000  # files of a folder whose times are compared
MOST_SECONDS = 60  # of a query
MOST_CELLS = 300  # cells of complete tables up to which an answer holds them; beyond it has those for people
MOST_LINES = 20  # lines of source that an answer lists
LONGEST_ERROR = 1000  # characters of an error
MOST_CALL_S = 300.0  # seconds of one call: to read a thousand ranks takes four minutes, and clients give up before
MOST_SHARE = 2  # a call may take one in so many bytes of the machine's memory: its user works on it, too
