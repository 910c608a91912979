"""Why no critical path passes through all ranks of a job, and why none of them is a straggler."""

from __future__ import annotations

NO_PATH = {
    "not_concurrent": "no critical path across ranks: the traces were recorded one after the other",
    "clocks": "no critical path across ranks: their clocks cannot be compared",
    "no_common_step": "no critical path across ranks: no step was counted on all of them",
    "too_many_ranks": "no critical path across ranks: it passes through {num} of {num_ranks}; the limit is {most}",
}

NO_STRAGGLER = {
    "on_time": "none is late throughout {num:,} unprofiled steps",
    "too_few": "the others wait for {ranks}, but the traced steps are too few to name a straggler",
    "irregular": "the others wait for {ranks}, but too irregularly",
    "no_waits": "none causes most of what the others wait, and at least 5 % of the step",
}
UNDECIDED = {
    "too_few": "{num:,} unprofiled steps are too few to tell if a rank is a straggler; record with --steps {least}",
    "no_steps": "no unprofiled step tells if a rank is a straggler; record with --steps {least}",
}
