"""Ranges of a phase are opened and closed in order, whatever happens inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="phases are ranges of torch's profiler")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

from traceq.errors import UsageFault
from traceq.recorder.spec import phases as module
from traceq.recorder.spec.phases import Phases


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every push and pop, in order."""
    ranges: list[str] = []

    @contextmanager
    def record(name: str) -> Iterator[None]:
        ranges.append(f"record {name}")
        try:
            yield
        finally:
            ranges.append(f"end {name}")

    nvtx = SimpleNamespace(
        get_event_attributes=lambda message: message,
        push_range=lambda name: ranges.append(f"push {name}"),
        pop_range=lambda: ranges.append("pop"),
    )
    monkeypatch.setattr(module, "_RANGES", nvtx)
    monkeypatch.setattr(module, "record_function", record)
    return ranges


def test_a_profiled_phase_is_an_nvtx_range_around_a_profiler_range(calls: list[str]) -> None:
    phases = Phases(("forward",))
    phases.profiling = True
    with phases("forward"):
        calls.append("work")
    assert calls == ["push forward", "record forward", "work", "end forward", "pop"]


def test_an_unprofiled_phase_does_not_pay_for_a_profiler_range(calls: list[str]) -> None:
    with Phases(("forward",))("forward"):
        pass
    assert calls == ["push forward", "pop"]


def test_without_a_tool_that_sees_ranges_there_are_none(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nvtx then has a domain that makes no attributes."""
    monkeypatch.setattr(module._RANGES, "get_event_attributes", lambda message: None)
    phases = Phases()
    phases.profiling = True
    with phases("forward"):
        pass
    assert calls == ["record forward", "end forward"]
    assert phases.names == ("forward",)


def test_an_exception_leaves_no_range_open(calls: list[str]) -> None:
    phases = Phases(("forward", "bwd"))
    phases.profiling = True
    with pytest.raises(ValueError, match="inner"), phases("forward"), phases("bwd"):
        raise ValueError("inner")
    assert calls[-4:] == ["end bwd", "pop", "end forward", "pop"]
    assert [name for name, ns in phases.elapsed_ns.items() if ns] == ["forward"]


def test_a_profiler_range_that_fails_to_open_leaves_no_nvtx_range_open(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("no profiler")

    monkeypatch.setattr(module, "record_function", refuse)
    phases = Phases(("forward",))
    phases.profiling = True
    with pytest.raises(RuntimeError), phases("forward"):
        pass
    assert calls == ["push forward", "pop"]


def test_a_nested_phase_is_time_of_the_outer_one_only(calls: list[str]) -> None:
    phases = Phases(("forward", "check"))
    with phases("forward"), phases("check"):
        pass
    assert [name for name, ns in phases.elapsed_ns.items() if ns] == ["forward"]


def test_a_mistyped_phase_is_answered_with_the_similar_name(calls: list[str]) -> None:
    with pytest.raises(UsageFault, match=r"did you mean forward\?"), Phases(("forward", "bwd"))("foward"):
        pass
    assert calls == []


@pytest.mark.parametrize("name", ['for"ward', "vorwärts", "for ward", ""])
def test_a_name_that_a_trace_would_corrupt_is_refused(name: str) -> None:
    with pytest.raises(UsageFault, match=r"only letters, digits and _\.:/#-"), Phases()(name):
        pass
