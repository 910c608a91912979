"""A schedule of torch's pipelining played with durations: an independent way to the idle time of each rank."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
PASS = tuple[int, str, int]
"""Stage, kind of pass, microbatch."""


@dataclass(frozen=True)
class Recorded:
    """Lists of actions by rank, and of each step the begin and end of every action, ns.

    `joined`: the last action of each that is one with others (OVERLAP_F_B): messages leave when all are done.
    """

    order: list[list[PASS]]
    joined: dict[PASS, PASS]
    steps: list[dict[PASS, tuple[int, int]]]

    def source(self, action: PASS) -> PASS | None:
        """The pass of another stage whose result an action takes."""
        stage, kind, number = action
        before = {"F": [(stage - 1, "F", number)], "W": []}.get(kind, [(stage + 1, k, number) for k in "BI"])
        every = {each for actions in self.order for each in actions}
        return next((self.joined.get(each, each) for each in before if each in every), None)


def recorded(folder: Path) -> Recorded:
    """What a job of `pipeline_job` wrote of one schedule."""
    of_ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("actions*.txt"))]
    order, joined = [], {}
    for texts in of_ranks[0]["order"]:
        seen: Counter[int] = Counter()
        actions: list[PASS] = []
        for text in texts:
            parts = [in_turn(*match, seen) for match in ACTION.findall(text)]
            for part in parts:
                joined[part] = parts[-1]
            actions += parts
        order.append(actions)
    steps = [
        {
            (stage, kind, number): (begin, end)
            for rank in of_ranks
            for stage, kind, number, begin, end in rank["steps"][i]
        }
        for i in range(len(of_ranks[0]["steps"]))
    ]
    return Recorded(order, joined, steps)


def in_turn(stage: str, kind: str, number: str, seen: Counter[int]) -> PASS:
    """The action, with the forward passes of a stage counted from 0: torch's 1F1B begins with 1 on the last rank."""
    seen[int(stage)] += kind == "F"
    return int(stage), kind, seen[int(stage)] - 1 if kind == "F" else int(number)


def message_times(recording: Recorded, step: int) -> dict[PASS, int]:
    """How long each action begins after its rank was free and its input computed: the message on its way."""
    times, delay = recording.steps[step], {}
    for actions in recording.order:
        free = None
        for action in actions:
            source = recording.source(action)
            ready = [times[source][1]] if source else []
            ready += [] if free is None else [free]
            delay[action] = max(times[action][0] - max(ready), 0) if ready else 0
            free = times[action][1]
    return delay


def idle_shares(recording: Recorded) -> list[float]:
    """The schedule's list of actions played with measured durations: the idle part of each rank's time in all steps."""
    played = [play(recording, step) for step in range(len(recording.steps))]
    whole = sum(length for _, length in played)
    return [1 - sum(busy[rank] for busy, _ in played) / whole for rank in range(len(recording.order))]


def play(recording: Recorded, step: int) -> tuple[list[int], int]:
    """(ns in which each rank is busy, ns from the first action to the last) if each begins as soon as it can.

    An action begins when its rank is free and its input there.
    """
    order, delay = recording.order, message_times(recording, step)
    end: dict[PASS, int] = {}
    free, busy, position = ([0] * len(order) for _ in range(3))
    while sum(position) < sum(map(len, order)):
        before = sum(position)
        for rank, actions in enumerate(order):
            while position[rank] < len(actions):
                action = actions[position[rank]]
                source = recording.source(action)
                if source is not None and source not in end:
                    break
                begin, finish = recording.steps[step][action]
                busy[rank] += finish - begin
                end[action] = free[rank] = max(free[rank], end.get(source, 0)) + delay[action] + finish - begin
                position[rank] += 1
        assert sum(position) > before, "the schedule waits for itself"
    return busy, max(free)
