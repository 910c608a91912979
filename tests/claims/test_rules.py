"""Which claim stands of several about the same time, how severe one is, and what its measures are numbers of."""

from __future__ import annotations

import pytest

from traceq.claims.claim import HIGH, LOW, MEDIUM, Basis, Claim, Subject, unit_of
from traceq.claims.rules import judged, severity_of, supersedes
from traceq.claims.saying import text_of
from traceq.units import Unit


@pytest.mark.parametrize("code", ["compiling", "recompiles"])
def test_what_compiles_explains_a_cold_start(code: str) -> None:
    compiles, once = Claim(code, 60), Claim("cold_start", 20)
    assert supersedes(compiles, once)
    assert not supersedes(once, compiles)


@pytest.mark.parametrize(("exposed_pct", "is_explained"), [(63.0, True), (42.0, False)])
def test_metrics_explain_exposed_communication_if_they_are_most_of_it(exposed_pct: float, is_explained: bool) -> None:
    metrics = Claim("metric_gathers", 6, measures={"exposed_pct": exposed_pct})
    assert supersedes(metrics, Claim("exposed_transfer", 8)) == is_explained


@pytest.mark.parametrize(("line", "is_explained"), [("a.py:7 f", True), ("a.py:8 f", False), ("", False)])
def test_a_sync_to_remove_explains_one_to_leave_at_its_line(line: str, is_explained: bool) -> None:
    costly = Claim("costly_sync", 3, Subject(line="a.py:7 f", key="dtoh|a.py:7 f|layer 3"))
    free = Claim("free_sync", 1, Subject(line=line, key=f"dtoh|{line}|layer 9"))
    assert supersedes(costly, free) == is_explained


@pytest.mark.parametrize(
    ("claim", "step_ns", "severity"),
    [
        (Claim("recompiles", 10), 100, HIGH),
        (Claim("recompiles", 9), 100, MEDIUM),
        (Claim("recompiles", 10), 0, MEDIUM),
        (Claim("joint_syncs", 50, gain=(0, 0)), 100, LOW),
        (Claim("wall_time"), 100, HIGH),
        (Claim("memory_peak"), 0, MEDIUM),
    ],
)
def test_severity_is_the_part_of_a_step_that_is_known(claim: Claim, step_ns: float, severity: str) -> None:
    assert severity_of(claim, step_ns) == severity


@pytest.mark.parametrize(("once", "gain"), [("pool_growth", (0, 0)), ("first_use", (0, 0)), ("pool_refill", (50, 60))])
def test_a_step_gains_nothing_of_what_ends_by_itself(once: str, gain: tuple[int, int]) -> None:
    """Memory that the job returns it asks for again."""
    (claim,) = judged([Claim("alloc_wait", 60, gain=(50, 60), measures={"once": once})], Basis(1), 100)
    assert (claim.gain, claim.severity) == (gain, LOW if gain == (0, 0) else HIGH)


@pytest.mark.parametrize(
    ("has_unprofiled", "is_unprofiled", "step"),
    [(False, False, "step"), (True, False, "traced step"), (True, True, "step")],
)
def test_a_time_of_traced_steps_is_said_to_be_one_beside_unprofiled_steps(
    has_unprofiled: bool, is_unprofiled: bool, step: str
) -> None:
    """These are shorter: 14.6 ms per step is more than all of a step of 5 ms."""
    claim = Claim("sync_wait", measures={"time_ns": 5_000_000, "share_pct": 40.0}, gain=(0, 2_000_000))
    basis = Basis(3, is_unprofiled=is_unprofiled)
    (claim,) = judged([claim], basis, 10_000_000, has_unprofiled=has_unprofiled)
    assert f"5.00 ms per {step}, 40.0 % of it; a {step} gets up to 2.00 ms shorter" in text_of(claim)


def test_the_name_of_a_measure_tells_its_unit() -> None:
    units = {
        "num_ns": Unit.COUNT,
        "takes_ns": Unit.NS,
        "delta_bytes": Unit.DELTA_BYTES,
        "delta_pct": Unit.DELTA_PERCENT,
    }
    assert {name: unit_of(name) for name in units} == units
    assert unit_of("tflops") == Unit.NUMBER


def test_memory_given_back_explains_what_all_syncs_cost_together() -> None:
    retries, joint = Claim("allocator_retries", 117_000, Subject()), Claim("joint_syncs", 135_000, Subject())
    assert (supersedes(retries, joint), supersedes(joint, retries)) == (True, False)
