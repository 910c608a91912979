"""A diff as JSON: `traceq.diff/1`, or `traceq.diffs/1` for a run of more than two arms. Times are integer ns a step."""

from __future__ import annotations

import msgspec

from traceq.compare.result import Diff, Diffs, Feeding, Joint, RankDelta
from traceq.report import Source
from traceq.stats import Comparison

__all__ = ["DIFFS_SCHEMA", "DIFF_SCHEMA", "diffs_to_json"]

DIFF_SCHEMA, DIFFS_SCHEMA = "traceq.diff/1", "traceq.diffs/1"


def diffs_to_json(diffs: Diffs) -> str:
    """One object; a diff alone is not wrapped in a list."""
    found = [_diff(diff) for diff in diffs.diffs]
    several = {
        "schema": DIFFS_SCHEMA,
        "baseline": diffs.baseline,
        "diffs": found,
        "joint": [_joint(one) for one in diffs.joint],
        "exchanges": diffs.exchanges,
    }
    document = found[0] if len(found) == 1 else several
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _joint(one: Joint) -> dict[str, object]:
    found = one.interaction
    return {
        "arm": one.arm,
        "repeats": one.repeats,
        "delta_ns": found.delta_ns,
        "ci95_ns": found.ci95_ns,
        "ci90_ns": found.ci90_ns,
        "verdict": found.verdict.name,
        "words": one.words,
    }


def _diff(diff: Diff) -> dict[str, object]:
    return {
        "schema": DIFF_SCHEMA,
        "a": _source(diff.a, diff.a_name),
        "b": _source(diff.b, diff.b_name),
        "comparable": diff.comparable,
        "step": _step(diff.steps),
        "sample": _sample(diff.comparison),
        "verdict": _verdict(diff.comparison),
        "cpu_step": _step(diff.cpu),
        "traced": None
        if diff.traced is None
        else {
            "rank": diff.traced.rank,
            "a_ns": diff.traced.a_ns,
            "b_ns": diff.traced.b_ns,
            "delta_ns": diff.traced.delta_ns,
            "num_a": diff.traced.num_a,
            "num_b": diff.traced.num_b,
        },
        "ranks": [_rank(rank) for rank in diff.ranks],
        "cells": [
            {"phase": c.phase, "category": c.category, "a_ns": c.a_ns, "b_ns": c.b_ns, "delta_ns": c.delta_ns}
            for c in diff.cells
        ],
        "residual_ns": diff.residual_ns,
        "causes": diff.causes,
        "words": diff.words,
        "free": diff.free or None,
        "feeding": _feeding(diff.feeding),
        "warnings": diff.caveats,
    }


def _feeding(found: Feeding | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "starved": found.is_starved,
        "loader_ns": found.loader_ns,
        "step_ns": found.step_ns,
        "wait_ns": found.wait_ns,
        "rest_ns": found.rest_ns,
        "batches_per_step": found.batches_per_step,
        "samples_per_step": found.samples_per_step or None,
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


def _step(found: Comparison | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "a_ns": found.a_ns,
        "b_ns": found.b_ns,
        "delta_ns": found.delta_ns,
        "delta_pct": found.delta_pct,
        "ci95_ns": found.ci95_ns,
        "ci90_ns": found.ci90_ns,
        "noise_floor_ns": found.noise_floor_ns,
        "num_pairs": found.num_pairs,
        "unprofiled": found.unprofiled,
        "mean_delta_ns": found.mean_delta_ns,
        "rank_delta_ns": found.rank_delta_ns,
        "num_looks": found.num_looks,
        "num_a": found.num_a,
        "num_b": found.num_b,
    }


def _sample(found: Comparison | None) -> dict[str, object] | None:
    """The same for the time of one sample, where the verdict is about that."""
    if found is None or found.samples is None:
        return None
    ends = {"ci95_ns": found.ci95_ns, "ci90_ns": found.ci90_ns}
    return {
        "num_a": found.samples[0],
        "num_b": found.samples[1],
        "a_ns": round(found.each(found.a_ns)),
        "b_ns": round(found.each(found.b_ns)),
        "delta_ns": round(found.each(found.delta_ns)),
        "delta_pct": found.delta_pct,
        **{key: interval and [round(found.each(end)) for end in interval] for key, interval in ends.items()},
    }


def _verdict(found: Comparison | None) -> dict[str, object]:
    if found is None:
        return {
            "name": "inconclusive",
            "threshold_pct": None,
            "reason": "nothing to compare",
            "pairs_needed": None,
            "of": "step",
        }
    verdict = found.verdict
    return {
        "name": verdict.name,
        "threshold_pct": verdict.threshold_pct,
        "reason": verdict.reason,
        "pairs_needed": verdict.pairs_needed,
        "of": "step" if found.samples is None else "sample",
    }
