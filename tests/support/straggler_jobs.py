"""Production jobs with published answers (`../shared/stragglers`) as a neutral graph, by the rules of its README."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray
from paths import ROOT
from task_graph import TaskGraph, task_graph

FOLDER = ROOT.parent / "shared" / "stragglers"
Ints = NDArray[np.int64]

_SECOND = 10**9
_NONE = -10_000_000
"""Ns: a transfer as short as this is none."""
_COMPUTES = ("forward-compute", "backward-compute")
_MEASURED_WHOLE = (*_COMPUTES, "gc", "optimizer", "layernorm-grads-all-reduce")
_MEAN = (*_COMPUTES, "gc", "optimizer")
_KINDS = {f"{way}-{what}": f"{way}-pp-comm" for way in ("forward", "backward") for what in ("send", "recv")}


def published(kind: str, name: str) -> Any:
    """Return a published answer: `kind` is result, mw or ms."""
    return json.loads((FOLDER / f"{kind}-{name}.json").read_text())


@dataclass(frozen=True)
class _Rank:
    """Tasks of one rank and step, of each optype in the stage's order."""

    of: Mapping[str, list[int]]
    dp: int
    stage: int


class StragglerJob:
    """Graph of all steps of a job, which are disjoint parts of it; times in ns since the step's start."""

    def __init__(self, name: str) -> None:
        rows = duckdb.sql(
            f"select dp_rank, stage, step, optype, start_ts::double, duration::double, seq_id "
            f"from '{FOLDER}/trace-{name}.parquet' order by step, dp_rank, stage, start_ts, seq_id, optype"
        ).fetchnumpy()
        columns = list(rows.values())
        self.dp, self.stage, self.step = (np.asarray(column, np.int64) for column in columns[:3])
        self.optype = np.asarray(columns[3]).astype(str)
        self.start, self.duration = (np.rint(np.asarray(c) * _SECOND).astype(np.int64) for c in columns[4:6])
        self.end, self.seq = self.start + self.duration, np.asarray(columns[6], np.int64)
        self.kind = np.array([_KINDS.get(text, text) for text in self.optype.tolist()])
        self.steps = np.unique(self.step)
        self.last_stage, self.num_dp = int(self.stage.max()), int(self.dp.max()) + 1
        self._before: list[int] = []
        self._after: list[int] = []
        self._meetings: dict[tuple[object, ...], list[int]] = {}
        self._stage_order: dict[int, list[tuple[str, int]]] = {}
        self._last_compute: dict[tuple[int, int], int] = {}
        for step in self.steps.tolist():
            self._add_step(step)
        meeting = np.full(len(self.step), -1)
        for number, members in enumerate(self._meetings.values()):
            meeting[members] = number
        self.meeting = meeting
        before, after = np.array(self._before), np.array(self._after)
        self.graph: TaskGraph = task_graph(len(self.step), before, after, meeting)
        cause = np.zeros_like(self.start)
        np.maximum.at(cause, after, self.end[before])
        self.delay = self.start - cause

    @cached_property
    def recorded(self) -> Ints:
        """Weight of each op: the transfer in a meeting, else the duration."""
        latest = np.full(int(self.meeting.max()) + 1, np.iinfo(np.int64).min)
        met = self.meeting >= 0
        np.maximum.at(latest, self.meeting[met], self.start[met])
        transfer = self.end - latest[self.meeting]
        return np.where(met, np.where(transfer <= _NONE, 0, transfer), self.duration)

    @cached_property
    def ideal(self) -> Ints:
        """One weight per optype: mean of computes, median of transfers."""
        weight = np.zeros_like(self.duration)
        for optype in np.unique(self.optype).tolist():
            rows = self.optype == optype
            values = self.duration[rows] if optype in _MEASURED_WHOLE else self.recorded[rows]
            weight[rows] = np.rint(values.mean() if optype in _MEAN else np.median(values))
        return weight

    def steps_s(self, weight: Ints, delay: Ints | None = None) -> NDArray[np.float64]:
        """Return float64[K]: how long each step lasts, s."""
        _, end = self.graph.play(weight, np.zeros_like(weight) if delay is None else delay)
        latest = np.zeros(len(self.steps), np.int64)
        np.maximum.at(latest, np.searchsorted(self.steps, self.step), end)
        return latest / _SECOND

    def only(self, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the steps if only some ops are as recorded, and the others ideal."""
        return self.steps_s(np.where(rows, self.recorded, self.ideal))

    def without(self, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the steps if some ops are ideal, and the others as recorded."""
        return self.steps_s(np.where(rows, self.ideal, self.recorded))

    def _add_step(self, step: int) -> None:
        ranks = {}
        inside = np.arange(*np.searchsorted(self.step, [step, step + 1]))
        for dp in range(self.num_dp):
            for stage in range(self.last_stage + 1):
                rows = inside[(self.dp[inside] == dp) & (self.stage[inside] == stage)]
                ranks[dp, stage] = self._rank(rows, dp, stage)
        for rank in ranks.values():
            self._order(rank)
            self._meet(step, rank, ranks)

    def _rank(self, rows: Ints, dp: int, stage: int) -> _Rank:
        """Order the ops of a rank as those of dp rank 0 in the first step."""
        names = list(zip(self.optype[rows].tolist(), self.seq[rows].tolist(), strict=True))
        order = self._stage_order.setdefault(stage, names)
        task = dict(zip(names, rows.tolist(), strict=True))
        of: dict[str, list[int]] = {}
        for optype, seq in order:
            of.setdefault(optype, []).append(task[optype, seq])
            if optype in _COMPUTES:
                of.setdefault("compute", []).append(task[optype, seq])
        return _Rank(of, dp, stage)

    def _wait(self, before: list[int], after: list[int]) -> None:
        for task, following in zip(before, after, strict=False):
            self._before.append(task)
            self._after.append(following)

    def _order(self, rank: _Rank) -> None:
        def of(optype: str) -> list[int]:
            return rank.of.get(optype, [])

        scatter, gather, computes = of("grads-reduce-scatter"), of("params-all-gather"), of("compute")
        for chain in (computes, *(of(f"{way}-{what}") for way in ("forward", "backward") for what in ("send", "recv"))):
            self._wait(chain, chain[1:])
        self._wait([*gather, *scatter], [*gather[1:], *scatter])
        self._wait(gather[-1:], of("forward-compute")[:1])
        for way in ("forward", "backward"):
            self._wait(of(f"{way}-recv"), of(f"{way}-compute"))
            self._wait(of(f"{way}-compute"), of(f"{way}-recv")[1:])
            self._wait(of(f"{way}-compute"), of(f"{way}-send"))
        first_backward = computes.index(of("backward-compute")[0])
        if first_backward >= 2:
            for optype in ("backward-recv", "backward-send"):
                self._wait([computes[first_backward - 2]], of(optype)[:1])
        last = max(computes, key=lambda task: int(self.end[task]))
        tail = [
            [last], of("gc"), of("layernorm-grads-all-reduce"), of("embedding-grads-all-reduce"), scatter,
            of("optimizer-clip-main-grad"), of("optimizer"),
        ]  # fmt: skip
        ops = [task for part in tail for task in part]
        self._wait(ops, ops[1:])

    def _meet(self, step: int, rank: _Rank, ranks: Mapping[tuple[int, int], _Rank]) -> None:
        dp, stage = rank.dp, rank.stage
        keys: dict[str, Callable[[int], tuple[object, ...]]] = {
            "forward-send": lambda n: ("forward", dp, stage, n),
            "forward-recv": lambda n: ("forward", dp, stage - 1, n),
            "backward-send": lambda n: ("backward", dp, stage, n),
            "backward-recv": lambda n: ("backward", dp, stage + 1, n),
            "params-all-gather": lambda n: ("gather", stage, n),
            "grads-reduce-scatter": lambda n: ("scatter", stage, n),
            "embedding-grads-all-reduce": lambda n: ("embedding", dp, n),
            "optimizer-clip-main-grad": lambda n: ("clip", n),
        }
        for optype, key in keys.items():
            for number, task in enumerate(rank.of.get(optype, [])):
                self._meetings.setdefault((step, *key(number)), []).append(task)
