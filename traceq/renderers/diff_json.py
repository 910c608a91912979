"""A diff as JSON: `traceq.diff/3`, or `traceq.diffs/3` for a run of more than two arms; times in ns per step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TextIO, TypedDict

import msgspec

from traceq.claims.claim import Measure
from traceq.compare.collective_volumes import Exchange
from traceq.compare.inference import InferenceDelta
from traceq.compare.result import (
    ArmInteraction,
    Cause,
    CellDelta,
    Chain,
    Comparable,
    Diff,
    Diffs,
    Feeding,
    RankDelta,
    Traced,
)
from traceq.compare.statement import Statement
from traceq.compare.step_counts import CountDelta
from traceq.compare.work_deltas import WorkDelta
from traceq.display import RenderOptions
from traceq.escaping import escape_json
from traceq.model import Caveat
from traceq.report import Cell, Source
from traceq.stats import Comparison

DIFF_SCHEMA, DIFFS_SCHEMA = "traceq.diff/3", "traceq.diffs/3"

_CAUSE = tuple(field.name for field in fields(Cause))
_CELL = ("phase", "category", "a_ns", "b_ns", "delta_ns")
_CHAIN = ("copied_ns", "waited_ns", "rest_ns", "idle_ns")
_RANK = ("rank", "a_ns", "b_ns", "delta_ns", "own_a_ns", "own_b_ns", "own_delta_ns")
_STEP = (
    *("a_ns", "b_ns", "delta_ns", "delta_pct", "ci95_ns", "ci90_ns", "noise_floor_ns", "num_pairs", "unprofiled"),
    *("mean_delta_ns", "rank_delta_ns", "num_looks", "num_a", "num_b"),
)
_TRACED = ("rank", "b_rank", "a_ns", "b_ns", "delta_ns", "num_a", "num_b", "matched_pct")
SHAPES = {Cause: _CAUSE, CellDelta: _CELL, Chain: _CHAIN, RankDelta: _RANK, Comparison: _STEP, Traced: _TRACED}
"""Keys of objects that are attributes of what is compared."""


class StatementObject(TypedDict):
    """A statement as data and in words."""

    code: str
    """What is said, as `syncs`, `pace` or `outside_interval`."""
    measures: Mapping[str, Measure]
    """`delta` has a sign, `side` is `a` or `b`."""
    text: str


class FeedingObject(TypedDict):
    """A data loader timed alone, and the steps that it feeds."""

    starved: bool
    """`loader_ns` is more than `rest_ns`."""
    loader_ns: int
    """Loader alone, a step's batches."""
    step_ns: int
    wait_ns: int | None
    """Of `step_ns`, in `dataload_wait`."""
    rest_ns: int
    batches_per_step: float
    samples_per_step: int | None


class SideObject(TypedDict):
    """One side of a comparison."""

    name: str
    """Arm or path, as in the text report."""
    path: str
    arm: str | None
    ranks: tuple[int, ...]
    world_size: int
    device: str | None
    """Name of the device, `cpu` without one."""
    torch: str | None


class SampleObject(TypedDict):
    """The comparison per sample; `num_a` and `num_b` are the samples in a step."""

    num_a: int
    num_b: int
    a_ns: int
    b_ns: int
    delta_ns: int
    delta_pct: float
    ci95_ns: list[int] | None
    ci90_ns: list[int] | None


class VerdictObject(TypedDict):
    """Whether there is a difference, and what says so."""

    name: str
    """`in_the_noise`, `material`, `detectable`, `inconclusive`."""
    state: str
    """`not_comparable`, `nothing_to_compare`, `starved`, `not_starved`; of profiled steps `same_time`, `within_jitter`,
    `within_scatter`, `ranks_of_one_job`, `work_of_one_side`, `other_work`, `other_pace`, `observed`; of unprofiled ones
    `steps_apart`, `other_work`, or `name`.
    """
    measures: Mapping[str, Measure]
    text: str
    threshold_pct: float | None
    reason: str
    pairs_needed: int | None
    """Pairs that would decide."""
    num_questions: int
    """Comparisons whose verdicts hold together."""
    of: str
    """`step` or `sample`."""
    steps_apart: bool
    """No interval, but one side's steps are longer."""


class DiffObject(TypedDict):
    """Values are per step; differences are B minus A."""

    schema: str
    a: SideObject
    b: SideObject
    comparable: Comparable
    step: dict[str, object] | None
    """Unprofiled, if both sides have such steps."""
    sample: SampleObject | None
    """Per sample, if the verdict is."""
    verdict: VerdictObject
    cpu_step: dict[str, object] | None
    """CPU time of the main thread, without a device."""
    traced: dict[str, object] | None
    """Profiled steps of the explained rank."""
    ranks: list[dict[str, object]]
    inference: tuple[InferenceDelta, ...]
    cells: list[dict[str, object]]
    residual_ns: int
    """Part of the traced delta not in the cells."""
    causes: list[dict[str, object]]
    """In the order of the text report."""
    counts: tuple[CountDelta, ...]
    work: tuple[WorkDelta, ...]
    basis: list[StatementObject]
    """What the verdict rests on, and how the sides differ."""
    reasons: list[StatementObject]
    """What makes the traced delta."""
    doubt: StatementObject | None
    """Why durations of traced steps are no evidence; None: they are."""
    free: StatementObject | None
    """Whether A has no overhead."""
    feeding: FeedingObject | None
    warnings: tuple[Caveat, ...]
    facts: list[dict[str, Cell]]


class JointObject(TypedDict):
    """An arm that repeats another arm's change in a different context."""

    arm: str
    repeats: str
    delta_ns: int
    """Cost of the change in `arm` minus in `repeats`."""
    ci95_ns: tuple[int, int] | None
    ci90_ns: tuple[int, int] | None
    verdict: str
    """Of the difference, as `verdict.name`."""
    statement: StatementObject


class DiffsObject(TypedDict):
    """A run of more than two arms."""

    schema: str
    baseline: str
    diffs: list[DiffObject]
    """One per other arm, in the recipe's order."""
    joint: list[JointObject]
    exchanges: tuple[Exchange, ...]
    """One per arm, if arms shard differently."""


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as JSON."""
    file.write(diffs_to_json(diffs) + "\n")


def diffs_to_json(diffs: Diffs) -> str:
    """Return one JSON object; a single diff is not wrapped in a list."""
    objects = [_diff(diff, _facts(diffs, diff)) for diff in diffs.diffs]
    several: DiffsObject = {
        "schema": DIFFS_SCHEMA,
        "baseline": diffs.baseline,
        "diffs": objects,
        "joint": [_interaction(interaction) for interaction in diffs.interactions],
        "exchanges": diffs.exchanges,
    }
    document = objects[0] if len(objects) == 1 else several
    return escape_json(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())


def _facts(diffs: Diffs, diff: Diff) -> list[dict[str, Cell]]:
    """Return the facts of the run and of the two arms that are compared."""
    rows = diffs.facts[0].to_dicts() if diffs.facts else []
    return [row for row in rows if row["arm"] in ("", diff.a_name, diff.b_name)]


def _interaction(between: ArmInteraction) -> JointObject:
    interaction = between.interaction
    return {
        "arm": between.arm,
        "repeats": between.repeats,
        "delta_ns": interaction.delta_ns,
        "ci95_ns": interaction.ci95_ns,
        "ci90_ns": interaction.ci90_ns,
        "verdict": interaction.verdict.name,
        "statement": _statement(between.statement),
    }


def _diff(diff: Diff, facts: list[dict[str, Cell]]) -> DiffObject:
    return {
        "schema": DIFF_SCHEMA,
        "a": _source(diff.a, diff.a_name),
        "b": _source(diff.b, diff.b_name),
        "comparable": diff.comparable,
        "step": _object_or_null(diff.steps),
        "sample": _sample(diff.comparison),
        "verdict": _verdict(diff),
        "cpu_step": _object_or_null(diff.cpu),
        "traced": _object_or_null(diff.traced),
        "ranks": list(map(_object, diff.ranks)),
        "inference": diff.inference,
        "cells": list(map(_object, diff.cells)),
        "residual_ns": diff.residual_ns,
        "causes": [_cause(cause) for cause in diff.causes],
        "counts": diff.counts,
        "work": diff.work,
        "basis": [_statement(each) for each in diff.basis],
        "reasons": [_statement(each) for each in diff.reasons],
        "doubt": _statement(diff.doubt) if diff.doubt else None,
        "free": _statement(diff.free) if diff.free else None,
        "feeding": _feeding(diff.feeding),
        "warnings": diff.caveats,
        "facts": facts,
    }


def _statement(statement: Statement) -> StatementObject:
    return {"code": statement.code, "measures": statement.measures, "text": str(statement)}


def _feeding(feeding: Feeding | None) -> FeedingObject | None:
    if feeding is None:
        return None
    return {
        "starved": feeding.is_starved,
        "loader_ns": feeding.loader_ns,
        "step_ns": feeding.step_ns,
        "wait_ns": feeding.wait_ns,
        "rest_ns": feeding.rest_ns,
        "batches_per_step": feeding.batches_per_step,
        "samples_per_step": feeding.samples_per_step or None,
    }


def _object(row: object) -> dict[str, object]:
    """Return the attributes of a row that JSON has, by name."""
    return {name: getattr(row, name) for name in SHAPES[type(row)]}


def _object_or_null(row: object) -> dict[str, object] | None:
    return None if row is None else _object(row)


def _cause(cause: Cause) -> dict[str, object]:
    return _object(cause) | {"chain": _object_or_null(cause.chain)}


def _source(source: Source, name: str) -> SideObject:
    return {
        "name": name,
        "path": source.path,
        "arm": source.arm or None,
        "ranks": source.ranks,
        "world_size": source.world_size,
        "device": source.device or None,
        "torch": source.torch or None,
    }


def _sample(comparison: Comparison | None) -> SampleObject | None:
    """Return the comparison of the time per sample, where the verdict is about that."""
    if comparison is None or comparison.samples is None:
        return None

    def each(interval: tuple[int, int] | None) -> list[int] | None:
        return interval and [round(comparison.each(end)) for end in interval]

    return {
        "num_a": comparison.samples[0],
        "num_b": comparison.samples[1],
        "a_ns": round(comparison.each(comparison.a_ns)),
        "b_ns": round(comparison.each(comparison.b_ns)),
        "delta_ns": round(comparison.each(comparison.delta_ns)),
        "delta_pct": comparison.delta_pct,
        "ci95_ns": each(comparison.ci95_ns),
        "ci90_ns": each(comparison.ci90_ns),
    }


def _verdict(diff: Diff) -> VerdictObject:
    comparison, answer = diff.comparison, diff.answer
    verdict = comparison.verdict if comparison else None
    return {
        "name": diff.verdict_name,
        "state": answer.code,
        "measures": answer.measures,
        "text": str(answer),
        "threshold_pct": verdict.threshold_pct if verdict else None,
        "reason": verdict.reason if verdict else "nothing to compare",
        "pairs_needed": verdict.pairs_needed if verdict else None,
        "num_questions": comparison.num_questions if comparison else 0,
        "of": "sample" if comparison and comparison.samples else "step",
        "steps_apart": bool(comparison and comparison.steps_apart),
    }
