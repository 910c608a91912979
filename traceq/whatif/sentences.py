"""Every sentence of `traceq whatif`: names of changes, what they hold fixed, why one cannot be made, the answers.

Fields are texts and numbers; `{option}` is the option of the command that asks for a change.
"""

from __future__ import annotations

WORDS = {
    "syncs": "without its syncs",
    "sync": "without the sync at {line}",
    "loader": "without its waits for the data loader",
    "balanced_loader": "with its data loaders balanced",
    "removed_time": "without the time of {pattern}",
    "scaled": "with {pattern} at {factor:g} times its time",
    "hidden_comm": "with its collectives hidden",
    "bandwidth": "with {factor:g} times the bandwidth between ranks",
    "straggler": "without its straggler",
    "ranks": "if no rank waited for rank{s} {ranks}",
    "no_launch_latency": "if launches took no time",
}
"""The change, as the beginning of "... the step would take"."""

HELD = {
    "syncs": "a copy without its wait costs the host what a launch does, and nothing on the device waits instead",
    "loader": "the workers of the data loader keep up",
    "balanced_loader": "the data loaders of all ranks together do as much work",
    "scaled": "what else runs at the same time keeps its speed",
    "hidden_comm": "computation does not become slower where a transfer runs beside it",
    "bandwidth": "of a transfer, at most the shortest of its kind is latency",
    "straggler": "the other ranks are as they were, and no other one becomes late",
    "no_launch_latency": (
        "waits, ops that compute on the CPU and what a process does once stay; launching the graph takes no time"
    ),
}
"""What a change holds fixed."""

ALL_ELSE = "All else takes as long as it did, and waits for the same."
OF_ALLOCATIONS = "{held}. {num:,} of these waits {are} ({names}), not made at all"
HOST_BETWEEN_CALLS = "{held}; what the host does between its calls is not recorded, and may be for no launch"
UNREAD_RANKS = "{num} of {world_size} ranks were not read, and waits for them count as transfers of collectives"

REFUSALS = {
    "no_syncs": "--without syncs: the host waits for the device nowhere in these steps",
    "no_sync_at": "--without sync:{line}: no sync of a step is there; the syncs: {syncs}",
    "no_loader_wait": "{option}: no wait for a data loader is recorded",
    "no_common_wait": "{option}: no step in which every rank waits for its data loader once is recorded",
    "no_such_name": "--scale {pattern}: nothing has such a name; the nearest: {nearest}",
    "no_collective": "{option}: no collective is recorded in these steps",
    "no_device": "{option}: without a device nothing is launched",
    "needs_all_ranks": "{option}: there is one rank, {rank}; give all ranks",
    "one_rank_on_host": "{option}: without a device, collectives are replayed only on all ranks together",
    "one_rank_waits": ("{option}: one rank does not show how long its collectives wait for others; give all ranks"),
    "no_such_rank": "{option}: no such rank{s}; the ranks: {ranks}",
    "these_are_all": "{option}: these are all ranks; a straggler needs others",
    "no_straggler": "{option}: no rank is a straggler: {why}; {option}=RANK asks about one",
    "needs_others": "{option}: there is one rank, {rank}; a straggler needs others",
}
"""Why there is nothing to change."""

NO_LINES = "none with a line (with_stack=True records them)"

NOT_REPLAYED = {
    "no_device_rows": "{path}: the device rows of {ranks} are missing, so what the host waits for is unknown",
    "some_device_rows": "{path}: only some ranks have device rows, so they cannot be replayed together",
    "not_concurrent": "{path}: the ranks were recorded one after the other; choose one with --ranks",
    "no_collective": "{path}: no collective of all ranks was recorded; choose one rank with --ranks",
    "some_marks": "{path}: only some ranks have step marks; choose one rank with --ranks",
    "no_common_step": "{path}: no step was counted on all ranks, in one order; choose one rank with --ranks",
    "clocks": "{path}: the ranks' clocks cannot be compared; choose one rank with --ranks",
    "circle": (
        "{path}: the recorded collectives wait for each other in a circle, so they are matched wrongly; "
        "choose one rank with --ranks"
    ),
}
"""Why ranks cannot be replayed together."""

UNREPLAYED = "{where}{share} of the step of {step} cannot be replayed, more than 5 %: {listed}{overlap}"
UNREPLAYED_PARTS = (
    "between launch, streams and work, of which no cause is recorded",
    "in which unrecorded work runs",
    "in messages and collectives that are not matched between ranks",
)

NO_CHANGE = "{change} {step} would take as long as it does, {now}."
NOTHING_GAINS = (
    "Without its waits (syncs, data loader, stragglers, transfers, launches) the step would not be 1 % shorter, beyond "
    "the noise. Its own work may take too long: traceq show says where, --scale NAME=FACTOR what less of it saves."
)
MAY_BE_NOTHING = ("it may change nothing", "no change that is larger than the noise")
PART_UNREPLAYED = "; {unreplayed} of it cannot be replayed"
NOISE = "again: two standard errors of the difference to as many others with the change"
TOO_FEW = "too few for their noise"
OTHER_STEP = (
    "A step begins on the last rank and ends with its last work, on the host or the device: {now}. "
    "In `show` each rank is measured by itself: {shown}."
)
