"""Whether traced steps are like the unprofiled ones."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from builder import Event, build, op, step
from paths import FIXTURES

from traceq.analysis.perturbation import most_overhead_ns, much_longer_words
from traceq.analysis.registry import analyze, sheet
from traceq.display import RenderOptions
from traceq.facts.ranks.job import job_of
from traceq.model import Arm, Manifest, Pairs, Run
from traceq.renderers import find_renderer
from traceq.runs.read import read
from traceq.runs.step_log import StepLine, timings_of

US = 1_000
UNPROFILED = (100, 104, 96, 110, 90, 99, 101, 100)


def run_of(*ranks: tuple[int, ...], unprofiled: tuple[int, ...] = UNPROFILED) -> Run:
    """A run whose ranks have traced steps of these lengths, and each the same unprofiled steps, us."""
    zeros = {"cpu_ns": 0, "device_ns": 0, "peak_bytes": 0}
    lines = [StepLine("run", "run", "run", 0, 0, 0, phases={}, wall_ns=us * US, **zeros) for us in unprofiled]
    traces = tuple(replace(build(*steps_of(us)), rank=rank) for rank, us in enumerate(ranks))
    manifest = Manifest(1, "id", "mine", "", {}, (Arm("run", "", baseline=True),), (), len(ranks), 0, "complete")
    return Run("run", traces, manifest, "run", timings=timings_of([lines] * len(ranks), "run"))


def steps_of(lengths: tuple[int, ...]) -> list[Event]:
    events, begin = [], 0
    for number, us in enumerate(lengths):
        events += [step(begin, us, number), op("aten::mm", begin + 1, us - 2)]
        begin += us
    return events


def sentence(run: Run) -> str:
    return "".join(caveat.text for caveat in analyze(run, "steps").caveats)


@pytest.mark.parametrize("lengths", [(100, 101), (90, 90), (110, 110), (120, 120), (60, 95, 200), (89, 91)])
def test_steps_within_the_range_and_what_the_profiler_adds_are_not_unlike(lengths: tuple[int, ...]) -> None:
    assert sentence(run_of(lengths)) == ""  # two events of a step, each 5 us at most


def test_longer_steps_than_the_profiler_explains_are_named_with_both_medians() -> None:
    text = sentence(run_of((100, 100), (140, 132, 150)))
    assert re.findall(r"rank \d|[\d.]+ us", text) == ["rank 1", "140 us", "100 us", "90.0 us", "110 us", "10.0 us"]


def test_the_page_has_the_sentence() -> None:
    page = StringIO()
    find_renderer("html", "sheet")(sheet(run_of((80, 70, 85))), page, RenderOptions())
    assert "unlike unprofiled ones" in page.getvalue()


def test_shorter_steps_are_unlike_whatever_the_profiler_adds() -> None:
    times = re.findall(r"rank \d|[\d.]+ us", sentence(run_of((80, 70, 85))))
    assert times == ["rank 0", "80.0 us", "100 us", "90.0 us", "110 us"]


def test_of_few_unprofiled_steps_or_means_of_some_nothing_is_concluded() -> None:
    assert sentence(run_of((500, 500), unprofiled=UNPROFILED[:7])) == ""
    means = np.full((1, 16), 100 * US)
    pairs = Pairs("run", "other", np.arange(16) % 2 == 0, means, means)
    assert sentence(replace(run_of((500, 500)), timings=None, pairs=(pairs,))) == ""


@pytest.mark.parametrize("arm", ["off", "on", "deferred"])
def test_what_the_profiler_adds_is_counted_event_by_event(arm: str) -> None:
    trace = read(FIXTURES / "outlier_ab" / arm).traces[0]
    events = trace.events
    names = [events.strings[name] for name in events.name.tolist()]
    assert not any(events.strings[category] == "Overhead" for category in events.cat.tolist())
    costs = []
    for mark in (row for row, name in enumerate(names) if name.startswith("ProfilerStep#")):
        begin, end = int(events.ts[mark]), int(events.end[mark])
        costs.append(sum(5 * US for start in events.ts.tolist() if begin <= start < end))
    assert most_overhead_ns(trace) == int(np.median(costs))


@pytest.mark.parametrize(("us", "words"), [(149, ""), (150, ", 1.50x unprofiled ones")])
def test_titles_say_where_traced_steps_are_much_longer(us: int, words: str) -> None:
    assert much_longer_words(job_of(run_of((us, us)))) == words
    titles = [view.title for view in analyze(run_of((us, us)), "partition").views]
    assert any(words and f"(traced steps{words})" in title for title in titles) == bool(words)
