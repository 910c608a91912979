"""A diff as JSON: `traceq.diff/2`, or `traceq.diffs/2` for a run of more than two arms; times in ns per step."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TextIO

import msgspec

from traceq.compare.result import ArmInteraction, Cause, Diff, Diffs, Feeding, RankDelta
from traceq.compare.statement import Statement
from traceq.display import RenderOptions
from traceq.escaping import escape_json
from traceq.report import Cell, Source
from traceq.stats import Comparison

__all__ = ["DIFFS_SCHEMA", "DIFF_SCHEMA", "diffs_to_json", "write_diffs"]

DIFF_SCHEMA, DIFFS_SCHEMA = "traceq.diff/2", "traceq.diffs/2"


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as JSON."""
    file.write(diffs_to_json(diffs) + "\n")


def diffs_to_json(diffs: Diffs) -> str:
    """Return one JSON object; a single diff is not wrapped in a list."""
    objects = [_diff(diff) | {"facts": _facts(diffs, diff)} for diff in diffs.diffs]
    several = {
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


def _interaction(between: ArmInteraction) -> dict[str, object]:
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


def _diff(diff: Diff) -> dict[str, object]:
    return {
        "schema": DIFF_SCHEMA,
        "a": _source(diff.a, diff.a_name),
        "b": _source(diff.b, diff.b_name),
        "comparable": diff.comparable,
        "step": _step(diff.steps),
        "sample": _sample(diff.comparison),
        "verdict": _verdict(diff),
        "cpu_step": _step(diff.cpu),
        "traced": None
        if diff.traced is None
        else {
            "rank": diff.traced.rank,
            "b_rank": diff.traced.b_rank,
            "a_ns": diff.traced.a_ns,
            "b_ns": diff.traced.b_ns,
            "delta_ns": diff.traced.delta_ns,
            "num_a": diff.traced.num_a,
            "num_b": diff.traced.num_b,
            "matched_pct": diff.traced.matched_pct,
            "replays": diff.traced.replays,
        },
        "ranks": [_rank(rank) for rank in diff.ranks],
        "inference": diff.inference,
        "cells": [
            {"phase": c.phase, "category": c.category, "a_ns": c.a_ns, "b_ns": c.b_ns, "delta_ns": c.delta_ns}
            for c in diff.cells
        ],
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
    }


def _statement(statement: Statement) -> dict[str, object]:
    return {"code": statement.code, "measures": statement.measures, "text": str(statement)}


def _feeding(feeding: Feeding | None) -> dict[str, object] | None:
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


def _rank(rank: RankDelta) -> dict[str, int]:
    return {
        "rank": rank.rank,
        "a_ns": rank.a_ns,
        "b_ns": rank.b_ns,
        "delta_ns": rank.delta_ns,
        "own_a_ns": rank.own_a_ns,
        "own_b_ns": rank.own_b_ns,
        "own_delta_ns": rank.own_delta_ns,
    }


def _cause(cause: Cause) -> dict[str, object]:
    """Return the fields of a cause; the rest of a sync's chain has its former key as well."""
    chain = cause.chain
    values = {field.name: getattr(cause, field.name) for field in fields(cause)}
    return {**values, "chain": None if chain is None else {**asdict(chain), "idle_ns": chain.rest_ns}}


def _source(source: Source, name: str) -> dict[str, object]:
    return {
        "name": name,
        "path": source.path,
        "arm": source.arm or None,
        "ranks": source.ranks,
        "world_size": source.world_size,
        "device": source.device or None,
        "torch": source.torch or None,
    }


def _step(comparison: Comparison | None) -> dict[str, object] | None:
    if comparison is None:
        return None
    return {
        "a_ns": comparison.a_ns,
        "b_ns": comparison.b_ns,
        "delta_ns": comparison.delta_ns,
        "delta_pct": comparison.delta_pct,
        "ci95_ns": comparison.ci95_ns,
        "ci90_ns": comparison.ci90_ns,
        "noise_floor_ns": comparison.noise_floor_ns,
        "num_pairs": comparison.num_pairs,
        "unprofiled": comparison.unprofiled,
        "mean_delta_ns": comparison.mean_delta_ns,
        "rank_delta_ns": comparison.rank_delta_ns,
        "num_looks": comparison.num_looks,
        "num_a": comparison.num_a,
        "num_b": comparison.num_b,
    }


def _sample(comparison: Comparison | None) -> dict[str, object] | None:
    """Return the comparison of the time per sample, where the verdict is about that."""
    if comparison is None or comparison.samples is None:
        return None
    ends = {"ci95_ns": comparison.ci95_ns, "ci90_ns": comparison.ci90_ns}
    return {
        "num_a": comparison.samples[0],
        "num_b": comparison.samples[1],
        "a_ns": round(comparison.each(comparison.a_ns)),
        "b_ns": round(comparison.each(comparison.b_ns)),
        "delta_ns": round(comparison.each(comparison.delta_ns)),
        "delta_pct": comparison.delta_pct,
        **{key: interval and [round(comparison.each(end)) for end in interval] for key, interval in ends.items()},
    }


def _verdict(diff: Diff) -> dict[str, object]:
    comparison, of_state = diff.comparison, {"state": diff.answer.code, **_statement(diff.answer)}
    del of_state["code"]
    if comparison is None:
        return {
            "name": diff.verdict_name,
            **of_state,
            "threshold_pct": None,
            "reason": "nothing to compare",
            "pairs_needed": None,
            "num_questions": 0,
            "of": "step",
            "steps_apart": False,
        }
    verdict = comparison.verdict
    return {
        "name": verdict.name,
        **of_state,
        "threshold_pct": verdict.threshold_pct,
        "reason": verdict.reason,
        "pairs_needed": verdict.pairs_needed,
        "num_questions": comparison.num_questions,
        "of": "step" if comparison.samples is None else "sample",
        "steps_apart": comparison.steps_apart,
    }
